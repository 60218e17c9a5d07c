#include "model/config/json_fields.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/json.h"
#include "base/json_check.h"
#include "base/json_walk.h"
#include "base/utf8.h"

namespace aft {
namespace {

using Json = nlohmann::json;

constexpr int kMaxLevels = 2000;

}  // namespace

absl::Status KeyError(absl::string_view key, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(key, ": ", problem));
}

std::string OrAbsent(int64_t value) {
  return value == 0 ? std::string("absent") : absl::StrCat(value);
}

double ShortestDouble(float value) {
  char text[64];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text) - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

absl::StatusOr<Json> ParseStrictJson(absl::string_view text, size_t max_bytes) {
  if (text.size() > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("config is ", text.size(), " bytes; at most ", max_bytes));
  }
  const JsonCheck check = CheckJson(text, kMaxLevels);
  if (check.too_deep || check.wrong_byte != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("not valid JSON: ", check.too_deep ? "too many levels" : Shown(check.why)));
  }
  if (!check.twice.empty()) {
    const std::string path = absl::StrJoin(check.twice, ".");
    return KeyError(path.empty() ? "\"\"" : Shown(path), "given more than once");
  }
  Json json;
  ParseJson(text, json);  // CheckJson found no fault
  return json;
}

JsonFields::JsonFields(const Json& object, absl::string_view path,
                       const std::vector<absl::string_view>& known)
    : object_(object), prefix_(path.empty() ? "" : absl::StrCat(path, ".")) {
  if (!object.is_object()) {
    Fail(path.empty() ? "config" : path,
         absl::StrCat("must be an object, got ", ShownJson(object)));
    return;
  }
  for (const auto& member : object.items()) {
    if (std::find(known.begin(), known.end(), absl::string_view(member.key())) == known.end()) {
      Fail(absl::StrCat(prefix_, Shown(member.key())),
           absl::StrCat("unknown key; known: ", absl::StrJoin(known, ", ")));
      return;
    }
  }
}

void JsonFields::Integer(const char* key, int64_t min, int64_t max, int64_t* out) {
  const Json* value = Find(key);
  if (value == nullptr) return;
  // Numbers above 2^63 are unsigned in nlohmann::json, and those above 2^64 are floats.
  const bool fits = value->is_number_integer() &&
                    (!value->is_number_unsigned() ||
                     value->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!value->is_number_integer()) {
    Fail(absl::StrCat(prefix_, key), absl::StrCat("must be an integer, got ", ShownJson(*value)));
  } else if (!fits || value->get<int64_t>() < min || value->get<int64_t>() > max) {
    Fail(absl::StrCat(prefix_, key),
         min == max
             ? absl::StrCat("must be ", min, ", got ", ShownJson(*value))
             : absl::StrCat("must be >= ", min, " and <= ", max, ", got ", ShownJson(*value)));
  } else {
    *out = value->get<int64_t>();
  }
}

void JsonFields::Number(const char* key, double min, double max, float* out) {
  const Json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_number()) {
    Fail(absl::StrCat(prefix_, key), absl::StrCat("must be a number, got ", ShownJson(*value)));
  } else if (const double number = value->get<double>(); !(number >= min && number <= max)) {
    Fail(absl::StrCat(prefix_, key),
         absl::StrCat("must be >= ", min, " and <= ", max, ", got ", ShownJson(*value)));
  } else {
    *out = static_cast<float>(number);
  }
}

void JsonFields::Bool(const char* key, bool* out) {
  const Json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_boolean()) {
    Fail(absl::StrCat(prefix_, key),
         absl::StrCat("must be true or false, got ", ShownJson(*value)));
  } else {
    *out = value->get<bool>();
  }
}

void JsonFields::Name(const char* key, const std::vector<absl::string_view>& allowed,
                      std::string* out) {
  const Json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_string() ||
      std::find(allowed.begin(), allowed.end(),
                absl::string_view(value->get_ref<const std::string&>())) == allowed.end()) {
    Fail(absl::StrCat(prefix_, key), absl::StrCat("must be \"", absl::StrJoin(allowed, "\" or \""),
                                                  "\", got ", ShownJson(*value)));
  } else {
    *out = value->get<std::string>();
  }
}

void JsonFields::Strings(const char* key, size_t min, size_t max, size_t max_bytes,
                         std::vector<std::string>* out) {
  const Json* value = Find(key);
  if (value == nullptr) return;
  if (!value->is_array() || value->size() < min || value->size() > max) {
    return Fail(absl::StrCat(prefix_, key),
                absl::StrCat("must be a list of ", min, " to ", max, " strings"));
  }
  std::set<std::string> seen;
  for (size_t i = 0; i < value->size(); ++i) {
    const Json& element = (*value)[i];
    if (!element.is_string() || element.get_ref<const std::string&>().empty() ||
        element.get_ref<const std::string&>().size() > max_bytes) {
      return Fail(absl::StrCat(prefix_, key, "[", i, "]"),
                  absl::StrCat("must be a string of 1 to ", max_bytes, " bytes"));
    }
    if (!seen.insert(element.get<std::string>()).second) {
      return Fail(absl::StrCat(prefix_, key, "[", i, "]"),
                  absl::StrCat("occurs twice: ", ShownJson(element)));
    }
  }
  *out = value->get<std::vector<std::string>>();
}

const Json* JsonFields::Find(const char* key) {
  if (!status_.ok()) return nullptr;
  const auto found = object_.find(key);
  if (found == object_.end()) {
    Fail(absl::StrCat(prefix_, key), "missing");
    return nullptr;
  }
  return &*found;
}

}  // namespace aft
