#include "model/train/train_config.h"

#include <filesystem>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/in_file.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "model/config/json_fields.h"
#include "model/config/kinds.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using Json = nlohmann::json;

// Moves the key's value into `field` when it is present, and erases the key. The keys that are left
// in the end are unknown ones.
template <typename T>
absl::Status Take(Json& object, const char* key, T& field) {
  const auto it = object.find(key);
  if (it == object.end()) return absl::OkStatus();
  const bool fits = std::is_same_v<T, bool>          ? it->is_boolean()
                    : std::is_unsigned_v<T>          ? it->is_number_unsigned()
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

// Takes an integer in [least, most]. The bounds keep the products of such numbers in 64 bits.
absl::Status TakeCount(Json& object, const char* key, int64_t least, int64_t most, int64_t& field) {
  AFT_RETURN_IF_ERROR(Take(object, key, field));
  return Require(field >= least && field <= most,
                 absl::StrCat(key, ": must be in [", least, ", ", most, "]"));
}

constexpr Named<ObjectiveKind> kObjectiveNames[] = {{ObjectiveKind::kNextTokens, "next_tokens"},
                                                    {ObjectiveKind::kMaskedTokens, "masked_tokens"},
                                                    {ObjectiveKind::kLabels, "labels"},
                                                    {ObjectiveKind::kPairs, "pairs"}};
constexpr Named<StartRule> kStartNames[] = {
    {StartRule::kNarrow, "narrow"}, {StartRule::kLinear, "linear"}, {StartRule::kXavier, "xavier"}};
constexpr Named<BiasStart> kBiasStartNames[] = {
    {BiasStart::kSlope, "slope"}, {BiasStart::kZeros, "zeros"}, {BiasStart::kXavier, "xavier"}};

// Does the same as Take, for one of a few names.
template <typename E, size_t kCount>
absl::Status TakeName(Json& object, const char* key, const Named<E> (&names)[kCount], E& field) {
  if (!object.contains(key)) return absl::OkStatus();
  std::string given;
  AFT_RETURN_IF_ERROR(Take(object, key, given));
  std::vector<std::string> allowed;
  for (const Named<E>& name : names) {
    if (given == name.name) {
      field = name.value;
      return absl::OkStatus();
    }
    allowed.push_back(absl::StrCat("\"", name.name, "\""));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(key, ": must be ", absl::StrJoin(allowed, " or "), ", got \"", given, "\""));
}

// Takes a probability with which numbers are zeroed.
absl::Status TakeDropout(Json& object, const char* key, double& field) {
  AFT_RETURN_IF_ERROR(Take(object, key, field));
  return Require(field >= 0 && field < 1, absl::StrCat(key, ": must be in [0, 1)"));
}

absl::Status TakeDropouts(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(TakeDropout(object, "dropout", config.dropout));
  AFT_RETURN_IF_ERROR(TakeDropout(object, "embedding_dropout", config.embedding_dropout));
  AFT_RETURN_IF_ERROR(TakeDropout(object, "feed_forward_dropout", config.feed_forward_dropout));
  AFT_RETURN_IF_ERROR(TakeDropout(object, "attention_dropout", config.attention_dropout));
  return Require(
      config.attention_dropout == 0 ||
          SpecOf(config.network.mixer.kind).family == KernelFamily::kAttention,
      absl::StrCat("attention_dropout: must be absent or 0 for the network's mixer.kind \"",
                   MixerKindName(config.network.mixer.kind), "\", which has no such weights"));
}

absl::Status TakeOptimizer(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(TakeCount(object, "batch", 1, int64_t{1} << 20, config.batch));
  AFT_RETURN_IF_ERROR(Take(object, "learning_rate", config.learning_rate));
  AFT_RETURN_IF_ERROR(Take(object, "warmup_steps", config.warmup_steps));
  AFT_RETURN_IF_ERROR(Take(object, "beta1", config.beta1));
  AFT_RETURN_IF_ERROR(Take(object, "beta2", config.beta2));
  AFT_RETURN_IF_ERROR(Take(object, "weight_decay", config.weight_decay));
  AFT_RETURN_IF_ERROR(Take(object, "clip_norm", config.clip_norm));
  AFT_RETURN_IF_ERROR(Require(config.learning_rate > 0, "learning_rate: must be positive"));
  AFT_RETURN_IF_ERROR(Require(config.warmup_steps >= 0, "warmup_steps: must not be negative"));
  AFT_RETURN_IF_ERROR(Require(config.beta1 >= 0 && config.beta1 < 1, "beta1: must be in [0, 1)"));
  AFT_RETURN_IF_ERROR(Require(config.beta2 >= 0 && config.beta2 < 1, "beta2: must be in [0, 1)"));
  AFT_RETURN_IF_ERROR(Require(config.weight_decay >= 0, "weight_decay: must not be negative"));
  return Require(config.clip_norm > 0, "clip_norm: must be positive");
}

absl::Status TakeStart(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "initial", config.initial));
  AFT_RETURN_IF_ERROR(TakeName(object, "start", kStartNames, config.start));
  AFT_RETURN_IF_ERROR(TakeName(object, "bias_start", kBiasStartNames, config.bias_start));
  const bool spread = object.contains("weight_spread");
  AFT_RETURN_IF_ERROR(Take(object, "weight_spread", config.weight_spread));
  AFT_RETURN_IF_ERROR(Require(config.weight_spread > 0, "weight_spread: must be positive"));
  return Require(!spread || config.start == StartRule::kNarrow,
                 "weight_spread: must be absent unless start is \"narrow\"");
}

