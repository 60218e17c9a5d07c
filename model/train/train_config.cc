#include "model/train/train_config.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// Moves key's value into `field` when present; erases the key, so that leftovers are unknown keys.
template <typename T>
absl::Status Take(Json& object, const char* key, T& field) {
  const auto it = object.find(key);
  if (it == object.end()) return absl::OkStatus();
  const bool fits = std::is_same_v<T, bool>          ? it->is_boolean()
                    : std::is_integral_v<T>          ? it->is_number_integer()
                    : std::is_floating_point_v<T>    ? it->is_number()
                    : std::is_same_v<T, std::string> ? it->is_string()
                                                     : it->is_array();
  if (!fits) return absl::InvalidArgumentError(absl::StrCat(key, ": wrong type"));
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    for (const Json& element : *it) {
      if (!element.is_string()) {
        return absl::InvalidArgumentError(absl::StrCat(key, ": must be a list of strings"));
      }
    }
  }
  field = it->get<T>();
  object.erase(it);
  return absl::OkStatus();
}

absl::Status Require(bool condition, absl::string_view message) {
  return condition ? absl::OkStatus() : absl::InvalidArgumentError(message);
}

absl::Status TakeCommon(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "held_out", config.held_out));
  AFT_RETURN_IF_ERROR(Take(object, "batch", config.batch));
  AFT_RETURN_IF_ERROR(Take(object, "learning_rate", config.learning_rate));
  AFT_RETURN_IF_ERROR(Take(object, "warmup_steps", config.warmup_steps));
  AFT_RETURN_IF_ERROR(Take(object, "beta1", config.beta1));
  AFT_RETURN_IF_ERROR(Take(object, "beta2", config.beta2));
  AFT_RETURN_IF_ERROR(Take(object, "weight_decay", config.weight_decay));
  AFT_RETURN_IF_ERROR(Take(object, "clip_norm", config.clip_norm));
  AFT_RETURN_IF_ERROR(Take(object, "weight_spread", config.weight_spread));
  AFT_RETURN_IF_ERROR(Take(object, "dropout", config.dropout));
  AFT_RETURN_IF_ERROR(Take(object, "bf16", config.bf16));
  AFT_RETURN_IF_ERROR(Take(object, "seed", config.seed));
  AFT_RETURN_IF_ERROR(Take(object, "threads", config.threads));
  AFT_RETURN_IF_ERROR(
      Require(config.held_out > 0 && config.held_out < 0.5, "held_out: must be in (0, 0.5)"));
  AFT_RETURN_IF_ERROR(Require(config.batch >= 1, "batch: must be at least 1"));
  AFT_RETURN_IF_ERROR(Require(config.learning_rate > 0, "learning_rate: must be positive"));
  AFT_RETURN_IF_ERROR(Require(config.warmup_steps >= 0, "warmup_steps: must not be negative"));
  AFT_RETURN_IF_ERROR(Require(config.beta1 >= 0 && config.beta1 < 1, "beta1: must be in [0, 1)"));
  AFT_RETURN_IF_ERROR(Require(config.beta2 >= 0 && config.beta2 < 1, "beta2: must be in [0, 1)"));
  AFT_RETURN_IF_ERROR(Require(config.weight_decay >= 0, "weight_decay: must not be negative"));
  AFT_RETURN_IF_ERROR(Require(config.clip_norm > 0, "clip_norm: must be positive"));
  AFT_RETURN_IF_ERROR(Require(config.weight_spread > 0, "weight_spread: must be positive"));
  AFT_RETURN_IF_ERROR(
      Require(config.dropout >= 0 && config.dropout < 1, "dropout: must be in [0, 1)"));
  return Require(config.threads >= 0, "threads: must not be negative");
}

absl::Status TakeImages(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "images", config.images));
  AFT_RETURN_IF_ERROR(Take(object, "image_width", config.image_width));
  AFT_RETURN_IF_ERROR(Take(object, "epochs", config.epochs));
  AFT_RETURN_IF_ERROR(Take(object, "shift", config.shift));
  AFT_RETURN_IF_ERROR(Take(object, "noise", config.noise));
  AFT_RETURN_IF_ERROR(Require(!config.images.empty(), "images: name a file"));
  AFT_RETURN_IF_ERROR(Require(config.image_width >= 1, "image_width: must be at least 1"));
  AFT_RETURN_IF_ERROR(Require(config.epochs >= 1, "epochs: must be at least 1"));
  AFT_RETURN_IF_ERROR(Require(config.shift >= 0 && config.shift < config.image_width,
                              "shift: must be in [0, image_width)"));
  return Require(config.noise >= 0 && config.noise < config.network.vocab_size,
                 "noise: must be in [0, network.vocab_size)");
}

