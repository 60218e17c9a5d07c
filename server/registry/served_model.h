#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/config.h"
#include "server/engine/encode_engine.h"
#include "server/engine/generate_engine.h"
#include "server/observability/metrics.h"

namespace aft::server {

// A version of a model that was loaded: what a request needs of it.
struct ServedModel {
  ModelConfig config;
  std::unique_ptr<ModelMetrics> metrics;  // its part of the model's
  mutable std::string failure;            // guarded by ModelRegistry: why it has failed
  ModelInfo info;
  int64_t input_width = 0;  // EncoderRunner's
  // EncoderRunner::width, or ModelInfo::hidden_width of a language model.
  int64_t vector_width = 0;
  std::shared_ptr<const Tokenizer> tokenizer;
  // Exactly one is there.
  std::unique_ptr<GenerateEngine> generate;  // of a language model
  std::unique_ptr<EncodeEngine> encode;      // of an encoder

  RequestLoop& engine() const {
    return generate != nullptr ? static_cast<RequestLoop&>(*generate) : *encode;
  }
};

// A hold on a model that somebody else owns: ModelKeeper. It may be let go of on any thread, the
// model's own engine's among them.
using ModelHold = std::shared_ptr<const ServedModel>;

}  // namespace aft::server