absl::Status TakeCommon(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "held_out", config.held_out));
  AFT_RETURN_IF_ERROR(
      Require(config.held_out > 0 && config.held_out < 0.5, "held_out: must be in (0, 0.5)"));
  AFT_RETURN_IF_ERROR(TakeOptimizer(object, config));
  AFT_RETURN_IF_ERROR(TakeStart(object, config));
  AFT_RETURN_IF_ERROR(TakeDropouts(object, config));
  AFT_RETURN_IF_ERROR(Take(object, "bf16", config.bf16));
  AFT_RETURN_IF_ERROR(Take(object, "seed", config.seed));
  AFT_RETURN_IF_ERROR(TakeCount(object, "threads", 0, 1024, config.threads));
  std::string device = "cpu";
  AFT_RETURN_IF_ERROR(Take(object, "device", device));
  return Require(device == "cpu",
                 "device: must be \"cpu\": the differentiable forms make their tensors there");
}

absl::Status TakeImages(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "images", config.images));
  AFT_RETURN_IF_ERROR(Take(object, "image_width", config.image_width));
  AFT_RETURN_IF_ERROR(Take(object, "shift", config.shift));
  AFT_RETURN_IF_ERROR(Take(object, "noise", config.noise));
  AFT_RETURN_IF_ERROR(Require(!config.images.empty(), "images: name a file"));
  AFT_RETURN_IF_ERROR(Require(config.image_width >= 1, "image_width: must be at least 1"));
  AFT_RETURN_IF_ERROR(Require(config.shift >= 0 && config.shift < config.image_width,
                              "shift: must be in [0, image_width)"));
  return Require(config.noise >= 0 && config.noise < config.network.vocab_size,
                 "noise: must be in [0, network.vocab_size)");
}

absl::Status TakeTokens(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "segment", config.segment));
  AFT_RETURN_IF_ERROR(Take(object, "tokenizer", config.tokenizer));
  const bool chosen = object.contains("eval_every_steps");
  AFT_RETURN_IF_ERROR(Take(object, "eval_every_steps", config.eval_every_steps));
  const std::string& kind = config.network.tokenizer;
  AFT_RETURN_IF_ERROR(
      Require(config.tokenizer.empty() || kind != "bytes",
              "tokenizer: must be absent with the network's tokenizer.kind \"bytes\""));
  AFT_RETURN_IF_ERROR(
      Require(!kind.empty(),
              "network.tokenizer.kind: texts need \"bytes\", \"chars\", \"bpe\" or \"world\""));
  AFT_RETURN_IF_ERROR(Require(kind != "bpe" || config.network.vocab_size >= 256,
                              "network.vocab_size: a \"bpe\" tokenizer needs at least 256"));
  AFT_RETURN_IF_ERROR(CheckSegment(config.segment, config.network));
  return Require(!chosen || config.eval_every_steps >= 1, "eval_every_steps: must be at least 1");
}

absl::Status TakeRunningText(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(Take(object, "texts", config.texts));
  AFT_RETURN_IF_ERROR(TakeTokens(object, config));
  AFT_RETURN_IF_ERROR(TakeCount(object, "total_tokens", 1, int64_t{1} << 60, config.total_tokens));
  AFT_RETURN_IF_ERROR(Take(object, "eval_tokens", config.eval_tokens));
  AFT_RETURN_IF_ERROR(Require(!config.texts.empty(), "texts: name at least one file"));
  AFT_RETURN_IF_ERROR(
      Require(config.eval_tokens >= config.segment, "eval_tokens: must be at least one segment"));
  if (config.objective == ObjectiveKind::kNextTokens) {
    AFT_RETURN_IF_ERROR(Take(object, "restart_probability", config.restart_probability));
    return Require(config.restart_probability > 0 && config.restart_probability <= 1,
                   "restart_probability: must be in (0, 1]");
  }
  AFT_RETURN_IF_ERROR(Take(object, "mask_probability", config.mask_probability));
  AFT_RETURN_IF_ERROR(Take(object, "mask_token", config.mask_token));
  AFT_RETURN_IF_ERROR(Require(config.mask_probability > 0 && config.mask_probability < 1,
                              "mask_probability: must be in (0, 1)"));
  return Require(config.mask_token >= 0 && config.mask_token < config.network.vocab_size,
                 "mask_token: must be in [0, network.vocab_size)");
}

