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

// Random weights of a small network, large enough for clear preferences among tokens.
TensorMap RandomTensors(const NetworkConfig& config, TestRandom& random);

using Matrix = std::vector<std::vector<double>>;  // one row per token

// Returns the rows, one after the other.
template <class T>
std::vector<T> Flat(const std::vector<std::vector<T>>& rows) {
  std::vector<T> flat;
  for (const std::vector<T>& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

// Logits [T][HeadRows()] of a whole sequence, or the vectors [T][d_model] without a head. They are
// computed in float64 directly from the equations, without a state. Only the config and the tensors
// are shared with the implementation.
Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const std::vector<int32_t>& tokens);

// Logits or vectors for an input of an encoder or a bare mixer. Hidden tokens get vectors like all
// others.
Matrix NetworkReference(const NetworkConfig& config, const TensorMap& tensors,
                        const EncoderInput& input);

// Natural logarithms of softmax(logits).
std::vector<double> LogSoftmax(const std::vector<double>& logits);

// A small config with a name. The lists below have every mixer kind and every other choice that
// config.json offers. Each config allows sequences of up to kCaseTokens tokens.
struct NetworkCase {
  std::string name;
  NetworkConfig config;
  bool form = false;  // differs from another case only in the form of its mixer

  friend void PrintTo(const NetworkCase& network, std::ostream* out) { *out << network.name; }
};
inline constexpr int64_t kCaseTokens = 96;
std::vector<NetworkCase> DecoderCases();
std::vector<NetworkCase> EncoderCases();  // of texts

// An encoder of images, whose ids are pixels.
NetworkCase ImageCase();

// Bare mixers, as imports make some of them: every kind, causal and bidirectional, and 2-D filters.
std::vector<NetworkCase> BareMixerCases();

// A model that reads tokens which it generated in another way than a prompt. NetworkReference does
// not do that.
NetworkCase FullDecodeCase();

}  // namespace aft
