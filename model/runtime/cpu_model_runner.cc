#include "model/runtime/cpu_model_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/runtime/model_info.h"
#include "model/runtime/numerics.h"
#include "model/runtime/slot_states.h"
#include "model/runtime/torch_guard.h"
#include "model/sampling/token_counts.h"

namespace aft {
absl::StatusOr<std::unique_ptr<CpuModelRunner>> CpuModelRunner::Create(
    std::unique_ptr<CpuNetwork> network, const Options& options) {
  AFT_CHECK(options.slots >= 1 && options.max_step_tokens >= options.slots && options.threads >= 1);
  std::unique_ptr<CpuModelRunner> runner(new CpuModelRunner(std::move(network), options));
  AFT_ASSIGN_OR_RETURN(runner->states_,
                       StatePool::Create(runner->network_->state_specs(), options.slots));
  AFT_RETURN_IF_ERROR(runner->network_->Allocate(TokensAtOnce(options), runner->executor_));
  AFT_RETURN_IF_ERROR(runner->WarmUp());
  AFT_ASSIGN_OR_RETURN(runner->info_.numerics,
                       DescribeNumerics(kernels::InstructionSet(), *runner));
  return runner;
}

CpuModelRunner::CpuModelRunner(std::unique_ptr<CpuNetwork> network, const Options& options)
    : options_(options),
      executor_(options.threads, options.cpus),
      threads_(options.threads),
      network_(std::move(network)),
      sequences_({.slots = options.slots,
                  .max_step_tokens = options.max_step_tokens,
                  .vocab_size = network_->config().vocab_size,
                  .max_seq_len = network_->config().max_seq_len}) {
  info_ = MakeModelInfo(network_->config(), network_->weight_bytes(), network_->format(),
                        CpuDeviceName(threads_));
  const std::vector<StateSpec> states = network_->state_specs();
  AddStateInfo(states, network_->fingerprint(), &info_);
  info_.memory_bytes = info_.weight_bytes +
                       network_->WorkspaceBytes(TokensAtOnce(options), options.threads) +
                       options.slots * SlotBytes(states, info_.vocab_size);
  samplers_.resize(static_cast<size_t>(options.threads));
  const auto slots = static_cast<size_t>(options.slots);
  counts_.resize(slots);
  row_slots_.reserve(slots);
  row_positions_.reserve(slots);
  row_offsets_.reserve(slots + 1);
  row_generated_.reserve(slots);
  const auto tokens = static_cast<size_t>(options.max_step_tokens);
  tokens_.reserve(tokens);
  outputs_.reserve(tokens);
  wanted_.reserve(tokens);
  part_slots_.reserve(slots);
  part_positions_.reserve(slots);
  part_offsets_.reserve(slots + 1);
  part_generated_.reserve(slots);
  part_outputs_.reserve(static_cast<size_t>(TokensAtOnce(options)));
}

absl::StatusOr<int64_t> CpuModelRunner::BindSlot(int32_t slot, const StateSource& from,
                                                 const SlotTerms& terms) {
  AFT_ASSIGN_OR_RETURN(const int64_t position,
                       TakeState(from, slot, network_->fingerprint(), sequences_, states_));
  sequences_.Bind(slot, position, terms);
  const bool penalties = PenaltiesOf(terms.sampling).any();
  std::vector<TokenCount>& counts = counts_[static_cast<size_t>(slot)];
  counts.clear();
  if (penalties) CountTokens(terms, info_.vocab_size, counts);
  return position;
}

absl::StatusOr<std::shared_ptr<const KeptState>> CpuModelRunner::KeepSlot(int32_t slot,
                                                                          KeptIn memory) {
  return KeepState(slot, memory, network_->fingerprint(), sequences_, states_);
}

void CpuModelRunner::Flatten(const StepInput& input) {
  row_slots_.clear();
  row_positions_.clear();
  row_offsets_.assign(1, 0);
  row_generated_.clear();
  tokens_.clear();
  outputs_.clear();
  wanted_.clear();
  size_t sampled = 0;
  size_t scored = 0;
  size_t hidden = 0;
  for (const StepRow& row : input.rows) {
    if (row.output == RowOutput::kLast) ++sampled;
    if (row.output == RowOutput::kScore) ++scored;
    if (row.output == RowOutput::kHidden) ++hidden;
  }
  output_.sampled.clear();  // results of the previous step must not remain
  output_.sampled.resize(sampled);
  output_.scored.clear();
  output_.scored.resize(scored);
  output_.hidden.clear();
  output_.hidden.resize(hidden);
  sampled = scored = hidden = 0;
  for (const StepRow& row : input.rows) {
    const int64_t first = row_offsets_.back();
    row_slots_.push_back(row.slot);
    row_positions_.push_back(row.first_position);
    tokens_.insert(tokens_.end(), row.tokens.begin(), row.tokens.end());
    SequenceRecord* const sequence = &sequences_.sequence(row.slot);
    row_generated_.push_back(sequence->generates() ? 1 : 0);
    // After kNoToken the sequence has ended, so any token will do.
    if (tokens_.back() == kLastSampled) tokens_.back() = std::max(sequence->last_sampled, 0);
    row_offsets_.push_back(static_cast<int64_t>(tokens_.size()));
    std::vector<TokenCount>& slot_counts = counts_[static_cast<size_t>(row.slot)];
    TokenCount* const counts = slot_counts.empty() ? nullptr : slot_counts.data();
    for (auto i = static_cast<size_t>(first); counts != nullptr && i < tokens_.size(); ++i) {
      TokenCount& count = counts[tokens_[i]];
      count = WithSeen(count);
    }
    if (row.output == RowOutput::kLast) {
      outputs_.push_back(row_offsets_.back() - 1);
      wanted_.push_back({sequence, counts, kNoToken, &output_.sampled[sampled++], row.banned});
    } else if (row.output == RowOutput::kScore) {
      std::vector<SampledToken>& tokens = output_.scored[scored++];
      tokens.resize(row.targets.size());
      for (size_t i = 0; i < tokens.size(); ++i) {
        outputs_.push_back(first + static_cast<int64_t>(i));
        wanted_.push_back({sequence, counts, row.targets[i], &tokens[i]});
      }
    } else if (row.output == RowOutput::kHidden) {
      std::vector<float>& vectors = output_.hidden[hidden++];
      vectors.resize(static_cast<size_t>(row.hidden * info_.hidden_width));
      for (int64_t i = 0; i < row.hidden; ++i) {
        outputs_.push_back(row_offsets_.back() - row.hidden + i);
        wanted_.push_back({.hidden = vectors.data() + i * info_.hidden_width});
      }
    }
  }
}

absl::Status CpuModelRunner::Forward() {
  const auto tokens = static_cast<int64_t>(tokens_.size());
  size_t row = 0;
  size_t output = 0;
  for (int64_t begin = 0; begin < tokens; begin += kTokensAtOnce) {
    const int64_t end = std::min(begin + kTokensAtOnce, tokens);
    part_slots_.clear();
    part_positions_.clear();
    part_offsets_.assign(1, 0);
    part_generated_.clear();
    for (; row_offsets_[row] < end; ++row) {
      part_slots_.push_back(row_slots_[row]);
      const int64_t done = std::max<int64_t>(begin - row_offsets_[row], 0);
      part_positions_.push_back(row_positions_[row] + done);
      part_generated_.push_back(row_generated_[row]);
      part_offsets_.push_back(std::min(row_offsets_[row + 1], end) - begin);
      if (row_offsets_[row + 1] > end) break;  // the row continues in the next part
    }
    const size_t first_output = output;
    part_outputs_.clear();
    for (; output < outputs_.size() && outputs_[output] < end; ++output) {
      part_outputs_.push_back(outputs_[output] - begin);
    }
    CpuNetwork::Batch batch;
    batch.rows = {static_cast<int64_t>(part_slots_.size()), part_slots_.data(),
                  part_positions_.data(), part_offsets_.data(), part_generated_.data()};
    batch.tokens = end - begin;
    batch.ids = tokens_.data() + begin;
    batch.outputs = part_outputs_.data();
    batch.output_count = static_cast<int64_t>(part_outputs_.size());
    AFT_RETURN_IF_ERROR(ForwardStep(*network_, batch, states_.parts()));
    AFT_RETURN_IF_ERROR(Report(first_output, batch.output_count));
  }
  return absl::OkStatus();
}

absl::Status CpuModelRunner::Report(size_t first_wanted, int64_t wanted) {
  // With fewer logits than this a second thread costs more than it saves: about 10 us of work.
  constexpr int64_t kWorkPerThread = 8192;
  const int64_t grain = std::max<int64_t>(kWorkPerThread / info_.vocab_size, 1);
  for (int64_t first = 0; first < wanted;) {
    const Wanted* const begin = &wanted_[first_wanted + static_cast<size_t>(first)];
    if (begin->hidden != nullptr) {
      std::copy_n(network_->vectors() + first++ * info_.hidden_width, info_.hidden_width,
                  begin->hidden);
      continue;
    }
    const Wanted* const most = begin + std::min(network_->max_logit_rows(), wanted - first);
    const auto is_hidden = [](const Wanted& one) { return one.hidden != nullptr; };
    const int64_t count = std::find_if(begin, most, is_hidden) - begin;
    AFT_ASSIGN_OR_RETURN(const float* const logits, network_->Logits(first, count));
    executor_.For(count, grain, [&](int64_t from, int64_t to, int thread) {
      for (int64_t i = from; i < to; ++i) {
        ReportOne(logits + i * info_.vocab_size, begin[i], &samplers_[static_cast<size_t>(thread)]);
      }
    });
    first += count;
  }
  return absl::OkStatus();
}

void CpuModelRunner::ReportOne(const float* logits, const Wanted& wanted, Sampler* sampler) const {
  SequenceRecord& sequence = *wanted.sequence;
  TokenId& id = wanted.token->id;
  if (wanted.target != kNoToken) {
    const int32_t top = std::max(sequence.params.top_logprobs, 0);
    if (!sampler->Score(logits, info_.vocab_size, wanted.target, top, wanted.token).ok()) {
      id = kNoToken;
    }
    return;
  }
  const uint64_t index = sequence.sampled++;
  if (!sampler
           ->Sample(logits, info_.vocab_size, sequence.params, wanted.counts, index, wanted.token,
                    wanted.banned)
           .ok()) {
    id = kNoToken;
  }
  sequence.last_sampled = id;
  if (wanted.counts != nullptr && id != kNoToken) {
    CountSample(sequence.params, id, index, wanted.counts);
  }
}

absl::StatusOr<ModelRunner::Ticket> CpuModelRunner::Submit(const StepInput& input) {
  if (!collected_) return absl::FailedPreconditionError("the previous step is not collected");
  AFT_RETURN_IF_ERROR(sequences_.Check(input));
  ++step_;
  AFT_RETURN_IF_ERROR(GuardTorch([&] {
    Flatten(input);
    executor_.Use(threads_.For(static_cast<int64_t>(tokens_.size())));
    return Forward();
  }));
  sequences_.Advance(input);
  collected_ = false;
  return step_;
}

absl::Status CpuModelRunner::Collect(Ticket ticket, StepOutput& output) {
  if (collected_ || ticket != step_) {
    return absl::FailedPreconditionError(absl::StrCat("step ", ticket, " is not in flight"));
  }
  collected_ = true;
  std::swap(output, output_);
  return absl::OkStatus();
}

absl::Status CpuModelRunner::WarmUp() {
  const ParallelExecutor::PlacedCaller placed(executor_);
  // Runs a prompt, then decode steps of every slot, so that the caches, the processor's frequency
  // and the threads have settled before the first request.
  const int64_t limit = info_.max_seq_len > 0 ? info_.max_seq_len : options_.max_step_tokens;
  const int64_t prompt = std::min({limit, options_.max_step_tokens, int64_t{256}});
  StepInput step;
  step.rows.push_back(
      {0, 0, std::vector<TokenId>(static_cast<size_t>(prompt), 0), RowOutput::kLast});
  StepOutput output;
  constexpr int kSteps = 3;
  for (int i = 0; i < kSteps; ++i) {
    AFT_ASSIGN_OR_RETURN(const Ticket ticket, Submit(step));
    AFT_RETURN_IF_ERROR(Collect(ticket, output));
    step.rows.clear();
    for (int32_t slot = 0; slot < slots(); ++slot) {
      step.rows.push_back({slot, 0, {0}, RowOutput::kLast});
    }
  }
  if (options_.measure_threads) {
    AFT_ASSIGN_OR_RETURN(
        threads_,
        StepThreads::Measure(options_.threads, slots(), [this](int64_t rows, int threads) {
          threads_ = StepThreads(threads);
          return TimeStep([&] { return DecodeZeros(rows); });
        }));
    info_.device = CpuDeviceName(threads_);
  }
  for (int32_t slot = 0; slot < slots(); ++slot) sequences_.Bind(slot, 0, {});
  return absl::OkStatus();
}

absl::Status CpuModelRunner::DecodeZeros(int64_t rows) {
  StepInput step;
  for (int32_t slot = 0; slot < static_cast<int32_t>(rows); ++slot) {
    // A sequence grows from step to step, as in use, so that the windows of its mixers fill.
    const int64_t position = sequences_.sequence(slot).next_position;
    const bool full = info_.max_seq_len > 0 && position >= info_.max_seq_len;
    step.rows.push_back({slot, full ? 0 : position, {0}, RowOutput::kLast});
  }
  AFT_ASSIGN_OR_RETURN(const Ticket ticket, Submit(step));
  return Collect(ticket, output_);
}

}  // namespace aft
