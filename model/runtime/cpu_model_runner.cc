#include "model/runtime/cpu_model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace aft {

absl::StatusOr<std::unique_ptr<CpuModelRunner>> CpuModelRunner::Create(
    std::unique_ptr<Decoder> decoder, const Options& options) {
  AFT_CHECK(options.slots >= 1 && options.max_step_tokens >= options.slots && options.threads >= 1);
  std::unique_ptr<CpuModelRunner> runner(new CpuModelRunner(std::move(decoder), options));
  const NetworkConfig& config = runner->decoder_->config();
  AFT_ASSIGN_OR_RETURN(runner->states_,
                       StatePool::Create(runner->decoder_->state_specs(), options.slots));
  AFT_ASSIGN_OR_RETURN(
      runner->workspace_,
      DecoderWorkspace::Create(config, options.max_step_tokens, runner->decoder_->scratch_floats(),
                               runner->executor_));
  AFT_ASSIGN_OR_RETURN(runner->logits_,
                       AlignedBuffer::Create(options.slots * config.vocab_size, "logits"));
  runner->info_.state_bytes = runner->states_.slot_bytes();
  AFT_RETURN_IF_ERROR(runner->WarmUp());
  return runner;
}

CpuModelRunner::CpuModelRunner(std::unique_ptr<Decoder> decoder, const Options& options)
    : options_(options), executor_(options.threads), decoder_(std::move(decoder)) {
  const NetworkConfig& config = decoder_->config();
  info_.architecture = MixerKindName(config.mixer.kind);
  info_.vocab_size = config.vocab_size;
  info_.parameters = CountParameters(config);
  info_.max_seq_len = config.max_seq_len;
  info_.weight_bytes = decoder_->weight_bytes();
  info_.weight_format = "fp32";
  info_.device = "cpu";
  const auto slots = static_cast<size_t>(options.slots);
  slots_.resize(slots);
  row_slots_.reserve(slots);
  row_positions_.reserve(slots);
  row_offsets_.reserve(slots + 1);
  outputs_.reserve(slots);
  tokens_.reserve(static_cast<size_t>(options.max_step_tokens));
}

int64_t CpuModelRunner::WorkspaceBytes(const NetworkConfig& config, int64_t scratch_floats,
                                       const Options& options) {
  return static_cast<int64_t>(sizeof(float)) *
         (DecoderWorkspace::Floats(config, options.max_step_tokens, scratch_floats,
                                   options.threads) +
          options.slots * config.vocab_size);
}

void CpuModelRunner::BindSlot(int32_t slot, const SamplingParams& params) {
  AFT_CHECK(slot >= 0 && slot < slots());
  Slot& bound = slots_[static_cast<size_t>(slot)];
  bound.params = params;
  bound.next_position = 0;
  bound.sampled = 0;
}

void CpuModelRunner::ForkSlot(int32_t /*from*/, int32_t /*to*/) { AFT_CHECK(false); }
std::string CpuModelRunner::SnapshotSlot(int32_t /*slot*/) const { return ""; }
absl::Status CpuModelRunner::RestoreSlot(int32_t /*slot*/, absl::string_view /*snapshot*/) {
  return absl::UnimplementedError("");
}

absl::Status CpuModelRunner::ValidateRow(const StepRow& row, int64_t index) {
  const auto error = [index](const auto&... what) {
    return absl::InvalidArgumentError(absl::StrCat("row ", index, ": ", what...));
  };
  if (row.slot < 0 || row.slot >= slots()) return error("slot ", row.slot, " is out of range");
  Slot& slot = slots_[static_cast<size_t>(row.slot)];
  if (slot.named_by == submissions_) return error("slot ", row.slot, " occurs twice");
  slot.named_by = submissions_;
  if (row.tokens.empty()) return error("no tokens");
  if (row.first_position != 0 && row.first_position != slot.next_position) {
    return error("position ", row.first_position, ", but slot ", row.slot, " is at ",
                 slot.next_position);
  }
  const auto length = static_cast<int64_t>(row.tokens.size());
  if (info_.max_seq_len > 0 && row.first_position + length > info_.max_seq_len) {
    return error("position ", row.first_position + length - 1, " is beyond max_seq_len ",
                 info_.max_seq_len);
  }
  for (const TokenId token : row.tokens) {
    if (token < 0 || token >= info_.vocab_size) return error("token ", token, " is out of range");
  }
  return absl::OkStatus();
}

