#include "model/runtime/cpu_encoder_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/model_info.h"

namespace aft {
namespace {

TextLimits Limits(const NetworkConfig& config, const CpuEncoderRunner::Options& options) {
  return {.max_batch_rows = options.max_batch_rows,
          .max_batch_tokens = options.max_batch_tokens,
          .vocab_size = config.vocab_size,
          .max_seq_len = config.max_seq_len};
}

}  // namespace

absl::StatusOr<std::unique_ptr<CpuEncoderRunner>> CpuEncoderRunner::Create(
    std::unique_ptr<Encoder> encoder, const Options& options) {
  AFT_CHECK(options.max_batch_rows >= 1 && options.max_batch_tokens >= options.max_batch_rows &&
            options.threads >= 1);
  std::unique_ptr<CpuEncoderRunner> runner(new CpuEncoderRunner(std::move(encoder), options));
  const NetworkConfig& config = runner->encoder_->config();
  AFT_ASSIGN_OR_RETURN(
      runner->workspace_,
      Activations::Create(config, options.max_batch_tokens,
                          runner->encoder_->scratch_floats(runner->limits_.longest()),
                          runner->executor_));
  // The caches and the threads settle before the first request.
  constexpr int64_t kWarmUpTokens = 256;
  const std::vector<TokenId> text(
      static_cast<size_t>(std::min(runner->limits_.longest(), kWarmUpTokens)), 0);
  AFT_RETURN_IF_ERROR(runner->Encode({text}).status());
  return runner;
}

CpuEncoderRunner::CpuEncoderRunner(std::unique_ptr<Encoder> encoder, const Options& options)
    : limits_(Limits(encoder->config(), options)),
      executor_(options.threads),
      encoder_(std::move(encoder)) {
  info_ = MakeModelInfo(encoder_->config(), encoder_->weight_bytes());
  offsets_.reserve(static_cast<size_t>(options.max_batch_rows) + 1);
  tokens_.reserve(static_cast<size_t>(options.max_batch_tokens));
}

int64_t CpuEncoderRunner::WorkspaceBytes(const Encoder& encoder, const Options& options) {
  const int64_t longest = Limits(encoder.config(), options).longest();
  return static_cast<int64_t>(sizeof(float)) *
         Activations::Floats(encoder.config(), options.max_batch_tokens,
                             encoder.scratch_floats(longest), options.threads);
}

absl::StatusOr<std::vector<TokenVectors>> CpuEncoderRunner::Encode(
    const std::vector<std::vector<TokenId>>& sequences) {
  AFT_RETURN_IF_ERROR(CheckTexts(limits_, sequences));
  offsets_.assign(1, 0);
  tokens_.clear();
  for (const std::vector<TokenId>& sequence : sequences) {
    tokens_.insert(tokens_.end(), sequence.begin(), sequence.end());
    offsets_.push_back(static_cast<int64_t>(tokens_.size()));
  }
  SequenceBatch batch;
  batch.sequences = static_cast<int64_t>(sequences.size());
  batch.offset = offsets_.data();
  encoder_->Forward(batch, tokens_.data(), *workspace_);
  std::vector<TokenVectors> vectors;
  vectors.reserve(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    vectors.emplace_back(workspace_->x + offsets_[i] * width(),
                         workspace_->x + offsets_[i + 1] * width());
  }
  return vectors;
}

}  // namespace aft
