#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/train/run_tokenizer.h"
#include "model/train/train_config.h"

namespace aft {

// Examples of one or two texts each, as tokens.
struct TextExamples {
  std::vector<std::vector<int32_t>> texts;  // for pairs: 2 i and 2 i + 1 are the texts of pair i
  std::vector<int64_t> classes;  // for labels: an index of the network's labels for each text
};

struct ExampleSplit {
  TextExamples train, held_out;

  uint64_t Hash() const;  // of both parts
};

// Reads the config's files of JSON Lines: {"label": "de", "text": "..."} for labels, {"a": "...",
// "b": "..."} for pairs; other keys are refused. Every n-th example is held out, so that their
// share is config.held_out. Errors: NOT_FOUND; INVALID_ARGUMENT naming file and line (not such an
// object, a text without tokens, an unknown label); INVALID_ARGUMENT when no example would be held
// out.
absl::StatusOr<ExampleSplit> ReadExamples(const TrainConfig& config, TokenizerSource tokenizer);

// The index of a label among those of the network. INVALID_ARGUMENT: there is no such label.
absl::StatusOr<int64_t> FindLabel(const NetworkConfig& network, absl::string_view label);

// Texts as rows of one length.
struct TextBatch {
  at::Tensor ids = {};  // [B, T] int64; short texts are filled up with 0
  // [B, T]: 0, or -inf after the end of a text; undefined when all texts have the same length.
  at::Tensor mask = {};
};
TextBatch MakeTextBatch(const std::vector<absl::Span<const int32_t>>& texts);

// A text of at most `most` tokens. A longer text keeps the tokens that the network's tokenizer adds
// around every text, because every text that is served has them, and between them the stretch that
// begins `skip` tokens after the prefix. REQUIRES: most > FrameTokens(network); for a
// longer text, skip <= its size - most.
std::vector<int32_t> CutText(const std::vector<int32_t>& text, const NetworkConfig& network,
                             size_t most, size_t skip = 0);

// The means over the tokens of each text: values [B, T, n] -> [B, n].
at::Tensor MeanOfTokens(const at::Tensor& values, const at::Tensor& mask);

// The examples of each step. Every epoch draws a new order of all examples and cuts it into batches
// of one size. Examples that do not fill a batch are left out of the epoch.
class EpochOrder {
 public:
  // REQUIRES: count >= 1.
  EpochOrder(int64_t count, int64_t batch, uint64_t seed);

  int64_t batch() const { return batch_; }  // at most count
  int64_t steps_per_epoch() const { return count_ / batch_; }
  std::vector<int64_t> Get(int64_t step);

 private:
  const int64_t count_, batch_;
  const uint64_t seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;  // of epoch_
};

}  // namespace aft
