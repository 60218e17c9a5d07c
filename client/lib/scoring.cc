#include "client/lib/scoring.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace aft::client {

Scoring::Scoring(const ClientOptions& client, const CallOptions& options, v1::ScoreRequest request)
    : Resumable(client, options, StreamChecker(request.resume().scores())),
      request_(std::move(request)),
      texts_(static_cast<size_t>(request_.texts_size())) {
  if (resumable()) request_.set_resumable(true);
  std::iota(texts_.begin(), texts_.end(), 0U);
  if (!texts_.empty()) checker_.ExpectSequences(static_cast<uint32_t>(texts_.size()));
  checker_.ExpectContext(request_.context_tokens());
}

Scoring::Verdict Scoring::Take(v1::ScoreResponse& event) {
  const bool first = !checker_.started();
  const bool repeats = !texts_.empty() && resumes() > 0 && !GoesOn();  // an event of a later call
  if (repeats && !Translate(event)) return Verdict::kKeep;
  const bool exact = exact_;
  const Verdict verdict = Check(event);
  if (verdict == Verdict::kBroken) return verdict;
  if (event.has_started()) {
    const v1::ScoreStarted& started = event.started();
    if (first) {
      exact_ = !request_.has_resume() || started.exact();
      numerics_ = started.numerics();
    } else {
      // The server does not know that this call continues another one.
      if (!texts_.empty()) exact_ = exact && !numerics_.empty() && started.numerics() == numerics_;
      TellResumed(/*sequence=*/0);
    }
    if (resumable() && texts_.empty()) {
      v1::ScoreResume& resume = *request_.mutable_resume();
      resume.set_fingerprint(started.fingerprint());
      resume.set_numerics(started.numerics());
    }
  } else if (event.chunk().token_ids_size() > 0 && resumable()) {
    if (texts_.empty()) {
      v1::ScoreResume& resume = *request_.mutable_resume();
      resume.set_scores(received());
      double logprob = resume.logprob();
      for (const v1::TokenLogprobs& score : event.chunk().logprobs()) logprob += score.logprob();
      resume.set_logprob(logprob);
    }
    HasBrought();
  }
  return verdict;
}

bool Scoring::Translate(v1::ScoreResponse& event) const {
  // An index that the call did not ask for becomes an invalid one.
  const bool known = event.index() < texts_.size();
  const uint32_t text = known ? texts_[event.index()] : std::numeric_limits<uint32_t>::max();
  event.set_index(text);
  if (!event.has_chunk()) return true;
  v1::ScoreChunk& chunk = *event.mutable_chunk();
  const uint32_t had = checker_.unscored() + checker_.received(text);
  if (chunk.first_index() >= had) return true;
  const int repeated =
      std::min(static_cast<int>(had - chunk.first_index()), chunk.token_ids_size());
  chunk.set_first_index(chunk.first_index() + static_cast<uint32_t>(repeated));
  chunk.mutable_token_ids()->ExtractSubrange(0, repeated, nullptr);
  chunk.mutable_logprobs()->DeleteSubrange(0, std::min(repeated, chunk.logprobs_size()));
  return chunk.token_ids_size() > 0;
}

std::optional<std::chrono::milliseconds> Scoring::End(const grpc::Status& status, Call& call) {
  const auto pause = EndCall(status, call);
  if (!pause || texts_.empty()) return pause;
  // Texts that have finished are not sent again.
  std::vector<uint32_t> left;
  google::protobuf::RepeatedPtrField<v1::Text> texts;
  for (size_t i = 0; i < texts_.size(); ++i) {
    if (checker_.finished(texts_[i])) continue;
    left.push_back(texts_[i]);
    texts.Add()->Swap(request_.mutable_texts(static_cast<int>(i)));
  }
  texts_ = std::move(left);
  request_.mutable_texts()->Swap(&texts);
  return pause;
}

}  // namespace aft::client
