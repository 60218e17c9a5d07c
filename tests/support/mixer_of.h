#ifndef AFT_TESTS_SUPPORT_MIXER_OF_H_
#define AFT_TESTS_SUPPORT_MIXER_OF_H_

#include <string>
#include <utility>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "model/config/mixer_fields.h"
#include "nlohmann/json.hpp"

namespace aft {

// The mixer of a kind with these fields of config.json, the others at their defaults:
// "aft_local window=8 bias=factors bias_rank=3 causal=false". Rules between fields are not checked.
inline MixerConfig MixerOf(absl::string_view kind_and_fields) {
  nlohmann::json json;
  for (const absl::string_view field : absl::StrSplit(kind_and_fields, ' ')) {
    const std::pair<std::string, std::string> entry = absl::StrSplit(field, '=');
    const auto& [key, text] = entry;
    const nlohmann::json value = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (text.empty()) {
      json["kind"] = key;
    } else {
      json[key] = value.is_discarded() ? nlohmann::json(text) : value;
    }
  }
  MixerConfig config;
  AFT_CHECK(ReadMixerConfig(json, &config).ok());
  return config;
}

}  // namespace aft

#endif  // AFT_TESTS_SUPPORT_MIXER_OF_H_
