#ifndef AFT_TESTS_PROPERTY_NETWORK_REFERENCE_H_
#define AFT_TESTS_PROPERTY_NETWORK_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "model/checkpoint/safetensors.h"
#include "model/network/config.h"
#include "tests/property/random_inputs.h"

namespace aft {

// A small network with random weights, large enough for clear preferences among tokens.
TensorMap RandomTensors(const NetworkConfig& config, TestRandom& random);

// Logits [T][vocab_size] of a whole sequence in float64, straight from the equations: no state, no
// cleverness, sharing nothing with the implementation but the config and the tensors.
std::vector<std::vector<double>> NetworkReference(const NetworkConfig& config,
                                                  const TensorMap& tensors,
                                                  const std::vector<int32_t>& tokens);

// Natural logarithms of softmax(logits).
std::vector<double> LogSoftmax(const std::vector<double>& logits);

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_NETWORK_REFERENCE_H_
