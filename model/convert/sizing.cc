#include "model/convert/sizing.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/api/snapshot_bytes.h"
#include "model/config/tensors.h"
#include "model/mixers/families.h"
#include "model/mixers/mixer.h"
#include "model/network/check_tensors.h"
#include "model/network/cpu_network.h"
#include "model/network/weight_bytes.h"
#include "model/runtime/cpu_model_runner.h"
#include "model/state/slot_layout.h"
#include "model/state/state_pool.h"

namespace aft {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool IsLanguageModel(const NetworkConfig& config) {
  return config.architecture == Architecture::kDecoderLm;
}

// The sizes that only the mixers know.
struct Mixers {
  std::vector<StateSpec> states;  // of a sequence; empty when no state is kept
  int64_t table_bytes = 0;
  int64_t scratch_floats = 0;  // of a thread
};

absl::StatusOr<Mixers> MeasureMixers(const CheckpointFile& checkpoint, int64_t tokens_at_once) {
  const NetworkConfig& config = checkpoint.config;
  Mixers measured;
  for (int64_t i = 0; i < config.n_layers; ++i) {
    MixerTables tables;
    for (const TensorSpec& spec : ExpectedMixerTables(config.mixer, MixerWidth(config))) {
      AFT_ASSIGN_OR_RETURN(tables[spec.name], checkpoint.tensors.Read(absl::StrCat(
                                                  "layers.", i, ".mixer.", spec.name)));
    }
    AFT_ASSIGN_OR_RETURN(const std::unique_ptr<Mixer> mixer,
                         MakeMixer(config.mixer, MixerWidth(config), tables, {config.max_seq_len}));
    if (IsLanguageModel(config)) {
      measured.states.push_back(mixer->state_spec());
      for (StateSpec& spec : ShiftStateSpecs(config)) measured.states.push_back(std::move(spec));
    }
    measured.table_bytes += mixer->table_bytes();
    measured.scratch_floats = std::max(measured.scratch_floats,
                                       CpuNetwork::ScratchFloats(config, *mixer, tokens_at_once));
  }
  return measured;
}

// The number of weights that a token is multiplied by.
int64_t ProductWeights(const NetworkConfig& config) {
  int64_t weights = 0;
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    const bool looked_up = spec.name == "embed.weight" && !config.tie_embeddings;
    if (spec.role == TensorRole::kMatrix && !looked_up) weights += spec.count();
  }
  return weights;
}

OrderedJson TokensPerSecond(const SizingOptions& options, int64_t step_bytes, int64_t token_bytes,
                            int64_t token_flops) {
  OrderedJson rates = OrderedJson::object();
  for (const int64_t streams : {int64_t{1}, int64_t{8}, int64_t{options.slots}}) {
    if (streams > options.slots) continue;
    double rate = std::numeric_limits<double>::infinity();
    if (options.bandwidth > 0) {
      rate = options.bandwidth * static_cast<double>(streams) /
             static_cast<double>(step_bytes + streams * token_bytes);
    }
    if (options.flops > 0) rate = std::min(rate, options.flops / static_cast<double>(token_flops));
    rates[absl::StrCat(streams)] = rate;
  }
  return rates;
}

}  // namespace

absl::StatusOr<OrderedJson> Size(const CheckpointFile& checkpoint, const SizingOptions& options,
                                 int64_t tuned_states) {
  constexpr int64_t kFloat = sizeof(float);
  const NetworkConfig& config = checkpoint.config;
  const bool language_model = IsLanguageModel(config);
  const int64_t tokens_at_once =
      language_model ? CpuModelRunner::TokensAtOnce({.max_step_tokens = options.max_step_tokens})
                     : options.max_batch_tokens;
  AFT_ASSIGN_OR_RETURN(const Mixers mixers, MeasureMixers(checkpoint, tokens_at_once));
  const int64_t context =
      config.max_seq_len > 0 ? std::min(options.context, config.max_seq_len) : options.context;
  int64_t floats_per_token = 0;
  int64_t moved = 0;
  int64_t used = 0;
  for (const StateSpec& state : mixers.states) {
    floats_per_token += state.floats_per_token;
    moved += state.floats_per_step + state.floats_per_token * context;
    used += state.floats_per_token > 0 ? state.floats_per_token * context : state.floats;
  }
  const int64_t slot = StatePool::SlotBytes(mixers.states);
  const int64_t scratch = StatePool::ScratchBytes(mixers.states);
  const int64_t flops = 2 * (ProductWeights(config) + used);
  const int64_t slots = language_model ? options.slots : 0;
  const int64_t slot_bytes = CpuModelRunner::SlotBytes(mixers.states, config.vocab_size);
  if (slot_bytes > std::numeric_limits<int64_t>::max() / 2 / options.slots) {
    return absl::ResourceExhaustedError(absl::StrCat("slots: ", options.slots, " states of ", slot,
                                                     " bytes are too many to count"));
  }
  int64_t tuned_bytes = 0;
  if (language_model && tuned_states > 0) {  // the server keeps a snapshot of each
    tuned_bytes =
        tuned_states * (SlotLayout(mixers.states).UsedBytes(/*position=*/1) + kSnapshotFrameBytes);
  }

  OrderedJson formats;
  for (const FormatSpec& spec : kFormats) {
    if (!spec.on_cpu || !CheckFormat(config, spec.format).ok()) continue;
    const WeightBytes weights = CountWeightBytes(config, spec.format);
    const int64_t weight_bytes = weights.total() + mixers.table_bytes;
    const int64_t workspace = CpuNetwork::WorkspaceBytes(config, spec.format, mixers.scratch_floats,
                                                         tokens_at_once, options.threads);
    OrderedJson size = {
        {"weight_bytes", weight_bytes},
        {"step_bytes", weights.products},
        {"workspace_bytes", workspace},
        {"memory_bytes", weight_bytes + workspace + slots * slot_bytes + tuned_bytes}};
    if (language_model && (options.bandwidth > 0 || options.flops > 0)) {
      size["tokens_per_second"] = TokensPerSecond(options, weights.products, moved * kFloat, flops);
    }
    formats[spec.name] = std::move(size);
  }
  return OrderedJson{{"state_bytes_per_sequence", slot},
                     {"state_bytes_per_token", floats_per_token * kFloat},
                     {"scratch_bytes_per_sequence", scratch},
                     {"sizing",
                      {{"slots", slots},
                       {"tokens_at_once", tokens_at_once},
                       {"threads", options.threads},
                       {"context", context},
                       {"flops_per_token", flops},
                       {"state_traffic_per_token", moved * kFloat},
                       {"formats", std::move(formats)}}}};
}

}  // namespace aft
