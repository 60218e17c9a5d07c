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

// An import's way to its user: written, and read again. Ends the test when either fails.
Checkpoint WriteAndRead(const absl::StatusOr<Import>& import, const std::string& dir);

// A module (architecture "mixer") on one sequence, x [T, d] -> [T, d]: the whole at once without
// state, and through the state in chunks.
at::Tensor EncodeModule(const Checkpoint& checkpoint, const at::Tensor& x);
at::Tensor RunModule(const Checkpoint& checkpoint, const at::Tensor& x, int64_t chunk);

// A language model as the server loads it, its weights in fp32, with one slot. Ends the test when
// it cannot be loaded.
LoadedModel Load(const std::string& dir, int64_t max_step_tokens);

// What a language model, loaded from `dir` as the server does, says of a text: the largest distance
// of its log-probabilities, those of the text's tokens and of 20 alternatives each, from
// `expected` [n, vocabulary], whose rows are the last n positions of `tokens`. From
// `first_generated` on, each token is a step of its own, after one that was sampled.
double ScoreDistance(const std::string& dir, const std::vector<int32_t>& tokens,
                     const at::Tensor& expected, int64_t first_generated);
inline double ScoreDistance(const std::string& dir, const std::vector<int32_t>& tokens,
                            const at::Tensor& expected) {
  return ScoreDistance(dir, tokens, expected, static_cast<int64_t>(tokens.size()));
}

// Token ids from a golden's I64 tensor.
std::vector<int32_t> Ids(const at::Tensor& tokens);

// INVALID_ARGUMENT with `part` in its message.
inline auto Refused(const std::string& part) {
  return StatusIs(absl::StatusCode::kInvalidArgument, testing::HasSubstr(part));
}

// A fault of a source: a tensor that is another one, or (undefined) is not there.
struct Damage {
  std::string name;
  at::Tensor value;
  std::string problem;  // begins what the import says of it
};

// That `import` refuses the tensors with each of these faults, by its tensor's name.
void ExpectRefused(const TensorMap& tensors,
                   const std::function<absl::Status(const TensorMap&)>& import,
                   const std::vector<Damage>& damages);

}  // namespace aft
