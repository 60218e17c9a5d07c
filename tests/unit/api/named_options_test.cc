// Tests every option that aft/v1/generation_options.proto describes, through both protocols.

#include "server/api/aft/named_options.h"

#include <cmath>
#include <fstream>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/option_rules.h"
#include "tests/unit/api/decode.h"

namespace aft::server {
namespace {

using google::protobuf::FieldDescriptor;
using Json = nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kPlace[] = "sampling_parameters";

absl::Status Decoded(v1::GenerateRequest message) {
  message.set_text("x");
  return Decode<GenerateCodec>(message).status();
}

// Returns the status of a request of the Open Inference Protocol with this option.
absl::Status DecodedFromJson(const OptionRule& rule, const Json& value) {
  GenerationOptions options;
  const absl::Status set = options.SetAll(kPlace, Json({{rule.about->oip_name(), value}}).dump());
  return set.ok() ? options.Rename(Decoded(options.message())) : set;
}

// Sets the option of `rule` to `value`, or to a list or map with `entries` equal values.
v1::GenerateRequest With(const OptionRule& rule, double value, int entries = 1) {
  v1::GenerateRequest message;
  auto& part = PartOf(rule, message);
  const auto& reflection = *part.GetReflection();
  const FieldDescriptor* const field = rule.field;
  const bool is_float = field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT;
  if (!field->is_repeated()) {
    is_float ? reflection.SetFloat(&part, field, static_cast<float>(value))
             : reflection.SetUInt32(&part, field, static_cast<uint32_t>(value));
  }
  for (int i = 0; field->is_repeated() && i < entries; ++i) {
    if (field->is_map()) {
      auto& biases = *message.mutable_sampling()->mutable_logit_bias();
      biases[static_cast<uint32_t>(i)] = static_cast<float>(value);
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      reflection.AddString(&part, field, "s");
    } else {
      reflection.AddUInt32(&part, field, static_cast<uint32_t>(value));
    }
  }
  return message;
}

// The value of the option that With sets, as JSON. JSON has no number for infinity and NaN, which
// are strings here.
Json JsonOf(const OptionRule& rule, double value, int entries = 1) {
  const Json number = std::isfinite(value) ? Json(value) : Json(absl::StrCat(value));
  const bool whole = rule.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
  const Json one = rule.field->cpp_type() == FieldDescriptor::CPPTYPE_STRING ? Json("s")
                   : whole ? Json(static_cast<uint32_t>(value))
                           : number;
  if (!rule.field->is_repeated()) return one;
  Json all = rule.field->is_map() ? Json::object() : Json::array();
  for (int i = 0; i < entries; ++i) {
    rule.field->is_map() ? void(all[absl::StrCat(i)] = number) : all.push_back(one);
  }
  return all;
}

TEST(OptionsTest, EveryFieldIsDescribedOnceAndNoNameStandsForTwo) {
  std::set<const FieldDescriptor*> described;
  std::set<std::string> flags;
  std::set<std::string> oip_names;
  for (const OptionRule& rule : OptionRules()) {
    EXPECT_TRUE(described.insert(rule.field).second) << rule.about->field();
    EXPECT_TRUE(flags.insert(rule.about->flag()).second) << rule.about->field();
    const std::string& name = rule.about->oip_name();
    EXPECT_TRUE(name.empty() || oip_names.insert(name).second) << name;
    EXPECT_FALSE(rule.about->help().empty()) << rule.about->field();
    EXPECT_EQ(rule.field->is_repeated(), rule.about->has_max_entries()) << rule.about->field();
  }
  size_t fields = 3;  // cache_salt, initial_state, prompt_logprobs
  for (const auto* part : {v1::SamplingOptions::descriptor(), v1::StopOptions::descriptor(),
                           v1::OutputOptions::descriptor()}) {
    fields += static_cast<size_t>(part->field_count());
  }
  EXPECT_EQ(described.size(), fields);
  EXPECT_EQ(FindOption(&v1::GenerationOption::field, "output.top_logprobs")->high, kMaxTopLogprobs);
}

TEST(OptionsTest, BothProtocolsAcceptANumberOnlyInItsRange) {
  int ranges = 0;
  for (const OptionRule& rule : OptionRules()) {
    if (rule.about->range().empty()) continue;
    ++ranges;
    const bool is_whole = rule.field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32;
    const auto low = static_cast<float>(rule.low);
    const auto high = static_cast<float>(rule.high);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const bool above_low = rule.about->range().front() == '(';
    std::vector<float> inside = {high, std::floor((low + high) / 2), low};
    std::vector<float> outside = {high + 1};
    if (!is_whole) {
      inside[1] = low + (high - low) / 3;
      inside[2] = above_low ? std::nextafter(low, high) : low;
      const float beyond = above_low ? low : std::nextafter(low, -kInfinity);
      outside = {beyond,    std::nextafter(high, kInfinity), low - 1, high + 1, NAN, kInfinity,
                 -kInfinity};
    }
    const std::string entry = rule.field->is_map() ? "[0]" : "";
    const auto refusal = [&](const std::string& path, float value) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, entry, ": must be in ", rule.about->range(), ", got ", AsWritten(value)));
    };
    for (const float value : inside) {
      EXPECT_EQ(Decoded(With(rule, value)), absl::OkStatus()) << rule.about->field();
      EXPECT_EQ(DecodedFromJson(rule, JsonOf(rule, value)), absl::OkStatus());
    }
    for (const float value : outside) {
      EXPECT_EQ(Decoded(With(rule, value)), refusal(rule.about->field(), value));
      EXPECT_EQ(DecodedFromJson(rule, JsonOf(rule, value)),
                refusal(absl::StrCat(kPlace, ".", rule.about->oip_name()), value));
    }
  }
  EXPECT_GE(ranges, 8);
}

