#pragma once

#include <cstdint>

#include "ATen/core/Tensor.h"
#include "ATen/core/grad_mode.h"
#include "ATen/ops/arange.h"
#include "ATen/record_function.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "model/config/config.h"
#include "model/train/objective.h"
#include "model/train/start_values.h"
#include "model/train/train_network.h"

namespace aft {

// The tokens [B, T] that a network reads in the last forward pass of `use`. The network has the id
// of each token in the token's embedding, because builds without NDEBUG cannot record inputs.
inline at::Tensor TokensRead(const NetworkConfig& config,
                             absl::FunctionRef<void(const TrainNetwork&)> use) {
  const at::NoGradGuard no_grad;
  TrainNetwork network(config, StartValues(config, {.seed = 1}));
  at::Tensor& embedding = network.parameters().at("embed.weight");
  embedding.copy_(at::arange(embedding.size(0)).unsqueeze(1).expand_as(embedding));
  static at::Tensor* seen;  // a callback can capture nothing
  at::Tensor vectors;
  seen = &vectors;
  at::RecordFunctionCallback record(nullptr,
                                    [](const at::RecordFunction& call, at::ObserverContext*) {
                                      if (call.name() == absl::string_view("aten::embedding")) {
                                        *seen = call.outputs()[0].toTensor();
                                      }
                                    });
  const auto handle = at::addThreadLocalCallback(record.needsOutputs(true));
  use(network);
  at::removeCallback(handle);
  return vectors.select(2, 0).to(at::kLong);
}

// The tokens that it reads in step `step` of an objective.
inline at::Tensor TokensOf(Objective& objective, const NetworkConfig& config, int64_t step) {
  return TokensRead(config, [&](const TrainNetwork& network) { objective.Next(network, step); });
}

}  // namespace aft
