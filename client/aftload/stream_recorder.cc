#include "client/aftload/stream_recorder.h"

#include <algorithm>
#include <utility>

namespace aft::client {
namespace {

double Milliseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

void Outcomes::Merge(const Outcomes& other) {
  completed += other.completed;
  cut += other.cut;
  cancelled += other.cancelled;
  expired += other.expired;
  for (const auto& [code, count] : other.errors) errors[code] += count;
}

uint64_t Outcomes::failed() const {
  uint64_t sum = 0;
  for (const auto& [code, count] : errors) sum += count;
  return sum;
}

Second& LoadStats::At(Clock::time_point time) {
  const auto passed = std::chrono::duration_cast<std::chrono::seconds>(time - start).count();
  const auto index = static_cast<size_t>(std::max<int64_t>(passed, 0));
  if (index >= seconds.size()) seconds.resize(index + 1);
  return seconds[index];
}

void LoadStats::Merge(const LoadStats& other) {
  for (size_t i = 0; i < kBehaviours; ++i) outcomes[i].Merge(other.outcomes[i]);
  for (const auto& [address, target] : other.targets) targets[address].Merge(target);
  good += other.good;
  refused += other.refused;
  retried += other.retried;
  tokens += other.tokens;
  messages += other.messages;
  prompt_tokens += other.prompt_tokens;
  ttft.Merge(other.ttft);
  itl.Merge(other.itl);
  e2el.Merge(other.e2el);
  tpot.Merge(other.tpot);
  send_lag.Merge(other.send_lag);
  refusal.Merge(other.refusal);
  gap.Merge(other.gap);
  resumes += other.resumes;
  resumed_streams += other.resumed_streams;
  inexact_streams += other.inexact_streams;
  most_resumes = std::max(most_resumes, other.most_resumes);
  breaks.insert(breaks.end(), other.breaks.begin(), other.breaks.end());
  differences.Merge(other.differences);
  early.Add(other.early);
  late.Add(other.late);
  if (other.seconds.size() > seconds.size()) seconds.resize(other.seconds.size());
  for (size_t i = 0; i < other.seconds.size(); ++i) {
    seconds[i].output_tokens += other.seconds[i].output_tokens;
    seconds[i].completed += other.seconds[i].completed;
    seconds[i].failed += other.seconds[i].failed;
  }
}

void StreamRecorder::OnSent(LoadStats& stats, Clock::time_point now) {
  if (measured()) stats.send_lag.Add(now - scheduled_);
}

void StreamRecorder::OnTokens(LoadStats& stats, uint64_t tokens, Clock::time_point now) {
  if (tokens == 0) return;
  stats.tokens += tokens;
  ++stats.messages;
  ++messages_;
  stats.At(now).output_tokens += tokens;
  if (tokens_ == 0) {
    first_ = now;
    first_message_tokens_ = tokens;
    if (measured()) stats.ttft.Add(now - scheduled_);
  } else if (measured()) {
    stats.itl.Add(now - last_);
    longest_gap_ = std::max(longest_gap_, now - last_);
  }
  if (break_) {
    break_->until_token = now - resumed_at_;
    stats.breaks.push_back(*std::exchange(break_, std::nullopt));
  }
  const uint64_t before = tokens_;
  tokens_ += tokens;
  last_ = now;
  if (before < tenth_ && tokens_ >= tenth_) {
    early_ = {.tokens = tokens_ - first_message_tokens_, .time = now - first_};
  }
  if (late_from_ == 0 && tokens_ >= expected_ - tenth_) {
    late_from_ = tokens_;
    late_start_ = now;
  }
}

void StreamRecorder::OnUsage(LoadStats& stats, uint64_t tokens, Clock::time_point now) {
  if (tokens_ == 0) return OnTokens(stats, tokens, now);
  if (tokens == tokens_) return;
  const auto more = static_cast<int64_t>(tokens) - static_cast<int64_t>(tokens_);
  Second* const last = &stats.At(last_);
  Second* const first = &stats.At(first_);
  const auto seconds = last - first + 1;
  for (int64_t i = 0; i < seconds; ++i) {
    first[i].output_tokens += static_cast<uint64_t>(more * (i + 1) / seconds - more * i / seconds);
  }
  stats.tokens += static_cast<uint64_t>(more);
  tokens_ = tokens;
  corrected_ = true;
}

void StreamRecorder::OnResumed(LoadStats& stats, const Resumed& resumed, Clock::time_point now) {
  ++stats.resumes;
  if (++resumes_ == 1) ++stats.resumed_streams;
  stats.most_resumes = std::max(stats.most_resumes, resumes_);
  if (exact_ && !resumed.exact) ++stats.inexact_streams;
  exact_ = resumed.exact;
  if (tokens_ == 0) return;  // the break was not between two tokens
  resumed_at_ = now;
  break_ = {.request_id = request_id_,
            .tokens = tokens_,
            .tries = resumed.tries,
            .until_broken = now - last_ - resumed.until_started - resumed.until_sent,
            .until_sent = resumed.until_sent,
            .until_started = resumed.until_started};
}

void StreamRecorder::OnCompleted(LoadStats& stats, Clock::time_point now) {
  OnOther(stats, &Outcomes::completed);
  ++stats.At(now).completed;
  if (!measured()) return;
  stats.e2el.Add(now - scheduled_);
  if (tokens_ > 1) stats.tpot.Add((last_ - first_) / static_cast<int64_t>(tokens_ - 1));
  if (messages_ > 1) stats.gap.Add(longest_gap_);
  if (IsGood(Milliseconds(now - scheduled_))) ++stats.good;
  if (tokens_ < expected_ || corrected_) return;
  stats.early.Add(early_);
  stats.late.Add({.tokens = tokens_ - late_from_, .time = last_ - late_start_});
}

void StreamRecorder::OnFailed(LoadStats& stats, const std::string& code, Clock::time_point now) {
  ++stats.outcomes[static_cast<size_t>(behaviour_)].errors[code];
  ++stats.targets[target_].errors[code];
  ++stats.At(now).failed;
}

void StreamRecorder::OnOther(LoadStats& stats, uint64_t Outcomes::*outcome) {
  ++(stats.outcomes[static_cast<size_t>(behaviour_)].*outcome);
  ++(stats.targets[target_].*outcome);
}

bool StreamRecorder::IsGood(double e2el_ms) const {
  const auto within = [](const std::optional<double>& limit, double value) {
    return !limit || value <= *limit;
  };
  return tokens_ > 0 && within(limits_.ttft_ms, Milliseconds(first_ - scheduled_)) &&
         within(limits_.tpot_ms, TpotMs()) && within(limits_.e2el_ms, e2el_ms);
}

double StreamRecorder::TpotMs() const {
  return tokens_ > 1 ? Milliseconds(last_ - first_) / static_cast<double>(tokens_ - 1) : 0;
}

}  // namespace aft::client
