#include "model/gpu/gpu_encoder_runner.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/kernel_status.h"
#include "model/runtime/model_info.h"

namespace aft {

struct GpuEncoderRunner::Input {
  Input(int64_t rows, int64_t token_count, void* block)
      : offset(static_cast<int64_t*>(block)),
        position(offset + rows + 1),
        tokens(reinterpret_cast<int32_t*>(position + token_count)) {}

  static int64_t Bytes(int64_t rows, int64_t token_count) {
    return (rows + 1 + token_count) * int64_t{sizeof(int64_t)} +
           token_count * int64_t{sizeof(int32_t)};
  }

  int64_t* offset;    // [rows + 1]
  int64_t* position;  // [tokens]
  int32_t* tokens;    // [tokens]
};

absl::StatusOr<std::unique_ptr<GpuEncoderRunner>> GpuEncoderRunner::Create(
    std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network, const Options& options) {
  AFT_CHECK(options.max_batch_rows >= 1 && options.max_batch_tokens >= options.max_batch_rows);
  if (options.max_batch_rows > kernels::cuda::kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch_rows: at most ", kernels::cuda::kMaxRows, " on a GPU"));
  }
  std::unique_ptr<GpuEncoderRunner> runner(
      new GpuEncoderRunner(std::move(queue), std::move(network), options));
  AFT_RETURN_IF_ERROR(runner->Allocate());
  AFT_RETURN_IF_ERROR(runner->WarmUp());
  return runner;
}

GpuEncoderRunner::GpuEncoderRunner(std::unique_ptr<GpuQueue> queue,
                                   std::unique_ptr<GpuNetwork> network, const Options& options)
    : limits_({.max_batch_rows = options.max_batch_rows,
               .max_batch_tokens = options.max_batch_tokens,
               .vocab_size = network->config().vocab_size,
               .max_seq_len = network->config().max_seq_len}),
      queue_(std::move(queue)),
      network_(std::move(network)),
      info_(MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                          queue_->name())) {}

GpuEncoderRunner::~GpuEncoderRunner() { queue_->Synchronize().IgnoreError(); }

absl::Status GpuEncoderRunner::Allocate() {
  const int64_t bytes = Input::Bytes(limits_.max_batch_rows, limits_.max_batch_tokens);
  AFT_RETURN_IF_ERROR(CheckFits(
      {{absl::StrCat("batches of ", limits_.max_batch_tokens, " tokens"), bytes}}, *queue_));
  AFT_RETURN_IF_ERROR(queue_->Run([&] {
    input_ = at::zeros({bytes}, at::TensorOptions(at::kByte).device(queue_->device()));
    return absl::OkStatus();
  }));
  AFT_ASSIGN_OR_RETURN(host_input_, queue_->HostBuffer(bytes));
  AFT_ASSIGN_OR_RETURN(host_vectors_, queue_->HostBuffer(limits_.max_batch_tokens * width() *
                                                         int64_t{sizeof(float)}));
  AFT_ASSIGN_OR_RETURN(begin_, queue_->MakeEvent());
  AFT_ASSIGN_OR_RETURN(end_, queue_->MakeEvent());
  return absl::OkStatus();
}

// Products choose, and load, their kernels by the number of rows: batches of every size, doubling.
// The largest comes first: LibTorch takes the memory of all of them now.
absl::Status GpuEncoderRunner::WarmUp() {
  const int64_t longest = limits_.longest();
  const int64_t most = std::min(limits_.max_batch_tokens, limits_.max_batch_rows * longest);
  AFT_RETURN_IF_ERROR(EncodeZeros(most));
  for (int64_t tokens = 1; tokens < most; tokens *= 2) AFT_RETURN_IF_ERROR(EncodeZeros(tokens));
  stats_ = {};
  stats_.memory_total = queue_->total_bytes();
  stats_.memory_used = stats_.memory_total - queue_->free_bytes();
  return absl::OkStatus();
}

void GpuEncoderRunner::PrepareThread() {
  EncodeZeros(1).IgnoreError();
  stats_.step_seconds = 0;
}

absl::Status GpuEncoderRunner::EncodeZeros(int64_t tokens) {
  const int64_t longest = limits_.longest();
  std::vector<std::vector<TokenId>> texts;
  for (; tokens > 0; tokens -= longest) {
    texts.emplace_back(static_cast<size_t>(std::min(tokens, longest)), 0);
  }
  return Encode(texts).status();
}

absl::StatusOr<std::vector<TokenVectors>> GpuEncoderRunner::Encode(
    const std::vector<std::vector<TokenId>>& sequences) {
  AFT_RETURN_IF_ERROR(CheckTexts(limits_, sequences));
  int64_t tokens = 0;
  for (const std::vector<TokenId>& text : sequences) tokens += static_cast<int64_t>(text.size());
  absl::Status status = queue_->Run([&] { return Compute(sequences, tokens); });
  if (status.ok()) status = end_->Wait();
  if (!status.ok()) return WorkFailed("batch on the GPU", status, queue_.get());
  stats_.step_seconds = end_->SecondsSince(*begin_);
  std::vector<TokenVectors> vectors;
  vectors.reserve(sequences.size());
  const float* at = static_cast<const float*>(host_vectors_.data_ptr());
  for (const std::vector<TokenId>& text : sequences) {
    const float* const end = at + static_cast<int64_t>(text.size()) * width();
    vectors.emplace_back(at, end);
    at = end;
  }
  return vectors;
}

absl::Status GpuEncoderRunner::Compute(const std::vector<std::vector<TokenId>>& sequences,
                                       int64_t tokens) {
  const auto rows = static_cast<int64_t>(sequences.size());
  const Input host(rows, tokens, host_input_.data_ptr());
  GpuNetwork::Texts batch;
  int64_t at = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const std::vector<TokenId>& text = sequences[static_cast<size_t>(i)];
    const auto length = static_cast<int64_t>(text.size());
    host.offset[i] = at;
    std::copy(text.begin(), text.end(), host.tokens + at);
    for (int64_t position = 0; position < length; ++position) {
      host.position[at + position] = position;
    }
    batch.texts.longest = std::max(batch.texts.longest, length);
    at += length;
  }
  host.offset[rows] = at;

  const Input device(rows, tokens, input_.data_ptr());
  batch.texts.sequences = rows;
  batch.texts.offset = device.offset;
  batch.texts.tokens = tokens;
  batch.tokens = tokens;
  batch.ids = device.tokens;
  batch.token_positions = device.position;
  AFT_RETURN_IF_ERROR(begin_->Record());
  AFT_RETURN_IF_ERROR(
      queue_->Copy(input_.data_ptr(), host_input_.data_ptr(), Input::Bytes(rows, tokens)));
  AFT_RETURN_IF_ERROR(ForwardTexts(*network_, batch));
  AFT_RETURN_IF_ERROR(queue_->Copy(host_vectors_.data_ptr(), network_->vectors(),
                                   tokens * width() * int64_t{sizeof(float)}));
  return end_->Record();
}

}  // namespace aft
