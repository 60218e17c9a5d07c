#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/api/model_runner.h"
#include "model/config/config.h"
#include "model/config/kinds.h"
#include "model/kernels/instruction_set.h"
#include "model/runtime/snapshot.h"
#include "model/runtime/step_threads.h"
#include "model/state/slot_layout.h"

namespace aft {

// Makes the facts that every runner reports about its network, except for those of AddStateInfo.
inline ModelInfo MakeModelInfo(const NetworkConfig& config, int64_t weight_bytes,
                               Number weight_format, std::string device) {
  ModelInfo info;
  info.architecture = MixerKindName(config.mixer.kind);
  info.tokenizer = config.tokenizer;
  info.vocab_size = config.vocab_size;
  info.causal = config.mixer.causal;
  info.parameters = CountParameters(config);
  info.max_seq_len = config.max_seq_len;
  info.weight_bytes = weight_bytes;
  info.generated_differ = config.mixer.full_decode;
  info.labels = config.labels;
  const bool generates = config.architecture == Architecture::kDecoderLm;
  info.hidden_width = generates ? config.d_model : 0;
  info.pooling = generates ? Pooling::kLast : config.pooling;
  info.normalize = config.normalize;
  info.weight_format = NumberName(weight_format);
  info.device = std::move(device);
  return info;
}

// The forms of input that Mixer::EncodePairs accepts for these mixers. The number of keys may
// differ from that of the queries if no key is tied to a position of the queries.
inline EncoderForms FormsOf(const NetworkConfig& config) {
  const MixerConfig& mixer = config.mixer;
  const KindSpec& kind = SpecOf(mixer.kind);
  const bool by_position = kind.family == KernelFamily::kConv ||
                           kind.attention.key_table != nullptr || mixer.block_size > 0 ||
                           (kind.bias_window != nullptr && kind.bias_window(mixer) > 0);
  return {.pairs = true,
          .sources = config.architecture == Architecture::kMixer,
          .keyless = kind.attention.key_table != nullptr,
          .free_lengths = !mixer.causal && !by_position};
}

// The value of EncoderRunner::width.
inline int64_t OutputWidth(const NetworkConfig& config) {
  return HeadRows(config) > 0 ? HeadRows(config) : config.d_model;
}

// Formats the name of the device: "cpu (AVX2, 3 threads)".
inline std::string CpuDeviceName(const StepThreads& threads) {
  return absl::StrCat("cpu (", kernels::InstructionSet(), ", ", threads.ToString(), ")");
}

// Adds the fingerprint and the facts about a slot with these layers. There are none in an encoder,
// which keeps no states. `network` is the fingerprint of the network.
inline void AddStateInfo(const std::vector<StateSpec>& layers, uint64_t network, ModelInfo* info) {
  const SlotLayout layout(layers);
  info->state_bytes = layout.bytes();
  info->fingerprint = SnapshotFingerprint(network, layout.fingerprint(), info->weight_format);
  for (const StateSpec& layer : layers) {
    info->state_bytes_per_token += layer.floats_per_token * static_cast<int64_t>(sizeof(float));
    for (const StateSection& section : layer.sections) {
      if (!section.grows) continue;
      info->state_block_tokens = std::max(info->state_block_tokens, section.granule_tokens);
    }
  }
}

}  // namespace aft
