#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/engine/encode_engine.h"
#include "server/engine/generate_engine.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"

namespace aft::server {

// A loaded version of a model, with all that requests need of it.
struct ServedModel {
  ModelConfig config;
  std::unique_ptr<ModelMetrics> metrics;  // this version's part of the model's metrics
  mutable std::string failure;            // why it has failed; guarded by ModelRegistry
  ModelInfo info;
  int64_t input_width = 0;  // of EncoderRunner
  // EncoderRunner::width, or ModelInfo::hidden_width of a language model.
  int64_t vector_width = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  // The tuned states from which texts may begin, by name.
  std::map<std::string, std::shared_ptr<const SequenceState>> initial_states;
  // Exactly one of them is set.
  std::unique_ptr<GenerateEngine> generate;  // for a language model
  std::unique_ptr<EncodeEngine> encode;      // for an encoder

  RequestLoop& engine() const {
    return generate != nullptr ? static_cast<RequestLoop&>(*generate) : *encode;
  }
};

// A hold on a model, which ModelKeeper owns. It may be released on any thread, even on the thread
// of the model's own engine.
using ModelHold = std::shared_ptr<const ServedModel>;

}  // namespace aft::server
