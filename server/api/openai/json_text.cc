#include "server/api/openai/json_text.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/api/aft/named_options.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

constexpr int kDeepest = 32;

// Returns whether brackets are nested deeper than kDeepest. `text` need not be valid JSON.
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

// Finds a key that occurs twice in one object. The parser would silently keep only the last value.
struct KeyCheck final : nlohmann::json_sax<Json> {
  std::vector<std::set<std::string>> levels;
  std::string twice;
  size_t error = 0;  // the position at which parsing failed; the first byte has 1

  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(int64_t /*value*/) override { return true; }
  bool number_unsigned(uint64_t /*value*/) override { return true; }
  bool number_float(double /*value*/, const std::string& /*text*/) override { return true; }
  bool string(std::string& /*value*/) override { return true; }
  bool binary(Json::binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override {
    levels.emplace_back();
    return true;
  }
  bool key(std::string& key) override {
    if (!levels.back().insert(key).second && twice.empty()) twice = key;
    return true;
  }
  bool end_object() override {
    levels.pop_back();
    return true;
  }
  bool start_array(size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const Json::exception& /*error*/) override {
    error = position;
    return false;
  }
};

}  // namespace

absl::StatusOr<Json> ParseObject(absl::string_view text) {
  const auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the body ", why));
  };
  if (IsTooDeep(text)) return bad(absl::StrCat("is nested deeper than ", kDeepest));
  // The parser would treat a NUL as the end of its input.
  if (text.find('\0') != absl::string_view::npos) return bad("has a NUL");
  KeyCheck keys;
  if (!Json::sax_parse(text.begin(), text.end(), &keys)) {
    return bad(absl::StrCat("must be a JSON object in UTF-8; ",
                            keys.error > text.size()
                                ? "it ends too early"
                                : absl::StrCat("byte ", keys.error, " is wrong")));
  }
  if (!keys.twice.empty()) return BadField(keys.twice, "the key occurs twice");
  // This parses a second time, because a parse with a callback takes quadratic time for a list of
  // objects.
  Json object = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return bad("must be a JSON object in UTF-8");
  MakeIntegers(object);
  return object;
}

std::string Quoted(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
  });
  return plain ? absl::StrCat("\"", text, "\"") : Dump(OrderedJson(text));
}

}  // namespace aft::server::openai
