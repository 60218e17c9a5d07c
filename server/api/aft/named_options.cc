#include "server/api/aft/named_options.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/json_check.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/option_rules.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{16} << 10;
constexpr int kMaxJsonLevels = 32;
constexpr size_t kMaxOptionNameBytes = 64;  // no option has a longer name

// Returns the number in `value`, which is a number or, if `lax`, a string with one.
template <typename T>
std::optional<T> Number(const Json& value, bool lax) {
  if constexpr (std::is_floating_point_v<T>) {
    double number = 0;
    if (value.is_number()) return value.get<T>();
    if (lax && value.is_string() &&
        absl::SimpleAtod(value.get_ref<const std::string&>(), &number)) {
      return static_cast<T>(number);
    }
  } else {
    T number = 0;
    if (lax && value.is_string() &&
        absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) {
      return number;
    }
    if (value.is_number_unsigned()) {
      const auto wide = value.get<uint64_t>();
      if (std::in_range<T>(wide)) return static_cast<T>(wide);
    } else if (value.is_number_integer()) {
      const auto wide = value.get<int64_t>();
      if (std::in_range<T>(wide)) return static_cast<T>(wide);
    }
  }
  return std::nullopt;
}

std::optional<bool> Truth(const Json& value, bool lax) {
  bool truth = false;
  if (value.is_boolean()) return value.get<bool>();
  if (lax && value.is_string() && absl::SimpleAtob(value.get_ref<const std::string&>(), &truth)) {
    return truth;
  }
  return std::nullopt;
}

std::string Path(absl::string_view place, absl::string_view name) {
  return place.empty() ? std::string(name) : absl::StrCat(place, ".", name);
}

// Sets the field, or adds to a list. Returns false if the value does not fit the field's type.
bool Put(const Json& value, const FieldDescriptor& field, Message& message, bool lax) {
  const Reflection& reflection = *message.GetReflection();
  const auto put = [&](const auto& given, auto set, auto add) {
    if (given.has_value())
      (reflection.*(field.is_repeated() ? add : set))(&message, &field, *given);
    return given.has_value();
  };
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_FLOAT:
      return put(Number<float>(value, lax), &Reflection::SetFloat, &Reflection::AddFloat);
    case FieldDescriptor::CPPTYPE_UINT32:
      return put(Number<uint32_t>(value, lax), &Reflection::SetUInt32, &Reflection::AddUInt32);
    case FieldDescriptor::CPPTYPE_UINT64:
      return put(Number<uint64_t>(value, lax), &Reflection::SetUInt64, &Reflection::AddUInt64);
    case FieldDescriptor::CPPTYPE_BOOL:
      return put(Truth(value, lax), &Reflection::SetBool, &Reflection::AddBool);
    case FieldDescriptor::CPPTYPE_STRING:
      return put(value.is_string() ? std::make_optional(value.get<std::string>()) : std::nullopt,
                 &Reflection::SetString, &Reflection::AddString);
    default:
      return false;
  }
}

// Fills a map with keys of type uint32. The keys of a JSON object are strings, and two of them may
// be the same number.
bool PutMap(const Json& value, const FieldDescriptor& field, Message& message, bool lax) {
  if (!value.is_object()) return false;
  const FieldDescriptor& key_field = *field.message_type()->map_key();
  std::set<uint32_t> keys;
  for (const auto& [key, mapped] : value.items()) {
    Message& entry = *message.GetReflection()->AddMessage(&message, &field);
    if (!Put(Json(key), key_field, entry, /*lax=*/true) ||
        !Put(mapped, *field.message_type()->map_value(), entry, lax) ||
        !keys.insert(entry.GetReflection()->GetUInt32(entry, &key_field)).second) {
      return false;
    }
  }
  return true;
}

// Says which values the option has.
std::string Wanted(const OptionRule& rule) {
  if (rule.field->is_map()) {
    return "must be an object with different token ids as keys and numbers as values";
  }
  const auto type = rule.field->cpp_type();
  if (type == FieldDescriptor::CPPTYPE_BOOL) return "must be true or false";
  const uint64_t most = type == FieldDescriptor::CPPTYPE_UINT64 ? UINT64_MAX
                        : rule.about->range().empty()           ? UINT32_MAX
                                                                : static_cast<uint64_t>(rule.high);
  return absl::StrCat("must be ",
                      type == FieldDescriptor::CPPTYPE_FLOAT ? "a number"
                      : type == FieldDescriptor::CPPTYPE_STRING
                          ? "a string"
                          : absl::StrCat("an integer from ", rule.low, " to ", most),
                      rule.field->is_repeated() ? ", or a list of these" : "");
}

