#include "client/lib/scoring.h"

#include <utility>

namespace aft::client {

Scoring::Scoring(const ClientOptions& client, const CallOptions& options, v1::ScoreRequest request)
    : Resumable(client, options, StreamChecker(request.resume().scores())),
      request_(std::move(request)) {
  if (resumable()) request_.set_resumable(true);
}

Scoring::Verdict Scoring::Take(const v1::ScoreResponse& event) {
  const bool first = !checker_.started();
  const Verdict verdict = Check(event);
  if (verdict == Verdict::kBroken) return verdict;
  if (event.has_started()) {
    if (first) exact_ = !request_.has_resume() || event.started().exact();
    if (!first) TellResumed(/*sequence=*/0);
    if (resumable()) {
      v1::ScoreResume& resume = *request_.mutable_resume();
      resume.set_fingerprint(event.started().fingerprint());
      resume.set_numerics(event.started().numerics());
    }
  } else if (event.chunk().token_ids_size() > 0 && resumable()) {
    v1::ScoreResume& resume = *request_.mutable_resume();
    resume.set_scores(received());
    double logprob = resume.logprob();
    for (const v1::TokenLogprobs& score : event.chunk().logprobs()) logprob += score.logprob();
    resume.set_logprob(logprob);
    HasBrought();
  }
  return verdict;
}

}  // namespace aft::client
