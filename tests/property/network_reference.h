#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "model/api/encoder_runner.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "tests/property/random_inputs.h"

namespace aft {

// A small network with random weights, large enough for clear preferences among tokens.
TensorMap RandomTensors(const NetworkConfig& config, TestRandom& random);

using Matrix = std::vector<std::vector<double>>;  // one row per token

// Logits [T][HeadRows()] of a whole sequence, or the vectors [T][d_model] without a head, in
// float64, straight from the equations: no state, no cleverness, sharing nothing with the
// implementation but the config and the tensors.
Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const std::vector<int32_t>& tokens);

// The same of what encoders and bare mixers take. Hidden tokens have vectors like any other.
Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const EncoderInput& input);

// Natural logarithms of softmax(logits).
std::vector<double> LogSoftmax(const std::vector<double>& logits);

// A small config of every mixer kind, and of every other choice that config.json offers, by name.
// Sequences of up to kCaseTokens tokens are legal in each.
struct NetworkCase {
  std::string name;
  NetworkConfig config;
  bool form = false;  // another form of a mixer of these cases, and of nothing else

  friend void PrintTo(const NetworkCase& network, std::ostream* out) { *out << network.name; }
};
inline constexpr int64_t kCaseTokens = 96;
std::vector<NetworkCase> DecoderCases();
std::vector<NetworkCase> EncoderCases();  // of texts

// An encoder of images, whose ids are pixels.
NetworkCase ImageCase();

// Bare mixers, of which an import makes some: every kind, both ways, and 2-D filters.
std::vector<NetworkCase> BareMixerCases();

// The one that reads what it generated otherwise than a prompt, and so than NetworkReference.
NetworkCase FullDecodeCase();

}  // namespace aft
