#include "model/runtime/cpu_encoder_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/model_info.h"

namespace aft {
namespace {

// The longest text that a call can hold.
int64_t MaxTokens(const NetworkConfig& config, const CpuEncoderRunner::Options& options) {
  return config.max_seq_len > 0 ? std::min(config.max_seq_len, options.max_batch_tokens)
                                : options.max_batch_tokens;
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
                          runner->encoder_->scratch_floats(MaxTokens(config, options)),
                          runner->executor_));
  // The caches and the threads settle before the first request.
  constexpr int64_t kWarmUpTokens = 256;
  const std::vector<TokenId> text(
      static_cast<size_t>(std::min(MaxTokens(config, options), kWarmUpTokens)), 0);
  AFT_RETURN_IF_ERROR(runner->Encode({text}).status());
  return runner;
}

CpuEncoderRunner::CpuEncoderRunner(std::unique_ptr<Encoder> encoder, const Options& options)
    : options_(options), executor_(options.threads), encoder_(std::move(encoder)) {
  info_ = CpuModelInfo(encoder_->config(), encoder_->weight_bytes());
  offsets_.reserve(static_cast<size_t>(options.max_batch_rows) + 1);
  tokens_.reserve(static_cast<size_t>(options.max_batch_tokens));
}

int64_t CpuEncoderRunner::WorkspaceBytes(const Encoder& encoder, const Options& options) {
  const int64_t longest = MaxTokens(encoder.config(), options);
  return static_cast<int64_t>(sizeof(float)) *
         Activations::Floats(encoder.config(), options.max_batch_tokens,
                             encoder.scratch_floats(longest), options.threads);
}

absl::Status CpuEncoderRunner::Validate(const std::vector<std::vector<TokenId>>& sequences) const {
  if (sequences.size() > static_cast<size_t>(options_.max_batch_rows)) {
    return absl::InvalidArgumentError(absl::StrCat(
        sequences.size(), " sequences in a batch of at most ", options_.max_batch_rows));
  }
  size_t tokens = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto error = [i](const auto&... what) {
      return absl::InvalidArgumentError(absl::StrCat("sequence ", i, ": ", what...));
    };
    const size_t length = sequences[i].size();
    if (length == 0) return error("no tokens");
    if (info_.max_seq_len > 0 && length > static_cast<size_t>(info_.max_seq_len)) {
      return error(length, " tokens; max_seq_len is ", info_.max_seq_len);
    }
    for (const TokenId token : sequences[i]) {
      if (token < 0 || token >= info_.vocab_size) return error("token ", token, " is out of range");
    }
    tokens += length;
  }
  if (tokens > static_cast<size_t>(options_.max_batch_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens in a batch of at most ", options_.max_batch_tokens));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TokenVectors>> CpuEncoderRunner::Encode(
    const std::vector<std::vector<TokenId>>& sequences) {
  AFT_RETURN_IF_ERROR(Validate(sequences));
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
