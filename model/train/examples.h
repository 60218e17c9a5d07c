#pragma once

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

// Examples of texts, each of one or two texts as tokens.
struct TextExamples {
  std::vector<std::vector<int32_t>> texts;  // of pairs: 2 i and 2 i + 1 are the texts of pair i
  std::vector<int64_t> classes;  // of labels: an index of the network's labels for each text
};

struct ExampleSplit {
  TextExamples train, held_out;
};

// Reads the config's files of JSON Lines: of labels {"label": "de", "text": "..."}, of pairs
// {"a": "...", "b": "..."}; further keys are refused. Every n-th example is held out, so that their
// share is config.held_out. Errors: NOT_FOUND, or INVALID_ARGUMENT naming file and line: not such
// an object, a text without tokens, an unknown label; or when a part would be empty.
absl::StatusOr<ExampleSplit> ReadExamples(const TrainConfig& config, TokenizerSource tokenizer);

// The place of a label among those of the network. INVALID_ARGUMENT: it has no such label.
absl::StatusOr<int64_t> FindLabel(const NetworkConfig& network, absl::string_view label);

// Texts as rows of one length.
struct TextBatch {
  at::Tensor ids = {};  // [B, T] int64; short texts are filled up with 0
  // [B, T], 0 or -inf where a text has ended; undefined when all are of one length.
  at::Tensor mask = {};
};
TextBatch MakeTextBatch(const std::vector<absl::Span<const int32_t>>& texts);

// The means over the tokens of each text: values [B, T, n] -> [B, n].
at::Tensor MeanOfTokens(const at::Tensor& values, const at::Tensor& mask);

// The examples of each step: all of them in an order that is drawn anew for every epoch, in batches
// of one size; what is left of an epoch has no part in it.
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
