#include "model/convert/inspect.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/in_file.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/tensors.h"
#include "model/network/check_tensors.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Formats 1234567 as "1,234,567".
std::string Grouped(int64_t number) {
  const std::string digits = absl::StrCat(number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

// Formats bytes as "1.5 MiB".
std::string Rounded(int64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " bytes");
  const char* unit = "KiB";
  auto scaled = static_cast<double>(bytes) / 1024;
  for (const char* larger : {"MiB", "GiB"}) {
    if (scaled < 1024) break;
    scaled /= 1024;
    unit = larger;
  }
  return absl::StrFormat("%.1f %s", scaled, unit);
}

std::string Bytes(int64_t bytes) {
  const std::string rounded = Rounded(bytes);
  return bytes < 1024 ? rounded : absl::StrCat(Grouped(bytes), " bytes (", rounded, ")");
}

std::string MixerText(const OrderedJson& mixer) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : mixer.items()) {
    const std::string text = value.is_string() ? value.get<std::string>() : DumpJson(value);
    parts.push_back(key == "kind" ? text : absl::StrCat(key, " ", text));
  }
  return absl::StrJoin(parts, ", ");
}

std::string LengthText(const OrderedJson& inspection) {
  const OrderedJson& length = inspection["max_seq_len"];
  const std::string limit =
      length.is_null() ? "unlimited" : absl::StrCat("at most ", Grouped(length), " tokens");
  const int64_t rows = inspection["mixer"].value("band_rows", int64_t{0});
  if (rows == 0) return limit;
  const std::string policy = inspection["length_policy"];
  if (policy == "error") {
    const bool generates = inspection["architecture"] == "decoder_lm";
    return absl::StrCat(limit, "; longer texts are refused",
                        generates ? ", generation ends there" : "");
  }
  return absl::StrCat(limit, "; beyond position ", Grouped(rows),
                      policy == "clamp" ? " the last position's biases hold" : " there is no bias");
}

std::string StateText(const OrderedJson& inspection) {
  const int64_t bytes = inspection["state_bytes_per_sequence"];
  const int64_t per_token = inspection["state_bytes_per_token"];
  if (bytes == 0) return "none: whole texts at once";
  if (per_token == 0) return absl::StrCat(Bytes(bytes), " per sequence, whatever its length");
  return absl::StrCat(Bytes(bytes), " per sequence: ", Grouped(per_token),
                      " per token of context, for ", Grouped(inspection["max_seq_len"]), " tokens");
}

std::string TokenizerText(const OrderedJson& tokenizer) {
  if (tokenizer.is_null()) return "none";
  const OrderedJson& eos = tokenizer["eos_id"];
  return absl::StrCat(
      tokenizer["kind"].get<std::string>(), ", ", Grouped(tokenizer["vocab_size"]), " tokens, ",
      eos.is_null() ? "no end of text" : absl::StrCat("end of text ", DumpJson(eos)));
}

