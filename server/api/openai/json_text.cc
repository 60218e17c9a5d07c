#include "server/api/openai/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/json.h"
#include "base/json_check.h"
#include "server/api/aft/named_options.h"
#include "server/config/checks.h"

namespace aft::server::openai {
namespace {

constexpr int kDeepest = 32;

void Clear(Json& json) {
  if (!json.is_structured()) return;
  for (Json& member : json) Clear(member);
  json.clear();
}

}  // namespace

void FreeJson::operator()(Json* json) const {
  Clear(*json);
  delete json;
}

absl::StatusOr<JsonPtr> ParseObject(absl::string_view text) {
  const auto bad = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the body ", why));
  };
  const JsonCheck check = CheckJson(text, kDeepest);
  if (check.too_deep) return bad(absl::StrCat("is nested deeper than ", kDeepest));
  if (absl::StartsWith(check.why, "[json.exception.out_of_range")) {
    return bad(absl::StrCat("has a number that is too large; it ends at byte ", check.wrong_byte));
  }
  if (check.wrong_byte != 0) {
    return bad(absl::StrCat("must be a JSON object in UTF-8; ",
                            check.wrong_byte > text.size()
                                ? "it ends too early"
                                : absl::StrCat("byte ", check.wrong_byte, " is wrong")));
  }
  if (!check.twice.empty()) return BadField(check.TwicePath(), "the key occurs twice");
  JsonPtr object(new Json());
  ParseJson(text, *object);  // null if it is no JSON
  if (!object->is_object()) return bad("must be a JSON object in UTF-8");
  MakeIntegers(*object);
  return object;
}

std::string Quoted(const std::string& text) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= ' ' && c < 0x7f && c != '"' && c != '\\';
  });
  return plain ? absl::StrCat("\"", text, "\"") : DumpJson(Json(text));
}

void AppendNumber(double number, std::string& json) {
  if (!std::isfinite(number)) {
    json += "null";
    return;
  }
  char text[32];
  const char* const end = std::to_chars(text, std::end(text), number).ptr;
  const absl::string_view digits(text, static_cast<size_t>(end - text));
  absl::StrAppend(&json, digits, digits.find_first_of(".e") == absl::string_view::npos ? ".0" : "");
}

}  // namespace aft::server::openai