TEST(OptionsTest, ARefusalShowsTheNumberWithAllItsDigits) {
  const OptionRule& rule = *FindOption(&v1::GenerationOption::field, "sampling.top_p");
  EXPECT_EQ(Decoded(With(rule, 1.0000001F)),
            absl::InvalidArgumentError("sampling.top_p: must be in (0, 1], got 1.0000001"));
}

TEST(OptionsTest, BothProtocolsLimitTheNumberOfEntriesOfAList) {
  for (const OptionRule& rule : OptionRules()) {
    if (!rule.field->is_repeated()) continue;
    const auto most = static_cast<int>(rule.about->max_entries());
    const std::string reason =
        absl::StrCat(": must have at most ", most, " entries, got ", most + 1);
    // Other rules may refuse a list that this rule accepts: the vocabulary has 257 tokens.
    EXPECT_THAT(Decoded(With(rule, 1, most)).message(), Not(HasSubstr("must have at most")));
    EXPECT_EQ(Decoded(With(rule, 1, most + 1)),
              absl::InvalidArgumentError(rule.about->field() + reason));
    if (rule.about->oip_name().empty()) continue;
    EXPECT_THAT(DecodedFromJson(rule, JsonOf(rule, 1, most)).message(),
                Not(HasSubstr("must have at most")));
    EXPECT_EQ(
        DecodedFromJson(rule, JsonOf(rule, 1, most + 1)),
        absl::InvalidArgumentError(absl::StrCat(kPlace, ".", rule.about->oip_name(), reason)));
    GenerationOptions options;  // it makes no message of a list that is too long
    EXPECT_EQ(options.Set("", rule.about->oip_name(), JsonOf(rule, 1, most + 1)),
              absl::InvalidArgumentError(rule.about->oip_name() + reason));
    EXPECT_EQ(options.message().ShortDebugString(), "");
  }
}