// The resources that serving the model takes, with a column for each format of weights.
std::string SizingText(const OrderedJson& inspection) {
  const OrderedJson& sizing = inspection["sizing"];
  const int64_t slots = sizing["slots"];
  std::string text;
  absl::StrAppendFormat(&text, "%-13s %s floating-point operations\n", "a token",
                        Grouped(sizing["flops_per_token"]));
  const int64_t moved = sizing["state_traffic_per_token"];
  if (moved > 0) {
    absl::StrAppendFormat(
        &text, "%-13s %s of its state and scratch (%s), at %s tokens\n", "  moves", Rounded(moved),
        Rounded(inspection["scratch_bytes_per_sequence"]), Grouped(sizing["context"]));
  }
  const auto row = [&](const std::string& name, auto cell) {
    absl::StrAppendFormat(&text, "%-13s", name);
    for (const auto& [format, size] : sizing["formats"].items()) {
      absl::StrAppendFormat(&text, " %12s", cell(format, size));
    }
  };
  const auto bytes = [&](const std::string& name, const char* key, const std::string& note = "") {
    row(name, [&](const std::string&, const OrderedJson& size) { return Rounded(size[key]); });
    absl::StrAppend(&text, note, "\n");
  };
  row("served as", [](const std::string& format, const OrderedJson&) { return format; });
  absl::StrAppend(&text, "\n");
  bytes("  weights", "weight_bytes");
  bytes("  every step", "step_bytes", "  of them");
  bytes("  workspace", "workspace_bytes",
        absl::StrCat("  ", Grouped(sizing["tokens_at_once"]), " tokens at once, ",
                     Grouped(sizing["threads"]), sizing["threads"] == 1 ? " thread" : " threads"));
  bytes("  memory", "memory_bytes",
        slots == 0 ? "  of all" : absl::StrCat("  of all, with ", Grouped(slots), " slots"));
  const OrderedJson& first = sizing["formats"]["fp32"];
  if (!first.contains("tokens_per_second")) return text;
  for (const auto& [streams, rate] : first["tokens_per_second"].items()) {
    row(absl::StrCat("  ", streams, streams == "1" ? " stream" : " streams"),
        [&streams = streams](const std::string&, const OrderedJson& size) {
          return Grouped(static_cast<int64_t>(size["tokens_per_second"][streams].get<double>()));
        });
    absl::StrAppend(&text, "  tokens/s at most\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<OrderedJson> Inspect(const std::string& dir, const SizingOptions& options) {
  AFT_ASSIGN_OR_RETURN(const CheckpointFile checkpoint, OpenCheckpoint(dir));
  const NetworkConfig& config = checkpoint.config;
  AFT_RETURN_IF_ERROR(InFile(absl::StrCat(dir, "/", kWeightsFileName),
                             CheckTensors(config, checkpoint.tensors).status()));
  // The config as the file has it: without keys at their defaults.
  const OrderedJson stored = OrderedJson::parse(FormatNetworkConfig(config));
  OrderedJson inspection = {{"architecture", stored.at("architecture")},
                            {"n_layers", config.n_layers},
                            {"d_model", config.d_model},
                            {"mixer_width", MixerWidth(config)},
                            {"d_ff", config.d_ff},
                            {"vocab_size", config.vocab_size},
                            {"mixer", stored.at("mixer")},
                            {"parameters", CountParameters(config)},
                            {"weight_format", NumberName(checkpoint.weight_format)},
                            {"weight_bytes", checkpoint.weight_bytes}};
  AFT_ASSIGN_OR_RETURN(const auto states, FindStateFiles(dir));
  AFT_ASSIGN_OR_RETURN(const OrderedJson sizes,
                       Size(checkpoint, options, static_cast<int64_t>(states.size())));
  inspection.update(sizes);
  inspection["max_seq_len"] =
      config.max_seq_len == 0 ? OrderedJson() : OrderedJson(config.max_seq_len);
  inspection["length_policy"] = stored.at("mixer").value("length_policy", "error");
  for (const auto& [name, path] : states) {
    AFT_RETURN_IF_ERROR(ReadStateFile(path, config).status());
    inspection["initial_states"].push_back(name);
  }
  inspection["tokenizer"] = nullptr;
  if (!config.tokenizer.empty()) {
    AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                         LoadTokenizer(config.tokenizer, dir, config.vocab_size));
    const int32_t eos_id = tokenizer->eos_id();
    inspection["tokenizer"] = {{"kind", config.tokenizer},
                               {"vocab_size", tokenizer->vocab_size()},
                               {"eos_id", eos_id < 0 ? OrderedJson() : OrderedJson(eos_id)}};
  }
  return inspection;
}

std::string InspectionText(const OrderedJson& inspection) {
  std::string text;
  const auto line = [&text](const char* name, const std::string& value) {
    absl::StrAppendFormat(&text, "%-13s %s\n", name, value);
  };
  const auto number = [&inspection](const char* key) { return DumpJson(inspection[key]); };
  line("architecture", inspection["architecture"]);
  line("layers", number("n_layers"));
  std::string widths = absl::StrCat("model ", number("d_model"), ", mixer ", number("mixer_width"));
  if (inspection["architecture"] != "mixer") {
    absl::StrAppend(&widths, ", feed-forward ", number("d_ff"), ", vocabulary ",
                    number("vocab_size"));
  }
  line("widths", widths);
  line("mixer", MixerText(inspection["mixer"]));
  line("parameters", Grouped(inspection["parameters"]));
  line("weights", absl::StrCat(inspection["weight_format"].get<std::string>(), ", ",
                               Bytes(inspection["weight_bytes"])));
  line("state", StateText(inspection));
  line("length", LengthText(inspection));
  line("tokenizer", TokenizerText(inspection["tokenizer"]));
  if (inspection.contains("initial_states")) {
    line("tuned states",
         absl::StrJoin(inspection["initial_states"].get<std::vector<std::string>>(), ", "));
  }
  return absl::StrCat(text, SizingText(inspection));
}

}  // namespace aft
