#pragma once

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "model/config/mixer_fields.h"
#include "nlohmann/json.hpp"

namespace aft {

// The "mixer" object of config.json for a kind and fields in this form:
// "aft_local window=8 bias=factors bias_rank=3 causal=false".
inline nlohmann::ordered_json MixerJson(absl::string_view kind_and_fields) {
  nlohmann::ordered_json json;
  for (const absl::string_view field : absl::StrSplit(kind_and_fields, ' ')) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(field, '=');
    const auto& [key, text] = entry;
    if (text.empty()) {
      json["kind"] = key;
      continue;
    }
    json[key] = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json[key].is_discarded()) json[key] = text;
  }
  return json;
}

// The mixer that such a text describes. Rules between fields are not checked.
inline MixerConfig MixerOf(absl::string_view kind_and_fields) {
  MixerConfig config;
  AFT_CHECK(ReadMixerConfig(MixerJson(kind_and_fields), &config).ok());
  return config;
}

}  // namespace aft
