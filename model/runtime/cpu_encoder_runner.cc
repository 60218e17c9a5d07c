#include "model/runtime/cpu_encoder_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/model_info.h"

namespace aft {

absl::StatusOr<std::unique_ptr<CpuEncoderRunner>> CpuEncoderRunner::Create(
    std::unique_ptr<CpuNetwork> network, const Options& options) {
  AFT_CHECK(options.max_batch_rows >= 1 && options.max_batch_tokens >= options.max_batch_rows &&
            options.threads >= 1);
  std::unique_ptr<CpuEncoderRunner> runner(new CpuEncoderRunner(std::move(network), options));
  AFT_RETURN_IF_ERROR(runner->network_->Allocate(options.max_batch_tokens, runner->executor_));
  // The caches and the threads settle before the first request.
  constexpr int64_t kWarmUpTokens = 256;
  const std::vector<TokenId> text(
      static_cast<size_t>(std::min(runner->limits_.longest(), kWarmUpTokens)), 0);
  AFT_RETURN_IF_ERROR(runner->Encode({text}).status());
  return runner;
}

CpuEncoderRunner::CpuEncoderRunner(std::unique_ptr<CpuNetwork> network, const Options& options)
    : limits_({.max_batch_rows = options.max_batch_rows,
               .max_batch_tokens = options.max_batch_tokens,
               .vocab_size = network->config().vocab_size,
               .max_seq_len = network->config().max_seq_len}),
      executor_(options.threads, options.cpus),
      network_(std::move(network)),
      info_(MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                          CpuDeviceName(options.threads))) {
  offsets_.reserve(static_cast<size_t>(options.max_batch_rows) + 1);
  tokens_.reserve(static_cast<size_t>(options.max_batch_tokens));
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
  CpuNetwork::Texts texts;
  texts.sequences.sequences = static_cast<int64_t>(sequences.size());
  texts.sequences.offset = offsets_.data();
  texts.tokens = static_cast<int64_t>(tokens_.size());
  texts.ids = tokens_.data();
  AFT_RETURN_IF_ERROR(ForwardTexts(*network_, texts));
  std::vector<TokenVectors> vectors;
  vectors.reserve(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    vectors.emplace_back(network_->vectors() + offsets_[i] * width(),
                         network_->vectors() + offsets_[i + 1] * width());
  }
  return vectors;
}

}  // namespace aft
