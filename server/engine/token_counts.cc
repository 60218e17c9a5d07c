#include "server/engine/token_counts.h"

#include <algorithm>

#include "base/catching.h"

namespace aft::server {
namespace {

template <size_t kCount>
void Count(const CounterByMethod& counters, const std::array<int64_t, kCount>& tokens) {
  for (size_t i = 0; i < kCount; ++i) {
    if (tokens[i] != 0) counters[static_cast<Method>(i)].Increment(static_cast<double>(tokens[i]));
  }
}

// True for a deadline, a client that gave up, or max_queue_ms, but not for a shutdown, a failure of
// the server or a client that reads too slowly.
bool IsOutOfTime(const TokenStream& stream, const Outcome& outcome) {
  if (stream.cancelled) {
    return *stream.cancelled == Ending::kCancelled || *stream.cancelled == Ending::kDeadline;
  }
  const absl::Status& status = outcome.status;
  const bool queued_too_long =
      absl::IsResourceExhausted(status) && !stream.started_at && !IsNoMemory(status);
  return queued_too_long || absl::IsDeadlineExceeded(status);
}

}  // namespace

TokenCounts::TokenCounts(ModelMetrics& metrics) : metrics_(metrics) {
  for (size_t i = 0; i < kGeneratingMethods; ++i) {
    inter_token_.emplace_back(metrics.inter_token_seconds[static_cast<Method>(i)],
                              LatencyBuckets());
  }
}

TokenCounts::Prompts TokenCounts::OfPrompts(const Step& step) {
  Prompts tokens{};
  if (step.prompt_tokens == 0) return tokens;  // as in most steps
  for (size_t i = 0; i < step.sequences.size(); ++i) {
    // It may have ended since the step was planned, because its reader is too slow (HeldTokens).
    // Such a stream decodes, so it has no prompt to count.
    if (step.sequences[i] == nullptr) continue;
    const auto& stream = static_cast<const TokenStream&>(*step.sequences[i]);
    const StepRow& row = step.input.rows[i];
    if (row.first_position >= stream.prompt_end()) continue;  // a decode
    tokens[static_cast<size_t>(stream.method)] += static_cast<int64_t>(row.tokens.size());
  }
  return tokens;
}

uint64_t TokenCounts::Computed(const TokenStream& stream) {
  const int64_t read = std::min(stream.position(), stream.prompt_end()) - stream.begin();
  const uint64_t resumed = stream.usage.resumed_tokens;
  return static_cast<uint64_t>(read) + (stream.output ? stream.output->tokens() - resumed : 0);
}

void TokenCounts::Sampled(TokenStream& stream, TimePoint now) {
  const auto method = static_cast<size_t>(stream.method);
  ++generated_[method];
  if (stream.first_output_at) {
    inter_token_[method].Add(Seconds(now - stream.last_token_at));
    ++stream.further_tokens;
  } else {
    stream.first_output_at = now;
    metrics_.ttft_seconds[stream.method].Observe(Seconds(now - stream.arrival));
  }
  stream.last_token_at = now;
}

void TokenCounts::Ended(const TokenStream& stream, const Outcome& outcome) {
  const bool generates = stream.purpose() == Sequence::Purpose::kGenerate;
  if (generates && !stream.first_output_at && IsOutOfTime(stream, outcome)) {
    metrics_.ttft_missed_seconds[stream.method].Observe(Seconds(outcome.timings.total));
  }
  if (stream.further_tokens == 0) return;
  metrics_.time_per_output_token_seconds[stream.method].Observe(
      Seconds(stream.last_token_at - *stream.first_output_at) /
      static_cast<double>(stream.further_tokens));
}

void TokenCounts::Flush(const Prompts& prompts) {
  Count(metrics_.prompt_tokens, prompts);
  Count(metrics_.generated_tokens, generated_);
  generated_ = {};
  for (HistogramBatch& batch : inter_token_) batch.Flush();
}

}  // namespace aft::server
