#include "server/api/aft/option_rules.h"

#include <cstdint>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "server/config/checks.h"

namespace aft::server {
namespace {

using google::protobuf::FieldDescriptor;
using Halves = std::pair<absl::string_view, absl::string_view>;

OptionRule RuleFor(const v1::GenerationOption& about) {
  const Halves names = absl::StrSplit(about.field(), '.');
  OptionRule rule = {.about = &about, .part = nullptr, .field = nullptr, .low = 0, .high = 0};
  rule.field = v1::GenerateRequest::descriptor()->FindFieldByName(std::string(names.first));
  AFT_CHECK(rule.field != nullptr);
  if (!names.second.empty()) {
    rule.part = rule.field;
    rule.field = rule.part->message_type()->FindFieldByName(std::string(names.second));
  }
  AFT_CHECK(rule.field != nullptr);
  if (about.range().empty()) return rule;
  const Halves ends = absl::StrSplit(about.range(), ", ");
  AFT_CHECK(absl::SimpleAtod(ends.first.substr(1), &rule.low));
  AFT_CHECK(absl::SimpleAtod(absl::StripSuffix(ends.second, "]"), &rule.high));
  return rule;
}

// `value` keeps its own type, so that the error shows it as the client gave it.
template <typename Value>
absl::Status CheckRange(const OptionRule& rule, absl::string_view path, Value value) {
  const std::string& range = rule.about->range();
  if (range.empty()) return absl::OkStatus();
  const auto number = static_cast<double>(value);
  // The comparisons are written so that NaN fails.
  const bool low_enough = number <= rule.high;
  const bool high_enough = range.front() == '(' ? number > rule.low : number >= rule.low;
  if (low_enough && high_enough) return absl::OkStatus();
  return BadField(path, absl::StrCat("must be in ", range, ", got ", AsWritten(value)));
}

absl::Status CheckField(const OptionRule& rule, const google::protobuf::Message& part) {
  const google::protobuf::Reflection& reflection = *part.GetReflection();
  const std::string& path = rule.about->field();
  if (rule.field->is_repeated()) {
    return CheckEntries(rule, path, static_cast<size_t>(reflection.FieldSize(part, rule.field)));
  }
  if (!reflection.HasField(part, rule.field)) return absl::OkStatus();
  if (rule.field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    return CheckRange(rule, path, reflection.GetFloat(part, rule.field));
  }
  if (rule.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    return CheckRange(rule, path, reflection.GetUInt32(part, rule.field));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<OptionRule>& OptionRules() {
  static const std::vector<OptionRule>& rules = *[] {
    auto* const all = new std::vector<OptionRule>;
    const auto& options = v1::GenerationOption::descriptor()->file()->options();
    for (const auto& about : options.GetRepeatedExtension(v1::generation_option)) {
      all->push_back(RuleFor(about));
    }
    return all;
  }();
  return rules;
}

const OptionRule* FindOption(OptionName name, absl::string_view value) {
  for (const OptionRule& rule : OptionRules()) {
    if ((rule.about->*name)() == value) return &rule;
  }
  return nullptr;
}

google::protobuf::Message& PartOf(const OptionRule& rule, v1::GenerateRequest& request) {
  if (rule.part == nullptr) return request;
  return *request.GetReflection()->MutableMessage(&request, rule.part);
}

absl::Status CheckEntries(const OptionRule& rule, absl::string_view path, size_t entries) {
  const uint32_t most = rule.about->max_entries();
  if (entries <= most) return absl::OkStatus();
  return BadField(path, absl::StrCat("must have at most ", most, " entries, got ", entries));
}

absl::Status CheckOptions(const google::protobuf::Message& part) {
  for (const OptionRule& rule : OptionRules()) {
    if (rule.field->containing_type() == part.GetDescriptor()) {
      AFT_RETURN_IF_ERROR(CheckField(rule, part));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMapped(absl::string_view option, absl::string_view path, float value) {
  return CheckRange(*FindOption(&v1::GenerationOption::field, option), path, value);
}

}  // namespace aft::server
