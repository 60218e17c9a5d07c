#include "server/api/openai/json_text.h"

#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aft::server::openai {
namespace {

constexpr int kDeepest = 32;

// Whether brackets are nested deeper than that; of any text.
bool IsTooDeep(absl::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kDeepest) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

absl::StatusOr<Json> ParseObject(absl::string_view text) {
  const auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the body ", why));
  };
  if (IsTooDeep(text)) return bad(absl::StrCat("is nested deeper than ", kDeepest));
  // The parser takes a NUL for the end of its input.
  if (text.find('\0') != absl::string_view::npos) return bad("has a NUL");
  std::vector<std::set<std::string>> keys;
  std::string twice;
  const auto look = [&](int /*depth*/, Json::parse_event_t event, const Json& parsed) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key) {
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && twice.empty()) twice = key;
    }
    return true;
  };
  Json object = Json::parse(text.begin(), text.end(), look, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("must be a JSON object in UTF-8");
  if (!twice.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(Dump(Json(twice)), ": the key occurs twice"));
  }
  return object;
}

}  // namespace aft::server::openai