absl::Status CpuModelRunner::Validate(const StepInput& input) {
  if (uncollected_.has_value()) {
    return absl::FailedPreconditionError("the step before is not collected");
  }
  ++submissions_;
  size_t tokens = 0;
  for (size_t i = 0; i < input.rows.size(); ++i) {
    AFT_RETURN_IF_ERROR(ValidateRow(input.rows[i], static_cast<int64_t>(i)));
    tokens += input.rows[i].tokens.size();
  }
  if (tokens > static_cast<size_t>(options_.max_step_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens, " tokens in a step of at most ", options_.max_step_tokens));
  }
  return absl::OkStatus();
}

void CpuModelRunner::Flatten(const StepInput& input) {
  row_slots_.clear();
  row_positions_.clear();
  row_offsets_.assign(1, 0);
  tokens_.clear();
  outputs_.clear();
  for (const StepRow& row : input.rows) {
    row_slots_.push_back(row.slot);
    row_positions_.push_back(row.first_position);
    tokens_.insert(tokens_.end(), row.tokens.begin(), row.tokens.end());
    const auto end = static_cast<int64_t>(tokens_.size());
    row_offsets_.push_back(end);
    if (row.output == RowOutput::kLast) outputs_.push_back(end - 1);
  }
}

StepOutput CpuModelRunner::Sample(const StepInput& input) {
  StepOutput output;
  output.sampled.resize(outputs_.size());
  size_t next = 0;
  for (const StepRow& row : input.rows) {
    if (row.output != RowOutput::kLast) continue;
    Slot& slot = slots_[static_cast<size_t>(row.slot)];
    const float* logits = logits_.data() + static_cast<int64_t>(next) * info_.vocab_size;
    SampledToken& token = output.sampled[next++];
    const absl::Status status =
        sampler_.Sample(logits, info_.vocab_size, slot.params, slot.sampled++, &token);
    if (!status.ok()) token.id = kNoToken;
  }
  return output;
}

absl::StatusOr<ModelRunner::Ticket> CpuModelRunner::Submit(const StepInput& input) {
  AFT_RETURN_IF_ERROR(Validate(input));
  ++step_;
  Flatten(input);
  DecoderBatch batch;
  batch.rows = {static_cast<int64_t>(input.rows.size()), row_slots_.data(), row_positions_.data(),
                row_offsets_.data()};
  batch.tokens = tokens_.data();
  batch.outputs = outputs_.data();
  batch.output_count = static_cast<int64_t>(outputs_.size());
  decoder_->Forward(batch, states_, *workspace_, logits_.data());
  for (const StepRow& row : input.rows) {
    slots_[static_cast<size_t>(row.slot)].next_position =
        row.first_position + static_cast<int64_t>(row.tokens.size());
  }
  uncollected_ = Sample(input);
  return step_;
}

absl::StatusOr<StepOutput> CpuModelRunner::Collect(Ticket ticket) {
  if (!uncollected_.has_value() || ticket != step_) {
    return absl::FailedPreconditionError(absl::StrCat("step ", ticket, " is not in flight"));
  }
  StepOutput output = *std::move(uncollected_);
  uncollected_.reset();
  return output;
}

absl::Status CpuModelRunner::WarmUp() {
  // The largest step, then decode steps of every slot: the caches, the frequency and OpenMP's
  // threads settle before the first request.
  const int64_t limit = info_.max_seq_len > 0 ? info_.max_seq_len : options_.max_step_tokens;
  const int64_t prompt = std::min({limit, options_.max_step_tokens, int64_t{256}});
  StepInput step;
  step.rows.push_back(
      {0, 0, std::vector<TokenId>(static_cast<size_t>(prompt), 0), RowOutput::kLast});
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) {
    AFT_ASSIGN_OR_RETURN(const Ticket ticket, Submit(step));
    AFT_RETURN_IF_ERROR(Collect(ticket).status());
    step.rows.clear();
    for (int32_t slot = 0; slot < slots(); ++slot) {
      step.rows.push_back({slot, 0, {0}, RowOutput::kLast});
    }
  }
  for (int32_t slot = 0; slot < slots(); ++slot) BindSlot(slot, SamplingParams());
  return absl::OkStatus();
}

}  // namespace aft
