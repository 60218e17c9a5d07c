#include "model/runtime/cpu_encoder_runner.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/model_info.h"
#include "model/runtime/torch_guard.h"

namespace aft {

absl::StatusOr<std::unique_ptr<CpuEncoderRunner>> CpuEncoderRunner::Create(
    std::unique_ptr<CpuNetwork> network, const Options& options) {
  AFT_CHECK(options.max_batch_rows >= 1 && options.max_batch_tokens >= options.max_batch_rows &&
            options.threads >= 1);
  std::unique_ptr<CpuEncoderRunner> runner(new CpuEncoderRunner(std::move(network), options));
  AFT_RETURN_IF_ERROR(runner->network_->Allocate(options.max_batch_tokens, runner->executor_));
  const ParallelExecutor::PlacedCaller placed(runner->executor_);
  // This call warms up the caches and the threads before the first request.
  constexpr int64_t kWarmUpTokens = 256;
  const int64_t longest = runner->limits_.longest();
  AFT_RETURN_IF_ERROR(
      runner->Encode(ZeroInputs(runner->limits_, std::min(longest, kWarmUpTokens))).status());
  if (options.measure_threads) {
    constexpr int64_t kMostTokens = 64;
    AFT_ASSIGN_OR_RETURN(
        runner->threads_,
        StepThreads::Measure(
            options.threads, std::min(longest, kMostTokens), [&](int64_t tokens, int threads) {
              runner->threads_ = StepThreads(threads);
              return TimeStep(
                  [&] { return runner->Encode(ZeroInputs(runner->limits_, tokens)).status(); });
            }));
    runner->info_.device = CpuDeviceName(runner->threads_);
  }
  return runner;
}

CpuEncoderRunner::CpuEncoderRunner(std::unique_ptr<CpuNetwork> network, const Options& options)
    : limits_({.max_batch_rows = options.max_batch_rows,
               .max_batch_tokens = options.max_batch_tokens,
               .vocab_size = network->config().vocab_size,
               .max_seq_len = network->config().max_seq_len,
               .width = network->config().d_model,
               .max_image_width = network->config().mixer.grid ? options.max_batch_tokens : 0,
               .forms = FormsOf(network->config())}),
      width_(OutputWidth(network->config())),
      executor_(options.threads, options.cpus),
      threads_(options.threads),
      network_(std::move(network)),
      info_(MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                          CpuDeviceName(threads_))) {
  AddStateInfo({}, network_->fingerprint(), &info_);
  info_.max_image_width = limits_.max_image_width;
  info_.forms = limits_.forms;
  info_.memory_bytes =
      info_.weight_bytes + network_->WorkspaceBytes(options.max_batch_tokens, options.threads);
  offsets_.reserve(static_cast<size_t>(options.max_batch_rows) + 1);
  tokens_.reserve(static_cast<size_t>(options.max_batch_tokens));
  key_offsets_.reserve(static_cast<size_t>(options.max_batch_rows) + 1);
  for (std::vector<const float*>* rows : {&inputs_, &keys_, &values_, &pairs_}) {
    rows->reserve(static_cast<size_t>(options.max_batch_rows));
  }
  mask_.reserve(static_cast<size_t>(options.max_batch_tokens));
}

absl::StatusOr<std::vector<TokenVectors>> CpuEncoderRunner::Encode(
    const std::vector<EncoderInput>& sequences) {
  AFT_RETURN_IF_ERROR(CheckTexts(limits_, sequences));
  return GuardTorch([&]() -> absl::StatusOr<std::vector<TokenVectors>> {
    std::vector<TokenVectors> vectors(sequences.size());
    for (const EncoderPass& pass : PassesOf(sequences, input_width())) {
      AFT_RETURN_IF_ERROR(Run(pass, sequences, vectors));
    }
    return vectors;
  });
}

absl::Status CpuEncoderRunner::Run(const EncoderPass& pass,
                                   const std::vector<EncoderInput>& sequences,
                                   std::vector<TokenVectors>& vectors) {
  offsets_.assign(1, 0);
  tokens_.clear();
  inputs_.clear();
  key_offsets_.assign(1, 0);
  keys_.clear();
  values_.clear();
  pairs_.clear();
  mask_.clear();
  bool masked = false;
  for (const size_t i : pass.sequences) {
    const EncoderInput& input = sequences[i];
    offsets_.push_back(offsets_.back() + input.tokens(input_width()));
    if (pass.vectors) {
      inputs_.push_back(input.vectors.data());
    } else {
      tokens_.insert(tokens_.end(), input.text.begin(), input.text.end());
    }
    key_offsets_.push_back(key_offsets_.back() + input.key_tokens(input_width()));
    keys_.push_back(input.keys.data());
    values_.push_back(input.values.data());
    pairs_.push_back(input.pairs == nullptr ? nullptr : input.pairs->data());
    masked = masked || !input.mask.empty();
    mask_.insert(mask_.end(), input.mask.begin(), input.mask.end());
    mask_.resize(static_cast<size_t>(key_offsets_.back()));
  }
  CpuNetwork::Texts texts;
  texts.sequences.sequences = static_cast<int64_t>(pass.sequences.size());
  texts.sequences.offset = offsets_.data();
  texts.sequences.mask = masked ? mask_.data() : nullptr;
  texts.sequences.grid_width = pass.image_width;
  if (pass.pairs) texts.sequences.pairs = pairs_.data();
  if (pass.own_keys) texts.sequences.key_offset = key_offsets_.data();
  texts.tokens = offsets_.back();
  texts.ids = pass.vectors ? nullptr : tokens_.data();
  texts.vectors = pass.vectors ? inputs_.data() : nullptr;
  if (pass.sources) {
    texts.keys = keys_.data();
    texts.values = values_.data();
  }
  executor_.Use(threads_.For(texts.tokens));
  AFT_RETURN_IF_ERROR(ForwardTexts(*network_, texts));
  for (size_t i = 0; i < pass.sequences.size(); ++i) {
    AFT_RETURN_IF_ERROR(Append(offsets_[i], offsets_[i + 1], vectors[pass.sequences[i]]));
  }
  return absl::OkStatus();
}

absl::Status CpuEncoderRunner::Append(int64_t first, int64_t end, TokenVectors& vectors) {
  if (HeadRows(network_->config()) == 0) {
    vectors.assign(network_->vectors() + first * width(), network_->vectors() + end * width());
    return absl::OkStatus();
  }
  vectors.reserve(static_cast<size_t>((end - first) * width()));
  while (first < end) {
    const int64_t count = std::min(end - first, network_->max_logit_rows());
    AFT_ASSIGN_OR_RETURN(const float* const logits, network_->Logits(first, count));
    vectors.insert(vectors.end(), logits, logits + count * width());
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace aft
