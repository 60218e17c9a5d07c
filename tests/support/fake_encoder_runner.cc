#include "tests/support/fake_encoder_runner.h"

#include <limits>
#include <utility>

#include "base/status_macros.h"
#include "model/runtime/text_rules.h"

namespace aft {

void FakeEncoderControl::FailNext(absl::Status status) {
  MutexLock lock(mutex_);
  failure_ = std::move(status);
}

std::vector<TokenSequences> FakeEncoderControl::batches() const {
  MutexLock lock(mutex_);
  return batches_;
}

absl::Status FakeEncoderControl::EnterStep(const TokenSequences& batch) {
  {
    MutexLock lock(mutex_);
    batches_.push_back(batch);
  }
  Enter();
  MutexLock lock(mutex_);
  return std::exchange(failure_, absl::OkStatus());
}

FakeEncoderRunner::FakeEncoderRunner(Options options, std::shared_ptr<FakeEncoderControl> control)
    : options_(options), control_(std::move(control)) {
  info_.architecture = "fake_encoder";
  info_.vocab_size = options_.vocab_size;
  info_.max_seq_len = options_.max_seq_len;
  info_.weight_format = "fp32";
  info_.device = "cpu";
}

TokenVectors FakeEncoderRunner::Vectors(const Options& options, const std::vector<TokenId>& text) {
  TokenVectors vectors;
  for (size_t i = 0; i < text.size(); ++i) {
    for (int64_t k = 0; k < options.width; ++k) {
      const auto value = static_cast<float>(text[i]) + 0.5F * static_cast<float>(i) -
                         0.25F * static_cast<float>(k) + 1000.0F * static_cast<float>(text.size());
      vectors.push_back(text[i] == options.nan_token ? std::numeric_limits<float>::quiet_NaN()
                                                     : value);
    }
  }
  return vectors;
}

absl::StatusOr<std::vector<TokenVectors>> FakeEncoderRunner::Encode(
    const TokenSequences& sequences) {
  AFT_RETURN_IF_ERROR(control_->EnterStep(sequences));
  AFT_RETURN_IF_ERROR(CheckTexts({.max_batch_rows = options_.max_batch_rows,
                                  .max_batch_tokens = options_.max_batch_tokens,
                                  .vocab_size = options_.vocab_size,
                                  .max_seq_len = options_.max_seq_len},
                                 sequences));
  std::vector<TokenVectors> vectors;
  for (const std::vector<TokenId>& text : sequences) vectors.push_back(Vectors(options_, text));
  return vectors;
}

}  // namespace aft
