#include "server/rpc/score_call.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/rpc/score_codec.h"

namespace aft::server {

absl::Status ScoreCall::Submit(const grpc::ByteBuffer& bytes) {
  v1::ScoreRequest message;
  AFT_RETURN_IF_ERROR(Open(bytes, message));
  AFT_RETURN_IF_ERROR(FindModel(message.model()));
  if (model().engine == nullptr) return WrongTask();
  Engine& engine = *model().engine;
  absl::StatusOr<ScoringRequest> request =
      DecodeScoreRequest(message, limits(), *model().tokenizer, engine.model_info());
  if (!request.ok()) return Invalid(request.status());
  FillHeader(*request);

  v1::ScoreStarted& started = *outgoing_.mutable_started();
  started.set_model(model().name);
  started.set_model_version(model().version);
  started.set_tokens(static_cast<uint32_t>(request->text.size()));
  return Accepted(
      engine.Submit(*std::move(request), std::static_pointer_cast<ScoreCall>(shared_from_this())));
}

bool ScoreCall::OnDelta(TokenDelta delta) {
  return Offer([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return AppendScores(delta, *pending_.mutable_chunk());
  });
}

bool ScoreCall::TakePending() {
  if (!pending_.has_chunk()) return false;
  outgoing_.Swap(&pending_);
  pending_.Clear();
  return true;
}

void ScoreCall::SetFinished(const Outcome& outcome) {
  *outgoing_.mutable_finished() = EncodeScoreFinished(outcome);
}

}  // namespace aft::server
