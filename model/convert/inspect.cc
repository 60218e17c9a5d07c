#include "model/convert/inspect.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/tensors.h"
#include "model/mixers/mixer.h"
#include "model/network/check_tensors.h"
#include "model/state/state_pool.h"
#include "model/tokenizer/tokenizers.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

// The first layer's tables: all layers' mixers have the same config, and so the same state.
MixerTables Tables(const Checkpoint& checkpoint) {
  MixerTables tables;
  for (const TensorSpec& spec :
       ExpectedMixerTables(checkpoint.config.mixer, MixerWidth(checkpoint.config))) {
    tables[spec.name] = checkpoint.tensors.at(absl::StrCat("layers.0.mixer.", spec.name));
  }
  return tables;
}

absl::Status MeasureState(const Checkpoint& checkpoint, Inspection* inspection) {
  const NetworkConfig& config = checkpoint.config;
  if (!config.mixer.causal || config.architecture == Architecture::kEncoder) {
    return absl::OkStatus();
  }
  AFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<Mixer> mixer,
      MakeMixer(config.mixer, MixerWidth(config), Tables(checkpoint), {config.max_seq_len}));
  const StateSpec spec = mixer->state_spec();
  inspection->state_bytes =
      StatePool::SlotBytes(std::vector<StateSpec>(static_cast<size_t>(config.n_layers), spec));
  inspection->state_bytes_per_token =
      spec.floats_per_token * config.n_layers * static_cast<int64_t>(sizeof(float));
  return absl::OkStatus();
}

// 1234567 as "1,234,567".
std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string Bytes(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  const char* unit = "KiB";
  auto scaled = static_cast<double>(bytes) / 1024;
  for (const char* larger : {"MiB", "GiB"}) {
    if (scaled < 1024) break;
    scaled /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%s bytes (%.1f %s)", Grouped(bytes), scaled, unit);
}

// config.json, whose names are the ones to show; defaults are left out.
nlohmann::ordered_json ConfigJson(const NetworkConfig& config) {
  return nlohmann::ordered_json::parse(FormatNetworkConfig(config));
}

std::string MixerText(const NetworkConfig& config) {
  std::vector<std::string> parts;
  const nlohmann::ordered_json mixer = ConfigJson(config).at("mixer");
  for (const auto& [key, value] : mixer.items()) {
    parts.push_back(
        key == "kind"
            ? value.get<std::string>()
            : absl::StrCat(key, " ", value.is_string() ? value.get<std::string>() : value.dump()));
  }
  return absl::StrJoin(parts, ", ");
}

std::string LengthText(const NetworkConfig& config) {
  std::string limit = config.max_seq_len == 0
                          ? std::string("unlimited")
                          : absl::StrCat("at most ", Grouped(config.max_seq_len), " tokens");
  if (config.mixer.band_rows == 0) return limit;
  switch (config.mixer.length_policy) {
    case LengthPolicy::kError:
      return absl::StrCat(limit, "; longer texts are refused, generation ends there");
    case LengthPolicy::kClamp:
      return absl::StrCat(limit, "; beyond position ", Grouped(config.mixer.band_rows),
                          " the last position's biases hold");
    case LengthPolicy::kZero:
      return absl::StrCat(limit, "; beyond position ", Grouped(config.mixer.band_rows),
                          " there is no bias");
  }
  return limit;
}

std::string StateText(const Inspection& inspection) {
  if (inspection.state_bytes == 0) return "none: whole texts at once";
  if (inspection.state_bytes_per_token == 0) {
    return absl::StrCat(Bytes(inspection.state_bytes), " per sequence, whatever its length");
  }
  return absl::StrCat(
      Bytes(inspection.state_bytes), " per sequence: ", Grouped(inspection.state_bytes_per_token),
      " per token of context, for ", Grouped(inspection.config.max_seq_len), " tokens");
}

std::string TokenizerText(const Inspection& inspection) {
  if (inspection.tokenizer_size == 0) return "none";
  return absl::StrCat(inspection.config.tokenizer, ", ", Grouped(inspection.tokenizer_size),
                      " tokens, ",
                      inspection.eos_id < 0 ? std::string("no end of text")
                                            : absl::StrCat("end of text ", inspection.eos_id));
}

}  // namespace

absl::StatusOr<Inspection> Inspect(const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(const Checkpoint checkpoint, ReadCheckpoint(dir));
  AFT_RETURN_IF_ERROR(InFile(absl::StrCat(dir, "/", kWeightsFileName),
                             CheckTensors(checkpoint.config, checkpoint.tensors)));
  Inspection inspection;
  inspection.config = checkpoint.config;
  inspection.parameters = CountParameters(checkpoint.config);
  for (const auto& [name, tensor] : checkpoint.tensors) {
    inspection.weight_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  AFT_RETURN_IF_ERROR(MeasureState(checkpoint, &inspection));
  if (!checkpoint.config.tokenizer.empty()) {
    AFT_ASSIGN_OR_RETURN(
        const std::shared_ptr<const Tokenizer> tokenizer,
        LoadTokenizer(checkpoint.config.tokenizer, dir, checkpoint.config.vocab_size));
    inspection.tokenizer_size = tokenizer->vocab_size();
    inspection.eos_id = tokenizer->eos_id();
  }
  return inspection;
}

std::string InspectionText(const Inspection& inspection) {
  const NetworkConfig& config = inspection.config;
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-13s %s\n", name, value);
  };
  line("architecture", ConfigJson(config).at("architecture"));
  line("layers", absl::StrCat(config.n_layers));
  std::string widths = absl::StrCat("model ", config.d_model, ", mixer ", MixerWidth(config));
  if (config.architecture != Architecture::kMixer) {
    absl::StrAppend(&widths, ", feed-forward ", config.d_ff, ", vocabulary ", config.vocab_size);
  }
  line("widths", widths);
  line("mixer", MixerText(config));
  line("parameters", Grouped(inspection.parameters));
  line("weights", Bytes(inspection.weight_bytes));
  line("state", StateText(inspection));
  line("length", LengthText(config));
  line("tokenizer", TokenizerText(inspection));
  return text;
}

std::string InspectionJson(const Inspection& inspection) {
  const NetworkConfig& config = inspection.config;
  const nlohmann::ordered_json stored = ConfigJson(config);
  nlohmann::ordered_json json;
  json["architecture"] = stored.at("architecture");
  json["n_layers"] = config.n_layers;
  json["d_model"] = config.d_model;
  json["mixer_width"] = MixerWidth(config);
  json["d_ff"] = config.d_ff;
  json["vocab_size"] = config.vocab_size;
  json["mixer"] = stored.at("mixer");
  json["parameters"] = inspection.parameters;
  json["weight_bytes"] = inspection.weight_bytes;
  json["state_bytes_per_sequence"] = inspection.state_bytes;
  json["state_bytes_per_token"] = inspection.state_bytes_per_token;
  json["max_seq_len"] = config.max_seq_len == 0 ? nlohmann::ordered_json()
                                                : nlohmann::ordered_json(config.max_seq_len);
  json["length_policy"] = stored.at("mixer").value("length_policy", "error");
  if (inspection.tokenizer_size == 0) {
    json["tokenizer"] = nullptr;
  } else {
    json["tokenizer"]["kind"] = config.tokenizer;
    json["tokenizer"]["vocab_size"] = inspection.tokenizer_size;
    json["tokenizer"]["eos_id"] = inspection.eos_id < 0 ? nlohmann::ordered_json()
                                                        : nlohmann::ordered_json(inspection.eos_id);
  }
  return json.dump(2) + "\n";
}

}  // namespace aft
