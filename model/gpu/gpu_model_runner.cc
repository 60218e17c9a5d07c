#include "model/gpu/gpu_model_runner.h"

#include <algorithm>
#include <utility>

#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/memory.h"
#include "base/status_macros.h"
#include "model/gpu/device_tensor.h"
#include "model/gpu/gpu_need.h"
#include "model/gpu/kernel_status.h"
#include "model/runtime/model_info.h"
#include "model/runtime/slot_states.h"
#include "model/runtime/torch_guard.h"
#include "model/sampling/row_rules.h"
#include "model/sampling/token_counts.h"

namespace aft {
namespace {

using kernels::cuda::SlotSampling;

// The device's memory is read once in this number of steps: our steps do not change it.
constexpr uint64_t kStepsPerMemoryReading = 1024;

// No device has this much memory. A config may make the states larger than a number of 64 bits.
constexpr int64_t kMostStates = int64_t{1} << 62;

constexpr int64_t kRulesBytes = kMaxLogitRules * int64_t{sizeof(LogitRule)};  // of a slot

constexpr char kStep[] = "step on the GPU";

// The most tokens of a sequence.
int64_t MostTokens(const NetworkConfig& config) {
  const int64_t most = kernels::cuda::kMaxSequenceTokens;
  return config.max_seq_len > 0 ? std::min(config.max_seq_len, most) : most;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuModelRunner>> GpuModelRunner::Create(
    std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network, const Options& options) {
  AFT_CHECK(options.slots >= 1 && options.max_step_tokens >= options.slots);
  if (options.slots > kernels::cuda::kMaxRows) {
    return absl::InvalidArgumentError(
        absl::StrCat("slots: at most ", kernels::cuda::kMaxRows, " on a GPU"));
  }
  std::unique_ptr<GpuModelRunner> runner(
      new GpuModelRunner(std::move(queue), std::move(network), options));
  AFT_RETURN_IF_ERROR(runner->CheckMemory());
  AFT_RETURN_IF_ERROR(runner->Allocate());
  AFT_RETURN_IF_ERROR(runner->WarmUp());
  return runner;
}

GpuModelRunner::GpuModelRunner(std::unique_ptr<GpuQueue> queue, std::unique_ptr<GpuNetwork> network,
                               const Options& options)
    : options_(options),
      queue_(std::move(queue)),
      network_(std::move(network)),
      info_(MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                          queue_->name())),
      sequences_({.slots = options.slots,
                  .max_step_tokens = options.max_step_tokens,
                  .vocab_size = network_->config().vocab_size,
                  .max_seq_len = MostTokens(network_->config())}),
      ages_(options.slots, network_->lookahead_rows()),
      shapes_(options.slots, options.max_step_tokens),
      graphs_(shapes_.all().size()),
      has_terms_(static_cast<size_t>(options.slots), 1),
      has_bans_(static_cast<size_t>(options.slots), 0) {
  info_.max_seq_len = sequences_.limits().max_seq_len;
  AddStateInfo(network_->state_specs(), network_->fingerprint(), &info_);
}

GpuModelRunner::~GpuModelRunner() { queue_->Synchronize().IgnoreError(); }

GpuStepShape GpuModelRunner::LargestShape() const {
  // More than any step has, because its rows are either decode rows or chunks.
  const GpuLimits& limits = shapes_.limits();
  return {options_.slots, limits.rows, limits.tokens, limits.tokens};
}

int64_t GpuModelRunner::HiddenBytes(int64_t outputs) const {
  const kernels::cuda::In hidden = network_->hidden();
  return outputs * hidden.stride * NumberBytes(hidden.type);
}

// The network has been allocated already; the list has everything else.
absl::Status GpuModelRunner::CheckMemory() const {
  const int64_t slots = options_.slots;
  const std::string length = info_.state_bytes_per_token > 0
                                 ? absl::StrCat(" (", info_.max_seq_len, " tokens, max_seq_len)")
                                 : "";
  const int64_t sampling =
      info_.vocab_size * int64_t{sizeof(TokenCount)} + int64_t{sizeof(SlotSampling)} + kRulesBytes;
  absl::Status status = CheckFits(
      {{absl::StrCat("states of ", slots, " slots of ", Mebibytes(info_.state_bytes), length),
        slots * std::min(info_.state_bytes, kMostStates / slots)},
       {"token counts and rules", slots * sampling},
       {absl::StrCat("steps of ", options_.max_step_tokens, " tokens"),
        GpuStepInput::Bytes(LargestShape()) + GpuStepOutput::Bytes(LargestShape().outputs)},
       {"the prefix cache", options_.kept_bytes},
       KeptForLibraries(*queue_)},
      *queue_);
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(status.message(), "; in addition to ",
                                                  Mebibytes(info_.weight_bytes), " of weights and ",
                                                  Mebibytes(network_->workspace_bytes()),
                                                  " of workspace, which are allocated already"));
}

absl::Status GpuModelRunner::Allocate() {
  AFT_ASSIGN_OR_RETURN(states_,
                       StatePool::Create(network_->state_specs(), options_.slots, *queue_));
  const GpuStepShape largest = LargestShape();
  const int64_t slots = options_.slots;
  const int64_t params_bytes = slots * static_cast<int64_t>(sizeof(SlotSampling));
  AFT_RETURN_IF_ERROR(queue_->Run([&] {
    const auto on_device = [&](int64_t count, at::ScalarType type) {
      return at::zeros({count}, at::TensorOptions(type).device(queue_->device()));
    };
    params_ = on_device(params_bytes, at::kByte);
    rules_ = on_device(slots * kRulesBytes, at::kByte);
    static_assert(sizeof(TokenCount) == sizeof(int64_t));
    counts_ = on_device(slots * info_.vocab_size, at::kLong);
    last_sampled_ = on_device(slots, at::kInt);
    input_ = on_device(GpuStepInput::Bytes(largest), at::kByte);
    output_ = on_device(GpuStepOutput::Bytes(largest.outputs), at::kByte);
    return absl::OkStatus();
  }));
  AFT_ASSIGN_OR_RETURN(host_params_, queue_->HostBuffer(params_bytes));
  AFT_ASSIGN_OR_RETURN(host_rules_, queue_->HostBuffer(slots * kRulesBytes));
  size_t pinned = host_params_.nbytes() + host_rules_.nbytes();
  for (Flight& flight : flights_) {
    AFT_ASSIGN_OR_RETURN(flight.input, queue_->HostBuffer(GpuStepInput::Bytes(largest)));
    AFT_ASSIGN_OR_RETURN(flight.output, queue_->HostBuffer(GpuStepOutput::Bytes(largest.outputs)));
    AFT_ASSIGN_OR_RETURN(flight.hidden, queue_->HostBuffer(HiddenBytes(largest.outputs)));
    pinned += flight.input.nbytes() + flight.output.nbytes() + flight.hidden.nbytes();
    AFT_ASSIGN_OR_RETURN(flight.begin, queue_->MakeEvent());
    AFT_ASSIGN_OR_RETURN(flight.end, queue_->MakeEvent());
  }
  info_.memory_bytes = static_cast<int64_t>(pinned);
  return absl::OkStatus();
}

kernels::cuda::SamplerSlots GpuModelRunner::sampler_slots() const {
  kernels::cuda::SamplerSlots slots;
  slots.vocab_size = info_.vocab_size;
  slots.params = static_cast<const SlotSampling*>(params_.data_ptr());
  slots.counts = static_cast<TokenCount*>(counts_.data_ptr());
  slots.last_sampled = static_cast<int32_t*>(last_sampled_.data_ptr());
  slots.rules = static_cast<const LogitRule*>(rules_.data_ptr());
  return slots;
}

absl::StatusOr<int64_t> GpuModelRunner::BindSlot(int32_t slot, const StateSource& from,
                                                 const SlotTerms& terms) {
  int64_t position = 0;
  absl::Status status = queue_->Run([&] {
    AFT_ASSIGN_OR_RETURN(position,
                         TakeState(from, slot, network_->fingerprint(), sequences_, states_));
    return absl::OkStatus();
  });
  if (absl::IsInvalidArgument(status)) return status;  // nothing has changed
  const auto* const fork = std::get_if<ForkOf>(&from);
  if (fork == nullptr || fork->slot != slot) ages_.Forget(slot);
  has_terms_[static_cast<size_t>(slot)] = 0;
  // After an error no step can continue the slot: a row at a position other than 0 is refused.
  sequences_.Bind(slot, status.ok() ? position : 0, terms);
  const bool had_tokens = !terms.had.empty() || !terms.sampled.empty();
  if (status.ok() && had_tokens && PenaltiesOf(terms.sampling).any()) {
    status = SendCounts(slot, terms);
  }
  if (!status.ok()) return WorkFailed("state of a sequence", status, queue_.get());
  return position;
}

absl::Status GpuModelRunner::SendCounts(int32_t slot, const SlotTerms& terms) {
  std::vector<TokenCount> counts;
  CountTokens(terms, info_.vocab_size, counts);
  return queue_->Run([&] {
    AFT_RETURN_IF_ERROR(SendTerms(slot));
    return queue_->CopyFromHost(sampler_slots().counts + slot * info_.vocab_size, counts.data(),
                                info_.vocab_size * int64_t{sizeof(TokenCount)});
  });
}

absl::StatusOr<std::shared_ptr<const KeptState>> GpuModelRunner::KeepSlot(int32_t slot,
                                                                          KeptIn memory) {
  return KeepState(slot, memory, network_->fingerprint(), sequences_, states_);
}

absl::StatusOr<ModelRunner::Ticket> GpuModelRunner::Submit(const StepInput& input) {
  if (submitted_ - collected_ == kFlights) {
    return absl::FailedPreconditionError("two earlier steps are not collected yet");
  }
  AFT_RETURN_IF_ERROR(sequences_.Check(input));
  Flight& flight = flights_[(submitted_ + 1) % kFlights];
  GpuStepPlan& plan = flight.plan;
  AFT_RETURN_IF_ERROR(GuardTorch([&] {
    plan.Measure(input);
    const int64_t padded = plan.shape().tokens > 0 ? shapes_.IndexFor(plan.shape()) : -1;
    if (padded >= 0) plan.Pad(shapes_.all()[static_cast<size_t>(padded)]);
    flight.recorded = padded >= 0 ? graphs_[static_cast<size_t>(padded)].get() : nullptr;
    plan.Fill(input, &sequences_, &ages_, flight.input.data_ptr());
    return absl::OkStatus();
  }));
  sequences_.Advance(input);
  const absl::Status status = queue_->Run([&] { return Enqueue(input, &flight); });
  if (!status.ok()) return WorkFailed(kStep, status, queue_.get());
  return ++submitted_;
}

absl::Status GpuModelRunner::Enqueue(const StepInput& input, Flight* flight) {
  const GpuStepPlan& plan = flight->plan;
  const GpuStepShape& shape = plan.shape();
  for (const StepRow& row : input.rows) AFT_RETURN_IF_ERROR(SendTerms(row.slot, row.banned));
  AFT_RETURN_IF_ERROR(flight->begin->Record());
  if (shape.tokens > 0) {
    AFT_RETURN_IF_ERROR(
        queue_->Copy(input_.data_ptr(), flight->input.data_ptr(), GpuStepInput::Bytes(shape)));
    if (plan.marks_seen()) {
      const GpuStepInput in(shape, input_.data_ptr());
      AFT_RETURN_IF_ERROR(
          KernelStatus(kernels::cuda::MarkSeen(sampler_slots(), in.tokens, in.token_slots,
                                               shape.tokens, queue_->stream()),
                       "MarkSeen"));
    }
    AFT_RETURN_IF_ERROR(flight->recorded != nullptr ? flight->recorded->Launch()
                                                    : Compute(shape, plan.longest()));
    if (shape.outputs > 0) {
      const GpuStepOutput out(shape.outputs, output_.data_ptr());
      AFT_RETURN_IF_ERROR(queue_->Copy(flight->output.data_ptr(), output_.data_ptr(),
                                       plan.wants_top() ? out.bytes : out.bytes_without_top));
    }
    if (const int64_t hidden = plan.hidden_outputs(); hidden > 0) {
      AFT_RETURN_IF_ERROR(
          queue_->Copy(flight->hidden.data_ptr(), network_->hidden().data, HiddenBytes(hidden)));
    }
  }
  return flight->end->Record();
}

absl::Status GpuModelRunner::SendTerms(int32_t slot, absl::Span<const TokenId> banned) {
  char& has_terms = has_terms_[static_cast<size_t>(slot)];
  char& has_bans = has_bans_[static_cast<size_t>(slot)];
  if (has_terms != 0 && has_bans == 0 && banned.empty()) return absl::OkStatus();
  // No step in flight uses this place: steps that name a slot are collected before it changes.
  SlotSampling* const from = static_cast<SlotSampling*>(host_params_.data_ptr()) + slot;
  const SamplingParams& params = sequences_.sequence(slot).params;
  *from = kernels::cuda::ForDevice(params);
  from->top_logprobs = DeviceTopLogprobs(params);
  LogitRule* const rules =
      static_cast<LogitRule*>(host_rules_.data_ptr()) + slot * int64_t{kMaxLogitRules};
  if (!banned.empty()) {
    from->rules = RulesWithBans(params.rules.get(), banned, rules);
  } else if (params.rules != nullptr) {
    AFT_CHECK(params.rules->rules.size() <= size_t{kMaxLogitRules});
    std::copy(params.rules->rules.begin(), params.rules->rules.end(), rules);
  }
  AFT_RETURN_IF_ERROR(queue_->Copy(static_cast<SlotSampling*>(params_.data_ptr()) + slot, from,
                                   sizeof(SlotSampling)));
  if (from->rules > 0) {
    AFT_RETURN_IF_ERROR(
        queue_->Copy(static_cast<LogitRule*>(rules_.data_ptr()) + slot * int64_t{kMaxLogitRules},
                     rules, from->rules * int64_t{sizeof(LogitRule)}));
  }
  has_bans = banned.empty() ? 0 : 1;
  if (has_terms != 0) return absl::OkStatus();
  AFT_RETURN_IF_ERROR(KernelStatus(
      kernels::cuda::ClearCounts(sampler_slots(), slot, queue_->stream()), "ClearCounts"));
  has_terms = 1;
  return absl::OkStatus();
}

absl::Status GpuModelRunner::Compute(const GpuStepShape& shape, int64_t longest) {
  const GpuStepInput in(shape, input_.data_ptr());
  const GpuStepOutput out(shape.outputs, output_.data_ptr());
  const kernels::cuda::SamplerSlots sampler = sampler_slots();
  AFT_RETURN_IF_ERROR(
      ForwardStep(*network_, in.Batch(shape, longest, sampler.last_sampled), states_.parts()));
  for (int64_t first = 0; first < shape.outputs; first += network_->max_logit_rows()) {
    const int64_t count = std::min(network_->max_logit_rows(), shape.outputs - first);
    AFT_ASSIGN_OR_RETURN(const float* logits, network_->Logits(first, count));
    const kernels::cuda::SampleRows rows = {count, in.output_slot + first, in.output_index + first,
                                            in.target + first};
    AFT_RETURN_IF_ERROR(KernelStatus(kernels::cuda::Sample(sampler, rows, logits, info_.vocab_size,
                                                           out.Out(first), queue_->stream()),
                                     "Sample"));
  }
  return absl::OkStatus();
}

absl::Status GpuModelRunner::Collect(Ticket ticket, StepOutput& output) {
  if (collected_ == submitted_ || ticket != collected_ + 1) {
    return absl::FailedPreconditionError(
        absl::StrCat("step ", ticket, " is not the next to collect"));
  }
  Flight& flight = flights_[ticket % kFlights];
  ++collected_;
  if (const absl::Status status = flight.end->Wait(); !status.ok()) {
    return WorkFailed(kStep, status, queue_.get());
  }
  stats_.step_seconds = flight.end->SecondsSince(*flight.begin);
  stats_.step_was_graph = flight.recorded != nullptr;
  if (collected_ % kStepsPerMemoryReading == 0) ReadMemory();
  return GuardTorch([&] {
    flight.plan.Read(flight.output.data_ptr(), HiddenOf(flight), &sequences_, output);
    return absl::OkStatus();
  });
}

at::Tensor GpuModelRunner::HiddenOf(const Flight& flight) const {
  if (flight.plan.hidden_outputs() == 0) return {};
  const kernels::cuda::In on_device = network_->hidden();
  const at::Tensor rows =
      at::from_blob(flight.hidden.data_ptr(), {flight.plan.hidden_outputs(), on_device.stride},
                    at::TensorOptions(ScalarTypeOf(on_device.type)));
  return rows.narrow(1, 0, info_.hidden_width).to(at::kFloat).contiguous();
}

void GpuModelRunner::ReadMemory() {
  stats_.memory_total = queue_->total_bytes();
  stats_.memory_used = stats_.memory_total - queue_->free_bytes();
}

absl::Status GpuModelRunner::RunOnce(const StepInput& input) {
  AFT_ASSIGN_OR_RETURN(const Ticket ticket, Submit(input));
  StepOutput output;
  return Collect(ticket, output);
}

// Runs chunks of `length` scored tokens: `tokens` in all, or fewer if there are not enough slots.
absl::Status GpuModelRunner::RunChunks(int64_t tokens, int64_t length) {
  StepInput step;
  for (int32_t slot = 0; slot < slots() && tokens > 0; ++slot) {
    const std::vector<TokenId> text(static_cast<size_t>(std::min(tokens, length)), 0);
    step.rows.push_back({slot, 0, text, RowOutput::kScore, text});
    tokens -= length;
  }
  return RunOnce(step);
}

// Asks LibTorch once for everything that a step can ask for, so that no request has to wait for it
// and its memory is taken now. Products choose and load their kernels by the number of rows. So
// prompts of every size come first, doubling, and then every shape that steps are padded to.
absl::Status GpuModelRunner::WarmUp() {
  const int64_t most = options_.max_step_tokens;
  const int64_t longest = std::min(most, info_.max_seq_len);
  AFT_RETURN_IF_ERROR(RunChunks(most, longest));  // the largest first: it takes all memory
  AFT_RETURN_IF_ERROR(RunChunks(most, std::clamp<int64_t>(most / options_.slots, 1, longest)));
  for (int64_t tokens = 2; tokens < most; tokens *= 2) {
    AFT_RETURN_IF_ERROR(RunChunks(tokens, longest));
  }
  for (size_t i = 0; i < graphs_.size(); ++i) AFT_RETURN_IF_ERROR(Record(i));
  StepInput step;
  for (int32_t slot = 0; slot < slots(); ++slot) {
    step.rows.push_back({slot, 0, {0}, RowOutput::kLast});
  }
  AFT_RETURN_IF_ERROR(RunOnce(step));
  for (int32_t slot = 0; slot < slots(); ++slot) {
    AFT_RETURN_IF_ERROR(BindSlot(slot, NewSequence(), {}).status());
  }
  stats_ = {};
  ReadMemory();
  return absl::OkStatus();
}

absl::Status GpuModelRunner::RunPadding(const GpuStepShape& shape) {
  Flight& flight = flights_[0];
  flight.plan.Measure({});
  flight.plan.Pad(shape);
  flight.plan.Fill({}, &sequences_, &ages_, flight.input.data_ptr());
  AFT_RETURN_IF_ERROR(
      queue_->Copy(input_.data_ptr(), flight.input.data_ptr(), GpuStepInput::Bytes(shape)));
  AFT_RETURN_IF_ERROR(queue_->Run([&] { return Compute(shape, flight.plan.longest()); }));
  return queue_->Synchronize();
}

absl::Status GpuModelRunner::Record(size_t index) {
  const GpuStepShape& shape = shapes_.all()[index];
  AFT_RETURN_IF_ERROR(RunPadding(shape));
  if (!options_.graphs) return absl::OkStatus();
  const int64_t longest = flights_[0].plan.longest();
  AFT_ASSIGN_OR_RETURN(graphs_[index],
                       queue_->Capture([this, shape, longest] { return Compute(shape, longest); }));
  return absl::OkStatus();
}

// Runs the largest shape, which ran at load too. Products of few rows may not use LibTorch
// (GpuLinear), so a small one might prepare nothing.
void GpuModelRunner::PrepareThread() { RunPadding(shapes_.all().back()).IgnoreError(); }

}  // namespace aft