// Sets the option. `path`: the beginning of errors.
absl::Status Apply(const OptionRule& rule, absl::string_view path, const Json& value, bool lax,
                   v1::GenerateRequest& message) {
  const FieldDescriptor& field = *rule.field;
  const bool is_list = field.is_repeated() && !field.is_map() && value.is_array();
  if (is_list || (field.is_map() && value.is_object())) {
    // The copies of the entries are not charged to the client, so their number is checked first.
    AFT_RETURN_IF_ERROR(CheckEntries(rule, path, value.size()));
  }
  Message& part = PartOf(rule, message);
  const auto put = [&](const Json& one) { return Put(one, field, part, lax); };
  const bool fits = field.is_map() ? PutMap(value, field, part, lax)
                    : is_list      ? std::all_of(value.begin(), value.end(), put)
                                   : put(value);
  return fits ? absl::OkStatus() : BadField(path, Wanted(rule));
}

// Suggests an option, or one of the words in `others`, for a name that is probably misspelt.
std::string Suggestion(absl::string_view name, const char* others) {
  if (name.size() > kMaxOptionNameBytes) return "";  // comparing it would take long
  std::vector<std::string> names = absl::StrSplit(others, ' ', absl::SkipEmpty());
  for (const OptionRule& rule : OptionRules()) names.push_back(rule.about->oip_name());
  return DidYouMean(Nearest(name, names));
}

}  // namespace

void MakeIntegers(Json& value) {
  constexpr double kMost = uint64_t{1} << 53;  // to here a double has all whole numbers
  if (value.is_structured()) {
    for (Json& member : value) MakeIntegers(member);
  } else if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (number != std::trunc(number) || std::abs(number) > kMost) return;
    value = number < 0 ? Json(static_cast<int64_t>(number)) : Json(static_cast<uint64_t>(number));
  }
}

absl::Status GenerationOptions::Set(absl::string_view place, absl::string_view name,
                                    const Json& value) {
  const std::string path = Path(place, name);
  if (value.is_null()) return absl::OkStatus();  // the same as no option
  const OptionRule* const rule =
      name.empty() ? nullptr : FindOption(&v1::GenerationOption::oip_name, name);
  if (name == "n") {
    if (Number<uint32_t>(value, lax_) != 1U) return BadField(path, "must be 1");
  } else if (rule == nullptr) {
    return BadField(path, absl::StrCat("there is no such option", Suggestion(name, others_)));
  } else if (name != "top_k" || Number<int32_t>(value, lax_) != -1) {  // -1 is like 0
    AFT_RETURN_IF_ERROR(Apply(*rule, path, value, lax_, message_));
  }
  const auto [before, added] = places_.emplace(name, place);
  if (added) return absl::OkStatus();
  return BadField(path, absl::StrCat("is given as ", Path(before->second, name), " too"));
}

absl::Status GenerationOptions::SetAll(absl::string_view place, absl::string_view json) {
  if (json.size() > kMaxJsonBytes) {
    return BadField(place,
                    absl::StrCat("must have at most ", kMaxJsonBytes, " bytes, got ", json.size()));
  }
  const JsonCheck check = CheckJson(json, kMaxJsonLevels);
  if (check.too_deep) {
    return BadField(place,
                    absl::StrCat("must not be nested deeper than ", kMaxJsonLevels, " levels"));
  }
  Json object;
  ParseJson(json, object);  // null if it is no JSON
  if (check.wrong_byte != 0 || !object.is_object()) {
    return BadField(place, "must be the text of a JSON object");
  }
  if (!check.twice.empty()) {
    return BadField(Path(place, check.TwicePath()), "the key occurs twice");
  }
  MakeIntegers(object);
  for (const auto& [name, value] : object.items()) AFT_RETURN_IF_ERROR(Set(place, name, value));
  return absl::OkStatus();
}

absl::Status GenerationOptions::Rename(const absl::Status& error) const {
  const absl::string_view message = error.message();
  const size_t end = std::min(message.find_first_of(":["), message.size());
  const OptionRule* const rule = FindOption(&v1::GenerationOption::field, message.substr(0, end));
  if (rule == nullptr || rule->about->oip_name().empty()) return error;
  const std::string& name = rule->about->oip_name();
  const auto place = places_.find(name);
  const std::string path = Path(place != places_.end() ? place->second : "", name);
  // No option of these names asks for the log-probabilities of a prompt.
  return absl::Status(error.code(),
                      absl::StrCat(path, absl::StripSuffix(message.substr(end), kZeroTokensHint)));
}

}  // namespace aft::server