absl::Status TakeTexts(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "texts", config.texts));
  AFT_RETURN_IF_ERROR(Take(object, "segment", config.segment));
  AFT_RETURN_IF_ERROR(Take(object, "total_tokens", config.total_tokens));
  AFT_RETURN_IF_ERROR(Take(object, "restart_probability", config.restart_probability));
  AFT_RETURN_IF_ERROR(Take(object, "eval_every_steps", config.eval_every_steps));
  AFT_RETURN_IF_ERROR(Take(object, "eval_tokens", config.eval_tokens));
  AFT_RETURN_IF_ERROR(Take(object, "tokenizer", config.tokenizer));
  const std::string& kind = config.network.tokenizer;
  AFT_RETURN_IF_ERROR(
      Require(config.tokenizer.empty() || kind != "bytes",
              "tokenizer: must be absent with the network's tokenizer.kind \"bytes\""));
  AFT_RETURN_IF_ERROR(Require(kind != "bpe" || config.network.vocab_size >= 256,
                              "network.vocab_size: a \"bpe\" tokenizer needs at least 256"));
  AFT_RETURN_IF_ERROR(Require(!config.texts.empty(), "texts: name at least one file"));
  AFT_RETURN_IF_ERROR(CheckSegment(config.segment, config.network));
  AFT_RETURN_IF_ERROR(Require(config.total_tokens >= 1, "total_tokens: must be at least 1"));
  AFT_RETURN_IF_ERROR(Require(config.restart_probability > 0 && config.restart_probability <= 1,
                              "restart_probability: must be in (0, 1]"));
  AFT_RETURN_IF_ERROR(
      Require(config.eval_every_steps >= 1, "eval_every_steps: must be at least 1"));
  return Require(config.eval_tokens >= config.segment, "eval_tokens: must be at least one segment");
}

absl::StatusOr<TrainConfig> Parse(Json object) {
  if (!object.is_object()) return absl::InvalidArgumentError("not a JSON object");
  TrainConfig config;
  const auto network = object.find("network");
  if (network == object.end()) return absl::InvalidArgumentError("network: missing");
  auto parsed = ParseNetworkConfig(network->dump());
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("network.", parsed.status().message()));
  }
  config.network = *std::move(parsed);
  object.erase(network);

  const bool images = config.network.mixer.grid && !config.network.labels.empty();
  AFT_RETURN_IF_ERROR(Require(images || config.network.architecture == Architecture::kDecoderLm,
                              "network.architecture: must be \"decoder_lm\", or \"encoder\" with "
                              "labels and mixer.grid"));
  AFT_RETURN_IF_ERROR(TakeCommon(object, config));
  AFT_RETURN_IF_ERROR(images ? TakeImages(object, config) : TakeTexts(object, config));
  if (!object.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(object.begin().key(), ": unknown key"));
  }
  return config;
}

}  // namespace

absl::Status CheckSegment(int64_t segment, const NetworkConfig& network) {
  constexpr int64_t kMost = int64_t{1} << 24;
  const int64_t block = network.mixer.prefix_block;
  const int64_t longest = network.max_seq_len;
  AFT_RETURN_IF_ERROR(Require(segment >= 2 && segment <= kMost,
                              absl::StrCat("segment: must be in [2, ", kMost, "]")));
  AFT_RETURN_IF_ERROR(
      Require(block == 0 || segment % block == 0,
              absl::StrCat("segment: must be a multiple of the network's mixer.prefix_block, ",
                           block, ", got ", segment)));
  return Require(longest == 0 || segment <= longest,
                 absl::StrCat("segment: must not exceed the network's max_seq_len, ", longest,
                              ", got ", segment));
}

absl::StatusOr<TrainConfig> ReadTrainConfig(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  std::stringstream text;
  text << file.rdbuf();
  Json json = Json::parse(text.str(), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    return absl::InvalidArgumentError(absl::StrCat(path, ": not valid JSON"));
  AFT_ASSIGN_OR_RETURN(TrainConfig config, InFile(path, Parse(std::move(json))));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  for (std::string& text_path : config.texts) text_path = (folder / text_path).string();
  if (!config.images.empty()) config.images = (folder / config.images).string();
  if (!config.tokenizer.empty()) config.tokenizer = (folder / config.tokenizer).string();
  return config;
}

}  // namespace aft
