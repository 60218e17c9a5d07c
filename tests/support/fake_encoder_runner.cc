#include "tests/support/fake_encoder_runner.h"

#include <algorithm>
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

absl::Status FakeEncoderControl::EnterStep(TokenSequences batch) {
  {
    MutexLock lock(mutex_);
    batches_.push_back(std::move(batch));
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
  info_.causal = options_.causal;
  info_.max_image_width = options_.max_image_width;
  info_.labels = options_.labels;
  info_.forms = options_.forms;
  info_.pooling = options_.pooling;
  info_.normalize = options_.normalize;
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

TokenVectors FakeEncoderRunner::Vectors(const Options& options, const EncoderInput& input) {
  if (input.vectors.empty()) {
    TokenVectors vectors = Vectors(options, input.text);
    for (float& value : vectors) value += 1000.0F * static_cast<float>(input.image_width);
    return vectors;
  }
  TokenVectors vectors = input.vectors;
  const auto width = static_cast<size_t>(options.width);
  for (size_t n = 0; n < vectors.size(); ++n) {
    const size_t i = n / width;
    vectors[n] += 0.5F * static_cast<float>(i) + 1000.0F * static_cast<float>(input.image_width);
    if (!input.mask.empty() && input.values.empty()) vectors[n] += std::max(input.mask[i], -100.0F);
    const auto keys = static_cast<size_t>(input.key_tokens(options.width));
    for (size_t key = 0; key < keys; ++key) {
      const float of_pair = (input.pairs == nullptr ? 0.0F : (*input.pairs)[i * keys + key]);
      const float of_key = input.mask.empty() || input.values.empty() ? 0.0F : input.mask[key];
      const auto place = static_cast<float>(key + 1);
      vectors[n] += place * (std::max(of_pair, -100.0F) + std::max(of_key, -100.0F));
      const size_t at = key * width + n % width;
      if (!input.keys.empty()) vectors[n] += 3.0F * place * input.keys[at];
      if (!input.values.empty()) vectors[n] += 5.0F * place * input.values[at];
    }
  }
  return vectors;
}

absl::StatusOr<std::vector<TokenVectors>> FakeEncoderRunner::Encode(
    const std::vector<EncoderInput>& sequences) {
  TokenSequences texts;
  for (const EncoderInput& input : sequences) texts.push_back(input.text);
  AFT_RETURN_IF_ERROR(control_->EnterStep(std::move(texts)));
  AFT_RETURN_IF_ERROR(CheckTexts({.max_batch_rows = options_.max_batch_rows,
                                  .max_batch_tokens = options_.max_batch_tokens,
                                  .vocab_size = options_.vocab_size,
                                  .max_seq_len = options_.max_seq_len,
                                  .width = options_.width,
                                  .max_image_width = options_.max_image_width,
                                  .forms = options_.forms},
                                 sequences));
  std::vector<TokenVectors> vectors;
  for (const EncoderInput& input : sequences) vectors.push_back(Vectors(options_, input));
  return vectors;
}

}  // namespace aft
