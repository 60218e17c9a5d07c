#include "model/gpu/gpu_encoder_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/gpu/gpu_need.h"
#include "model/gpu/kernel_status.h"
#include "model/kernels/cuda/product/product.h"
#include "model/runtime/model_info.h"
#include "model/runtime/torch_guard.h"

namespace aft {

struct GpuEncoderRunner::Input {
  Input(int64_t rows, int64_t token_count, void* block)
      : offset(static_cast<int64_t*>(block)),
        position(offset + rows + 1),
        tokens(reinterpret_cast<int32_t*>(position + token_count)),
        mask(reinterpret_cast<float*>(tokens + token_count)),
        vectors(reinterpret_cast<float*>(static_cast<char*>(block) + Bytes(rows, token_count))) {}

  // The bytes without vectors, which only passes of vectors have.
  static int64_t Bytes(int64_t rows, int64_t token_count) {
    constexpr int64_t kAlignment = 256;
    const int64_t bytes = (rows + 1 + token_count) * int64_t{sizeof(int64_t)} +
                          token_count * (int64_t{sizeof(int32_t)} + int64_t{sizeof(float)});
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  int64_t* offset;    // [rows + 1]
  int64_t* position;  // [tokens]
  int32_t* tokens;    // [tokens]
  float* mask;        // [tokens]
  float* vectors;     // [tokens, width]
};

absl::StatusOr<std::unique_ptr<GpuEncoderRunner>> GpuEncoderRunner::Create(
    std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network, const Options& options) {
  AFT_CHECK(options.max_batch_rows >= 1 && options.max_batch_tokens >= options.max_batch_rows);
  if (options.max_batch_rows > kernels::cuda::kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_batch_rows: at most ", kernels::cuda::kMaxRows, " on a GPU"));
  }
  const MixerConfig& mixer = network->config().mixer;
  if (mixer.grid && network->max_grid_width() == 0) {
    return absl::InvalidArgumentError(absl::StrCat("mixer.window: a 2-D filter of ", mixer.window,
                                                   " taps is too large for a GPU"));
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
               .max_seq_len = network->config().max_seq_len,
               .width = network->config().d_model,
               .max_image_width = std::min(network->max_grid_width(), options.max_batch_tokens)}),
      width_(OutputWidth(network->config())),
      queue_(std::move(queue)),
      network_(std::move(network)),
      info_(MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                          queue_->name())) {
  AddStateInfo({}, network_->fingerprint(), &info_);
  info_.max_image_width = limits_.max_image_width;
}

GpuEncoderRunner::~GpuEncoderRunner() { queue_->Synchronize().IgnoreError(); }

absl::Status GpuEncoderRunner::Allocate() {
  const int64_t vectors = limits_.max_batch_tokens * int64_t{sizeof(float)};
  const int64_t bytes =
      Input::Bytes(limits_.max_batch_rows, limits_.max_batch_tokens) + vectors * input_width();
  AFT_RETURN_IF_ERROR(
      CheckFits({{absl::StrCat("batches of ", limits_.max_batch_tokens, " tokens"), bytes},
                 KeptForLibraries(*queue_)},
                *queue_));
  AFT_RETURN_IF_ERROR(queue_->Run([&] {
    input_ = at::zeros({bytes}, at::TensorOptions(at::kByte).device(queue_->device()));
    return absl::OkStatus();
  }));
  AFT_ASSIGN_OR_RETURN(host_input_, queue_->HostBuffer(bytes));
  AFT_ASSIGN_OR_RETURN(host_vectors_, queue_->HostBuffer(vectors * width()));
  info_.memory_bytes = static_cast<int64_t>(host_input_.nbytes() + host_vectors_.nbytes());
  AFT_ASSIGN_OR_RETURN(begin_, queue_->MakeEvent());
  AFT_ASSIGN_OR_RETURN(end_, queue_->MakeEvent());
  return absl::OkStatus();
}

// Products choose and load their kernels by the number of rows. So batches of every size are run,
// doubling. The largest comes first, so that LibTorch takes the memory for all of them at once.
absl::Status GpuEncoderRunner::WarmUp() {
  const int64_t most = MostTokens();
  AFT_RETURN_IF_ERROR(EncodeZeros(most));
  for (int64_t tokens = 1; tokens < most; tokens *= 2) AFT_RETURN_IF_ERROR(EncodeZeros(tokens));
  stats_ = {};
  stats_.memory_total = queue_->total_bytes();
  stats_.memory_used = stats_.memory_total - queue_->free_bytes();
  return absl::OkStatus();
}

int64_t GpuEncoderRunner::MostTokens() const {
  return std::min(limits_.max_batch_tokens, limits_.max_batch_rows * limits_.longest());
}

// Products of few rows may not use LibTorch (GpuLinear), so this batch has more, if any can.
// WarmUp has run a batch of this size.
void GpuEncoderRunner::PrepareThread() {
  EncodeZeros(std::min(MostTokens(), 2 * kernels::cuda::kFewRows)).IgnoreError();
  stats_.step_seconds = 0;
}

absl::Status GpuEncoderRunner::EncodeZeros(int64_t tokens) {
  return Encode(ZeroInputs(limits_, tokens)).status();
}

absl::StatusOr<std::vector<TokenVectors>> GpuEncoderRunner::Encode(
    const std::vector<EncoderInput>& sequences) {
  AFT_RETURN_IF_ERROR(CheckTexts(limits_, sequences));
  std::vector<TokenVectors> vectors(sequences.size());
  stats_.step_seconds = 0;
  for (const EncoderPass& pass : PassesOf(sequences, input_width())) {
    absl::Status status = queue_->Run([&] { return Compute(pass, sequences); });
    if (status.ok()) status = end_->Wait();
    if (!status.ok()) return WorkFailed("batch on the GPU", status, queue_.get());
    stats_.step_seconds += end_->SecondsSince(*begin_);
    const float* at = static_cast<const float*>(host_vectors_.data_ptr());
    AFT_RETURN_IF_ERROR(GuardTorch([&] {
      for (const size_t i : pass.sequences) {
        const float* const end = at + sequences[i].tokens(input_width()) * width();
        vectors[i].assign(at, end);
        at = end;
      }
      return absl::OkStatus();
    }));
  }
  return vectors;
}

absl::Status GpuEncoderRunner::Compute(const EncoderPass& pass,
                                       const std::vector<EncoderInput>& sequences) {
  const auto rows = static_cast<int64_t>(pass.sequences.size());
  int64_t tokens = 0;
  for (const size_t i : pass.sequences) tokens += sequences[i].tokens(input_width());
  const Input host(rows, tokens, host_input_.data_ptr());
  std::fill_n(host.mask, tokens, 0.0F);
  GpuNetwork::Texts batch;
  bool masked = false;
  int64_t at = 0;
  for (int64_t row = 0; row < rows; ++row) {
    const EncoderInput& input = sequences[pass.sequences[static_cast<size_t>(row)]];
    const int64_t length = input.tokens(input_width());
    host.offset[row] = at;
    std::iota(host.position + at, host.position + at + length, int64_t{0});
    std::copy(input.text.begin(), input.text.end(), host.tokens + at);
    std::copy(input.mask.begin(), input.mask.end(), host.mask + at);
    std::copy(input.vectors.begin(), input.vectors.end(), host.vectors + at * input_width());
    masked = masked || !input.mask.empty();
    batch.texts.longest = std::max(batch.texts.longest, length);
    at += length;
  }
  host.offset[rows] = at;
  // Vectors are a table, and every token is one row of it.
  if (pass.vectors) std::iota(host.tokens, host.tokens + tokens, int32_t{0});

  const Input device(rows, tokens, input_.data_ptr());
  batch.texts.sequences = rows;
  batch.texts.offset = device.offset;
  batch.texts.mask = masked ? device.mask : nullptr;
  batch.texts.grid_width = pass.image_width;
  batch.texts.tokens = tokens;
  batch.tokens = tokens;
  batch.ids = device.tokens;
  batch.token_positions = device.position;
  if (pass.vectors) batch.vectors = device.vectors;
  const int64_t vector_bytes = tokens * input_width() * int64_t{sizeof(float)};
  AFT_RETURN_IF_ERROR(begin_->Record());
  AFT_RETURN_IF_ERROR(queue_->Copy(input_.data_ptr(), host_input_.data_ptr(),
                                   Input::Bytes(rows, tokens) + (pass.vectors ? vector_bytes : 0)));
  AFT_RETURN_IF_ERROR(ForwardTexts(*network_, batch));
  AFT_RETURN_IF_ERROR(CopyVectors(tokens));
  return end_->Record();
}

absl::Status GpuEncoderRunner::CopyVectors(int64_t tokens) {
  float* const host = static_cast<float*>(host_vectors_.data_ptr());
  const int64_t row_bytes = width() * int64_t{sizeof(float)};
  if (HeadRows(network_->config()) == 0) {
    return queue_->Copy(host, network_->vectors(), tokens * row_bytes);
  }
  for (int64_t first = 0; first < tokens;) {
    const int64_t count = std::min(tokens - first, network_->max_logit_rows());
    AFT_ASSIGN_OR_RETURN(const float* const logits, network_->Logits(first, count));
    AFT_RETURN_IF_ERROR(queue_->Copy(host + first * width(), logits, count * row_bytes));
    first += count;
  }
  return absl::OkStatus();
}

}  // namespace aft
