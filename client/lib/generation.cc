#include "client/lib/generation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/match.h"

namespace aft::client {
namespace {

// gRPC's default limit of a message.
constexpr size_t kMaxRequestBytes = size_t{4} << 20;

StreamChecker CheckerOf(const v1::GenerateRequest& request) {
  StreamChecker checker(static_cast<uint32_t>(request.resume().token_ids_size()));
  checker.ExpectSequences(request.n());
  return checker;
}

}  // namespace

Generation::Generation(const ClientOptions& client, const CallOptions& options,
                       v1::GenerateRequest request, ResumableClocks clocks)
    : Resumable(client, options, CheckerOf(request), std::move(clocks)),
      request_(std::move(request)),
      answers_(std::max(request_.n(), 1U)) {
  if (resumable()) request_.set_resumable(true);
}

Generation::Generation(const Generation& all, uint32_t sequence)
    : Resumable(all), request_(all.request_), sequence_(sequence), answers_(1) {
  const Answer& answer = all.answers_[sequence];
  checker_ = StreamChecker(static_cast<uint32_t>(answer.output.token_ids_size()), /*started=*/true);
  checker_.ExpectScored(all.checker_.scored());
  if (sequence > 0) request_.clear_prompt_logprobs();
  request_.clear_n();
  request_.mutable_sampling()->set_seed(request_.sampling().seed() + sequence);
  *request_.mutable_resume() = answer.output;
  answers_.front().tail = answer.tail;
  repeat_ = answer.tail;
}

Generation::Verdict Generation::Take(v1::GenerateResponse& event) {
  const bool first = !checker_.started();
  if (event.has_prompt_scores() && !DropKnown(*event.mutable_prompt_scores())) {
    return Verdict::kKeep;
  }
  const Verdict verdict = Check(event);
  if (verdict == Verdict::kBroken) return verdict;
  if (event.has_started()) {
    if (first) exact_ = !request_.has_resume() || event.started().exact();
    if (resumable()) Remember(event.started());
    if (!first) TellResumed(sequence_);
    return verdict;
  }
  const uint32_t sequence = event.sequence();
  event.set_sequence(sequence_ + sequence);
  if (event.has_hand_over() && resumable()) {
    // A handover that does not fit a request is not kept any further.
    if (hand_over_.size() <= kMaxRequestBytes) hand_over_ += event.hand_over().chunk();
    return Verdict::kKeep;
  }
  if (event.has_prompt_scores()) HasBrought();
  if (event.has_delta() && resumable()) return TakeDelta(*event.mutable_delta(), sequence);
  if (event.has_finished() && event.sequence() > 0) {
    // The prompt is counted once, with the first sequence.
    v1::Usage& usage = *event.mutable_finished()->mutable_usage();
    usage.clear_prompt_tokens();
    usage.clear_cached_tokens();
    usage.clear_cache_miss();
    usage.clear_diverged_at();
  }
  return verdict;
}

// Removes the scores of the prompt that the application has already: a stream that breaks before
// its first token gets them again. Returns whether any are left.
bool Generation::DropKnown(v1::ScoreChunk& scores) const {
  const uint32_t known = std::max(checker_.scored(), scores.first_index()) - scores.first_index();
  const int repeated = static_cast<int>(std::min(
      known, static_cast<uint32_t>(std::min(scores.token_ids_size(), scores.logprobs_size()))));
  scores.set_first_index(scores.first_index() + static_cast<uint32_t>(repeated));
  scores.mutable_token_ids()->ExtractSubrange(0, repeated, nullptr);
  scores.mutable_logprobs()->DeleteSubrange(0, repeated);
  return scores.token_ids_size() > 0;
}

Generation::Verdict Generation::TakeDelta(v1::Delta& delta, uint32_t sequence) {
  Answer& answer = answers_[sequence];
  std::string& text = *delta.mutable_text();
  if (!text.empty() && !repeat_.empty()) {
    if (absl::StartsWith(text, repeat_)) text.erase(0, repeat_.size());
    repeat_.clear();
    if (text.empty() && delta.token_ids().empty()) return Verdict::kKeep;
  }
  if (delta.token_ids().empty()) {
    answer.tail += text;
    return Verdict::kDeliver;
  }
  OutputOf(sequence).mutable_token_ids()->MergeFrom(delta.token_ids());
  answer.tail.clear();
  HasBrought();
  return Verdict::kDeliver;
}

void Generation::Remember(const v1::Started& started) {
  request_.mutable_sampling()->set_seed(started.seed());
  for (uint32_t i = 0; i < sequences(); ++i) {
    v1::Resume& output = OutputOf(i);
    output.set_fingerprint(started.fingerprint());
    output.set_numerics(started.numerics());
    output.set_resume_id(started.resume_id());
  }
}

std::optional<std::chrono::milliseconds> Generation::End(const grpc::Status& status, Call& call) {
  const auto pause = EndCall(status, call);
  if (!pause || sequences() > 1) return pause;
  v1::Resume& resume = *request_.mutable_resume();
  if (!hand_over_.empty()) resume.set_state(std::exchange(hand_over_, ""));
  // Without the state, the server reads the tokens, which are far smaller.
  if (request_.ByteSizeLong() > kMaxRequestBytes || absl::IsResourceExhausted(last_error_)) {
    resume.clear_state();
  }
  repeat_ = answers_.front().tail;
  return pause;
}

}  // namespace aft::client
