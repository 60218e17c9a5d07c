#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
#include "model/convert/import.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {

// Writes an import as a checkpoint and reads it again. Ends the test if either fails.
Checkpoint WriteAndRead(const absl::StatusOr<Import>& import, const std::string& dir);

// Makes all tensors of an import. Returns the first error.
absl::Status Made(const absl::StatusOr<Import>& import);

// Random bf16 weights of RWKV with BlinkDL's names. The vocabulary has 256 tokens, and version 7
// has heads of 64 channels and the ranks 3 (w), 4 (a), 5 (v), 6 (g).
TensorMap RandomRwkv4(int64_t d, int64_t layers);
TensorMap RandomRwkv7(int64_t d, int64_t layers);

// A file of torch.save with these tensors.
std::string TorchFileOf(const TensorMap& tensors);

// Run a module (architecture "mixer") on one sequence, x [T, d] -> [T, d]. EncodeModule reads the
// whole sequence at once without a state. RunModule reads it in chunks and carries the state.
at::Tensor EncodeModule(const Checkpoint& checkpoint, const at::Tensor& x);
at::Tensor RunModule(const Checkpoint& checkpoint, const at::Tensor& x, int64_t chunk);

// Loads a model as the server does, with weights in fp32, one thread and one slot. Ends the test if
// that fails. Only language models have steps.
LoadedModel Load(const std::string& dir, int64_t max_step_tokens = 1);

// Loads a language model from `dir` as the server does, and scores a text with it. Returns the
// largest distance of its log-probabilities from `expected` [n, vocabulary], whose rows are the
// last n positions of `tokens`. Compares each token of the text and 20 alternatives to it. From
// `first_generated` on, each token is a step of its own, after one that was sampled.
double ScoreDistance(const std::string& dir, const std::vector<int32_t>& tokens,
                     const at::Tensor& expected, int64_t first_generated);
inline double ScoreDistance(const std::string& dir, const std::vector<int32_t>& tokens,
                            const at::Tensor& expected) {
  return ScoreDistance(dir, tokens, expected, static_cast<int64_t>(tokens.size()));
}

// Returns the token ids of a golden's I64 tensor.
std::vector<int32_t> Ids(const at::Tensor& tokens);

// Matches INVALID_ARGUMENT with `part` in its message.
inline auto Refused(const std::string& part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(part));
}

// A fault of a source: a tensor has another value, or is missing if `value` is undefined.
struct Damage {
  std::string name;
  at::Tensor value;
  std::string problem;  // the error after the name of the tensor, or its beginning
};

// Expects that `import` refuses the tensors with each of the faults, and names the faulty tensor.
void ExpectRefused(const TensorMap& tensors,
                   const std::function<absl::Status(const TensorMap&)>& import,
                   const std::vector<Damage>& damages);

}  // namespace aft