// `values` has a JSON value for each type, and the value of the field that the parser must make of
// it, as text proto.
TEST(OptionsTest, ANameOfTheOpenInferenceProtocolSetsItsField) {
  const std::pair<FieldDescriptor::CppType, std::pair<Json, std::string>> values[] = {
      {FieldDescriptor::CPPTYPE_FLOAT, {0.5, "0.5"}},
      {FieldDescriptor::CPPTYPE_UINT32, {"3", "3"}},
      {FieldDescriptor::CPPTYPE_UINT64, {~uint64_t{0}, "18446744073709551615"}},
      {FieldDescriptor::CPPTYPE_BOOL, {true, "true"}},
      {FieldDescriptor::CPPTYPE_STRING, {"s", "\"s\""}},
      {FieldDescriptor::CPPTYPE_MESSAGE, {{{"7", -1.5}}, "{ key: 7 value: -1.5 }"}}};
  for (const OptionRule& rule : OptionRules()) {
    if (rule.about->oip_name().empty()) continue;
    for (const auto& [type, value] : values) {
      if (type != rule.field->cpp_type()) continue;
      GenerationOptions options;
      EXPECT_EQ(options.Set("", rule.about->oip_name(), value.first), absl::OkStatus());
      const char* const colon = type == FieldDescriptor::CPPTYPE_MESSAGE ? " " : ": ";
      std::string expected = absl::StrCat(rule.field->name(), colon, value.second);
      if (rule.part != nullptr) expected = absl::StrCat(rule.part->name(), " { ", expected, " }");
      EXPECT_EQ(options.message().ShortDebugString(), expected);
      EXPECT_EQ(options.Set("", rule.about->oip_name(), Json::object({{"x", "y"}})).code(),
                absl::StatusCode::kInvalidArgument);
    }
  }
  GenerationOptions options;
  EXPECT_EQ(options.Set("", "", 1), absl::InvalidArgumentError(": there is no such option"));
  EXPECT_EQ(options.Set("", "echo", true),
            absl::InvalidArgumentError("echo: there is no such option"));
  EXPECT_EQ(
      options.Set("", "tempature", 1),
      absl::InvalidArgumentError("tempature: there is no such option; did you mean temperature?"));
  EXPECT_EQ(options.SetAll("all", R"({"top_k": 2.0})"), absl::OkStatus());
  EXPECT_EQ(options.message().sampling().top_k(), 2U);
  // Above 2^53 a double may be a rounded number.
  EXPECT_EQ(
      options.SetAll("all", R"({"seed": 1e18})"),
      absl::InvalidArgumentError("all.seed: must be an integer from 0 to 18446744073709551615"));
  const auto nested = [](size_t levels) {
    return "{\"a\": " + std::string(levels - 1, '[') + std::string(levels - 1, ']') + "}";
  };
  EXPECT_EQ(options.SetAll("all", nested(33)),
            absl::InvalidArgumentError("all: must not be nested deeper than 32 levels"));
  EXPECT_EQ(options.SetAll("all", nested(32)),
            absl::InvalidArgumentError("all.a: there is no such option"));
  EXPECT_EQ(options.SetAll("all", R"({"": 1, "": 2})"),
            absl::InvalidArgumentError("all.\"\": the key occurs twice"));
  GenerationOptions strict(/*lax=*/false);
  EXPECT_EQ(strict.Set("", "seed", "3"),
            absl::InvalidArgumentError("seed: must be an integer from 0 to 18446744073709551615"));
}

// If this fails, put the table that the test expects into docs/api.md.
TEST(OptionsTest, TheTableInTheApiGuideIsCurrent) {
  std::string table;
  for (const OptionRule& rule : OptionRules()) {
    const v1::GenerationOption& about = *rule.about;
    std::vector<std::string> limits;
    if (about.has_max_entries()) limits.push_back(absl::StrCat("at most ", about.max_entries()));
    if (!about.range().empty()) limits.push_back(about.range());
    const std::string name = about.oip_name().empty() ? "" : "`" + about.oip_name() + "`";
    absl::StrAppend(&table, "| `", about.field(), "` | ", absl::StrJoin(limits, ", each in "),
                    " | ", about.unset(), " | ", name, " | `", about.flag(), "` | ", about.help(),
                    " |\n");
  }
  std::ifstream file("docs/api.md");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  const size_t begin = page.find("| `stop.");
  ASSERT_NE(begin, std::string::npos);
  EXPECT_EQ(page.substr(begin, page.find("\n\n", begin) + 1 - begin), table);
}

}  // namespace
}  // namespace aft::server
