#include "client/aftload/stream_recorder.h"

namespace aft::client {

void LoadStats::Merge(const LoadStats& other) {
  completed += other.completed;
  cut += other.cut;
  refused += other.refused;
  retried += other.retried;
  for (const auto& [code, count] : other.errors) errors[code] += count;
  tokens += other.tokens;
  first_token.Merge(other.first_token);
  inter_token.Merge(other.inter_token);
  request.Merge(other.request);
  stream_token.Merge(other.stream_token);
  early.Add(other.early);
  late.Add(other.late);
}

uint64_t LoadStats::failed() const {
  uint64_t sum = 0;
  for (const auto& [code, count] : errors) sum += count;
  return sum;
}

StreamRecorder::StreamRecorder(uint64_t expected_tokens, Clock::time_point scheduled,
                               LoadStats& stats)
    : expected_(expected_tokens),
      tenth_((expected_tokens + 9) / 10),
      scheduled_(scheduled),
      stats_(stats) {}

void StreamRecorder::OnTokens(uint64_t tokens, Clock::time_point now) {
  if (tokens == 0) return;
  stats_.tokens += tokens;
  if (tokens_ == 0) {
    first_ = now;
    first_delta_tokens_ = tokens;
    stats_.first_token.Add(now - scheduled_);
  } else {
    stats_.inter_token.Add((now - last_) / static_cast<int64_t>(tokens), tokens);
  }
  const uint64_t before = tokens_;
  tokens_ += tokens;
  last_ = now;
  if (before < tenth_ && tokens_ >= tenth_) {
    early_ = {.tokens = tokens_ - first_delta_tokens_, .time = now - first_};
  }
  if (late_from_ == 0 && tokens_ >= expected_ - tenth_) {
    late_from_ = tokens_;
    late_start_ = now;
  }
}

void StreamRecorder::OnCompleted(Clock::time_point now) {
  ++stats_.completed;
  stats_.request.Add(now - scheduled_);
  if (tokens_ > first_delta_tokens_) {
    stats_.stream_token.Add((last_ - first_) / static_cast<int64_t>(tokens_ - first_delta_tokens_));
  }
  if (tokens_ < expected_) return;
  stats_.early.Add(early_);
  stats_.late.Add({.tokens = tokens_ - late_from_, .time = last_ - late_start_});
}

}  // namespace aft::client
