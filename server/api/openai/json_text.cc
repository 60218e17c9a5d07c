#include "server/api/openai/json_text.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/json_check.h"
#include "server/api/aft/named_options.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

constexpr int kDeepest = 32;

}  // namespace

absl::StatusOr<Json> ParseObject(absl::string_view text) {
  const auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the body ", why));
  };
  const JsonCheck check = CheckJson(text, kDeepest);
  if (check.too_deep) return bad(absl::StrCat("is nested deeper than ", kDeepest));
  if (check.wrong_byte != 0) {
    return bad(absl::StrCat("must be a JSON object in UTF-8; ",
                            check.wrong_byte > text.size()
                                ? "it ends too early"
                                : absl::StrCat("byte ", check.wrong_byte, " is wrong")));
  }
  if (!check.twice.empty()) {
    const std::string& key = check.twice.back();
    return BadField(key.empty() ? "\"\"" : key, "the key occurs twice");
  }
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
