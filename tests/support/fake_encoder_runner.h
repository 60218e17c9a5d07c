#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "model/api/encoder_runner.h"
#include "tests/support/step_gate.h"

namespace aft {

using TokenSequences = std::vector<std::vector<TokenId>>;

// Lets a test observe and control a FakeEncoderRunner. Thread-safe.
class FakeEncoderControl : public StepGate {
 public:
  // The next step fails with `status`.
  void FailNext(absl::Status status);

  // The texts of every batch that was encoded, refused ones included. A text is empty when the
  // sequence had vectors.
  std::vector<TokenSequences> batches() const;

 private:
  friend class FakeEncoderRunner;

  absl::Status EnterStep(TokenSequences batch);

  mutable Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::vector<TokenSequences> batches_ ABSL_GUARDED_BY(mutex_);
};

// A toy encoder: component k of the vector at position i is a function of the token, i, k and the
// length of the text, so that a text that was mixed up or cut is noticed.
class FakeEncoderRunner final : public EncoderRunner {
 public:
  struct Options {
    int64_t width = 3;
    int64_t max_batch_rows = 4;
    int64_t max_batch_tokens = 64;
    int64_t vocab_size = 257;
    int64_t max_seq_len = 0;
    TokenId nan_token = -1;  // its vectors are NaN
    // The rest is as in ModelInfo. For a bare mixer set vocab_size to 0.
    bool causal = true;
    int64_t max_image_width = 0;
    std::vector<std::string> labels{};  // as many as `width`
    EncoderForms forms{};
    Pooling pooling = Pooling::kMean;
    bool normalize = false;
  };

  FakeEncoderRunner(Options options, std::shared_ptr<FakeEncoderControl> control);

  // The vectors of one text, computed without any batching.
  static TokenVectors Vectors(const Options& options, const std::vector<TokenId>& text);
  // The vectors of one input. For ids they also depend on the image's width. For vectors they
  // depend on the input's numbers, on i, on the image's width, and on masks, keys and values with
  // their places.
  static TokenVectors Vectors(const Options& options, const EncoderInput& input);

  const ModelInfo& info() const override { return info_; }
  int64_t input_width() const override { return options_.width; }
  int64_t width() const override { return options_.width; }
  int64_t max_batch_rows() const override { return options_.max_batch_rows; }
  int64_t max_batch_tokens() const override { return options_.max_batch_tokens; }
  absl::StatusOr<std::vector<TokenVectors>> Encode(
      const std::vector<EncoderInput>& sequences) override;

 private:
  const Options options_;
  const std::shared_ptr<FakeEncoderControl> control_;
  ModelInfo info_;
};

}  // namespace aft