absl::Status TakeExamples(Json& object, TrainConfig& config) {
  AFT_RETURN_IF_ERROR(TakeCount(object, "epochs", 1, int64_t{1} << 30, config.epochs));
  if (config.learns_images()) return TakeImages(object, config);
  AFT_RETURN_IF_ERROR(Take(object, "examples", config.examples));
  AFT_RETURN_IF_ERROR(Take(object, "eval_examples", config.eval_examples));
  AFT_RETURN_IF_ERROR(TakeTokens(object, config));
  AFT_RETURN_IF_ERROR(Require(!config.examples.empty(), "examples: name at least one file"));
  AFT_RETURN_IF_ERROR(Require(config.eval_examples >= 1, "eval_examples: must be at least 1"));
  if (config.objective == ObjectiveKind::kLabels) {
    AFT_RETURN_IF_ERROR(Take(object, "least_tokens", config.least_tokens));
    return Require(config.least_tokens >= 0 && config.least_tokens <= config.segment,
                   "least_tokens: must be in [0, segment]");
  }
  AFT_RETURN_IF_ERROR(Take(object, "temperature", config.temperature));
  AFT_RETURN_IF_ERROR(Require(config.batch >= 2,
                              "batch: must be at least 2 for pairs, each of "
                              "which has the others as negatives"));
  return Require(config.temperature > 0, "temperature: must be positive");
}

// Returns the objective that the network's head is for. Without a head the config must name pairs.
absl::StatusOr<ObjectiveKind> TakeObjective(Json& object, const NetworkConfig& network) {
  if (network.architecture == Architecture::kMixer) {
    return absl::InvalidArgumentError(
        "network.architecture: must be \"decoder_lm\" or \"encoder\", got \"mixer\"");
  }
  const bool named = object.contains("objective");
  ObjectiveKind kind = ObjectiveKind::kPairs;
  if (network.architecture == Architecture::kDecoderLm) {
    kind = ObjectiveKind::kNextTokens;
  } else if (network.vocabulary_head) {
    kind = ObjectiveKind::kMaskedTokens;
  } else if (!network.labels.empty()) {
    kind = ObjectiveKind::kLabels;
  } else if (!named) {
    return absl::InvalidArgumentError(
        "network: an encoder needs labels or vocabulary_head, or the objective \"pairs\"");
  }
  ObjectiveKind given = kind;
  AFT_RETURN_IF_ERROR(TakeName(object, "objective", kObjectiveNames, given));
  AFT_RETURN_IF_ERROR(
      Require(given == kind, absl::StrCat("objective: must be \"", ObjectiveName(kind),
                                          "\" for this network, got \"", ObjectiveName(given),
                                          "\": an encoder learns labels with labels, masked_tokens "
                                          "with vocabulary_head, pairs without either")));
  AFT_RETURN_IF_ERROR(Require(!network.mixer.grid || kind == ObjectiveKind::kLabels,
                              "network.mixer.grid: images need labels"));
  return kind;
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

  AFT_ASSIGN_OR_RETURN(config.objective, TakeObjective(object, config.network));
  AFT_RETURN_IF_ERROR(TakeCommon(object, config));
  const bool running = config.objective == ObjectiveKind::kNextTokens ||
                       config.objective == ObjectiveKind::kMaskedTokens;
  AFT_RETURN_IF_ERROR(running ? TakeRunningText(object, config) : TakeExamples(object, config));
  if (!object.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(object.begin().key(), ": unknown key for the ",
                                                   "objective ", ObjectiveName(config.objective)));
  }
  return config;
}

}  // namespace

const char* ObjectiveName(ObjectiveKind kind) { return NameOf(kObjectiveNames, kind); }

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
  AFT_RETURN_IF_ERROR(
      Require(segment > FrameTokens(network),
              absl::StrCat("segment: must exceed the ", FrameTokens(network),
                           " tokens that the network's tokenizer.prefix and tokenizer.suffix add "
                           "to every text, got ",
                           segment)));
  return Require(longest == 0 || segment <= longest,
                 absl::StrCat("segment: must not exceed the network's max_seq_len, ", longest,
                              ", got ", segment));
}

absl::StatusOr<TrainConfig> ReadTrainConfig(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  AFT_ASSIGN_OR_RETURN(Json json, InFile(path, ParseStrictJson(text)));
  AFT_ASSIGN_OR_RETURN(TrainConfig config, InFile(path, Parse(std::move(json))));
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  const auto relative = [&folder](std::string& name) {
    if (!name.empty()) name = (folder / name).string();
  };
  for (std::string& name : config.texts) relative(name);
  for (std::string& name : config.examples) relative(name);
  for (std::string* name : {&config.images, &config.tokenizer, &config.initial}) relative(*name);
  return config;
}

}  // namespace aft
