#include "server/api/oip/options.h"

#include <cstdint>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/config/checks.h"

namespace aft::server::kserve {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxJsonBytes = size_t{16} << 10;
constexpr size_t kMaxOptionNameBytes = 64;

// Of a number, or of a string that is one.
template <typename T>
std::optional<T> Number(const Json& value) {
  if constexpr (std::is_floating_point_v<T>) {
    double number = 0;
    if (value.is_number()) return value.get<T>();
    if (value.is_string() && absl::SimpleAtod(value.get_ref<const std::string&>(), &number)) {
      return static_cast<T>(number);
    }
  } else {
    T number = 0;
    if (value.is_string() && absl::SimpleAtoi(value.get_ref<const std::string&>(), &number)) {
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

std::optional<bool> Truth(const Json& value) {
  bool truth = false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string() && absl::SimpleAtob(value.get_ref<const std::string&>(), &truth)) {
    return truth;
  }
  return std::nullopt;
}

// The elements of a list; of what is no list, itself.
template <typename Add>
bool ForEach(const Json& value, Add add) {
  if (!value.is_array()) return add(value);
  for (const Json& element : value) {
    if (!add(element)) return false;
  }
  return true;
}

// The fields of aft.v1 that options set, to be found in errors.
constexpr std::pair<absl::string_view, absl::string_view> kFields[] = {
    {"sampling.temperature", "temperature"},
    {"sampling.top_p", "top_p"},
    {"sampling.min_p", "min_p"},
    {"sampling.repetition_penalty", "repetition_penalty"},
    {"sampling.presence_penalty", "presence_penalty"},
    {"sampling.frequency_penalty", "frequency_penalty"},
    {"sampling.logit_bias", "logit_bias"},
    {"sampling.allowed_tokens", "allowed_token_ids"},
    {"stop.max_tokens", "max_tokens"},
    {"stop.min_tokens", "min_tokens"},
    {"stop.strings", "stop"},
    {"stop.token_ids", "stop_token_ids"},
    {"output.top_logprobs", "logprobs"},
};

std::string Path(absl::string_view place, absl::string_view name) {
  return place.empty() ? std::string(name) : absl::StrCat(place, ".", name);
}

// False: the value is none of the option's type; nullopt: there is no such option.
std::optional<bool> Apply(absl::string_view name, const Json& value, v1::GenerateRequest& message) {
  v1::SamplingOptions& sampling = *message.mutable_sampling();
  v1::StopOptions& stop = *message.mutable_stop();
  const auto number = [&value](auto set) {
    const auto given = Number<float>(value);
    if (given.has_value()) set(*given);
    return given.has_value();
  };
  const auto truth = [&value](auto set) {
    const auto given = Truth(value);
    if (given.has_value()) set(*given);
    return given.has_value();
  };
  const auto whole = [](const Json& from, auto set) {
    const auto given = Number<uint32_t>(from);
    if (given.has_value()) set(*given);
    return given.has_value();
  };
  if (name == "temperature") return number([&](float x) { sampling.set_temperature(x); });
  if (name == "top_p") return number([&](float x) { sampling.set_top_p(x); });
  if (name == "min_p") return number([&](float x) { sampling.set_min_p(x); });
  if (name == "repetition_penalty") {
    return number([&](float x) { sampling.set_repetition_penalty(x); });
  }
  if (name == "presence_penalty") return number([&](float x) { sampling.set_presence_penalty(x); });
  if (name == "frequency_penalty") {
    return number([&](float x) { sampling.set_frequency_penalty(x); });
  }
  if (name == "top_k") {
    if (Number<int32_t>(value) == -1) return true;  // as 0: all
    return whole(value, [&](uint32_t x) { sampling.set_top_k(x); });
  }
  if (name == "seed") {
    const auto seed = Number<uint64_t>(value);
    if (seed.has_value()) sampling.set_seed(*seed);
    return seed.has_value();
  }
  if (name == "max_tokens") return whole(value, [&](uint32_t x) { stop.set_max_tokens(x); });
  if (name == "min_tokens") return whole(value, [&](uint32_t x) { stop.set_min_tokens(x); });
  if (name == "logprobs") {
    return whole(value, [&](uint32_t x) { message.mutable_output()->set_top_logprobs(x); });
  }
  if (name == "n") return Number<uint32_t>(value) == 1U;
  if (name == "ignore_eos") return truth([&](bool x) { stop.set_ignore_eos(x); });
  if (name == "include_stop_str_in_output") {
    return truth([&](bool x) { stop.set_include_stop_string(x); });
  }
  if (name == "stop") {
    return ForEach(value, [&](const Json& text) {
      if (text.is_string()) stop.add_strings(text.get<std::string>());
      return text.is_string();
    });
  }
  if (name == "stop_token_ids") {
    return ForEach(value, [&](const Json& id) {
      return whole(id, [&](uint32_t x) { stop.add_token_ids(x); });
    });
  }
  if (name == "allowed_token_ids") {
    return ForEach(value, [&](const Json& id) {
      return whole(id, [&](uint32_t x) { sampling.add_allowed_tokens(x); });
    });
  }
  if (name == "logit_bias") {
    if (!value.is_object()) return false;
    for (const auto& [key, bias] : value.items()) {
      const auto id = Number<uint32_t>(Json(key));
      const auto added = Number<float>(bias);
      if (!id.has_value() || !added.has_value()) return false;
      if (!sampling.mutable_logit_bias()->insert({*id, *added}).second) return false;
    }
    return true;
  }
  return std::nullopt;
}

}  // namespace

absl::Status GenerationOptions::Set(absl::string_view place, absl::string_view name,
                                    const Json& value) {
  if (name.size() > kMaxOptionNameBytes) {
    return BadField(
        place, absl::StrCat("a name has ", name.size(), " bytes, at most ", kMaxOptionNameBytes));
  }
  const std::string path = Path(place, name);
  if (value.is_null()) return absl::OkStatus();  // not given
  const std::optional<bool> applied = Apply(name, value, message_);
  if (!applied.has_value()) return BadField(path, "there is no such option");
  if (!*applied)
    return BadField(path, absl::StrCat("must not be a ", value.type_name(), " of this value"));
  const auto [before, added] = places_.emplace(name, place);
  if (added) return absl::OkStatus();
  return BadField(path, absl::StrCat("is given as ", Path(before->second, name), " too"));
}

absl::Status GenerationOptions::SetAll(absl::string_view place, absl::string_view json) {
  if (json.size() > kMaxJsonBytes) {
    return BadField(place,
                    absl::StrCat("must have at most ", kMaxJsonBytes, " bytes, got ", json.size()));
  }
  // The parser would keep the last of two equal keys.
  std::set<std::string> keys;
  bool twice = false;
  const auto look = [&](int depth, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::key && depth == 1) {
      twice = !keys.insert(parsed.get<std::string>()).second || twice;
    }
    return true;
  };
  // It takes a NUL for the end of its input.
  const bool cut = json.find('\0') != absl::string_view::npos;
  const Json object = Json::parse(json.begin(), json.end(), look, /*allow_exceptions=*/false);
  if (cut || !object.is_object()) return BadField(place, "must be the text of a JSON object");
  if (twice) return BadField(place, "a key occurs twice");
  for (const auto& [name, value] : object.items()) AFT_RETURN_IF_ERROR(Set(place, name, value));
  return absl::OkStatus();
}

absl::Status GenerationOptions::Rename(const absl::Status& error) const {
  for (const auto& [field, name] : kFields) {
    absl::string_view rest = error.message();
    if (!absl::ConsumePrefix(&rest, field) ||
        !(absl::StartsWith(rest, ":") || absl::StartsWith(rest, "["))) {
      continue;
    }
    const auto place = places_.find(name);
    const std::string path = Path(place != places_.end() ? place->second : "", name);
    return absl::Status(error.code(), absl::StrCat(path, rest));
  }
  return error;
}

}  // namespace aft::server::kserve
