// What StreamCall does so that streams survive their server.

#include <algorithm>
#include <utility>

#include "model/api/snapshot_bytes.h"
#include "server/api/aft/stream_call.h"
#include "server/engine/resumption.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

// Of the stream so far, without a snapshot.
SequenceState TextOf(const GenerationRequest& request, uint64_t model) {
  const auto first = request.prompt.end() - static_cast<std::ptrdiff_t>(request.resumed);
  TurnEnd turn;
  turn.previous = request.previous;
  turn.model = model;
  turn.text.assign(request.prompt.begin(), first);
  turn.outputs.assign(first, request.prompt.end());
  turn.last_is_pending = request.resumed > 0;
  return MakeState(std::move(turn));
}

}  // namespace

void StreamCall::FindStart(const v1::Resume& resume, GenerationRequest& request,
                           std::function<absl::Status()> rest) {
  StateAccess& states = environment_.states;
  if (!resume.state().empty()) {
    auto state = states.Open("resume.state", resume.state());
    if (state.ok() && IsWithin(*state, request, model_->info)) {
      previous_bytes_ += static_cast<size_t>(StateBytes(*state));
      request.start = std::make_shared<const SequenceState>(*std::move(state));
      return Attempt(rest);
    }
  }
  if (resume.resume_id().empty() || !states.keeps()) return Attempt(rest);
  states.FindCheckpoint(*client_, resume.resume_id(),
                        [call = shared_from_this(), &resume, &request, rest = std::move(rest)](
                            const absl::StatusOr<std::shared_ptr<const SequenceState>>& found) {
                          call->Attempt([&] {
                            if (found.ok()) call->found_id_ = resume.resume_id();
                            if (found.ok() && IsWithin(**found, request, call->model_->info))
                              request.start = *found;
                            return rest();
                          });
                        });
}

void StreamCall::Resumes(bool exact, bool from_state) {
  resumed_ = &metrics_->streams_resumed(exact, from_state);
}

void StreamCall::CountResumed() {
  if (auto* const counter = std::exchange(resumed_, nullptr)) counter->Increment();
}

void StreamCall::Survive(const v1::GenerateRequest& message, GenerationRequest& request,
                         v1::Started& started) {
  request.survival.resumable = message.resumable();
  // Of several answers each would be a state.
  if (!message.resumable() || message.n() > 1) return;
  StateAccess& states = environment_.states;
  const StatesConfig& config = states.config();
  const bool kept = states.keeps() && (config.checkpoint_tokens > 0 || states.outlive_server());
  hands_to_client_ = !states.shared() && !config.key_files.empty();
  if (!kept && !hands_to_client_) return;

  // One that is held, and one that is written or sent.
  const ModelInfo& info = model_->info;
  const int64_t before = request.tokens_before() + static_cast<int64_t>(request.prompt.size());
  const int64_t most = MaxStateBytes(info, before + request.stop.max_tokens, /*added=*/0);
  {
    MutexLock lock(mutex_);
    kept_bytes_ = static_cast<size_t>(2 * (most + 2 * info.vocab_size));
    if (!charge_.Resize(charge_.bytes() + static_cast<int64_t>(kept_bytes_))) {
      kept_bytes_ = 0;
      return;
    }
  }
  keeper_ = std::make_shared<StreamKeeper>(
      StreamKeeper::Environment{states, environment_.decoders, environment_.metrics.states},
      client_, model_->config.name, TextOf(request, info.fingerprint), request.start, found_id_,
      ids_);
  request.survival.sink = keeper_;
  if (states.keeps() && config.checkpoint_tokens > 0) {
    request.survival.interval = std::max<int64_t>(config.checkpoint_tokens / 2, 1);
  }
  if (kept) started.set_resume_id(keeper_->id());
}

void StreamCall::HandOver(const Outcome& outcome, uint32_t sequence) {
  if (!places_.empty()) places_[sequence] = {};
  keeper_->HandOver(
      std::move(*outcome.hand_over), hands_to_client_,
      [call = shared_from_this(), outcome, sequence](absl::StatusOr<std::string> sealed) {
        StateMetrics& metrics = call->environment_.metrics.states;
        if (!sealed.ok()) {
          metrics.handed_text_only.Increment();
        } else if (sealed->empty()) {
          metrics.handed_to_store.Increment();
        } else {
          metrics.handed_to_client.Increment();
          MutexLock lock(call->mutex_);
          if (!call->cancelled_) call->hand_over_ = *std::move(sealed);
        }
        call->EndNow(outcome, sequence, std::nullopt);
      });
}

bool StreamCall::TakeHandOver() {
  if (handed_over_ >= hand_over_.size()) return false;
  SetHandOver(hand_over_.substr(handed_over_, kStateChunkBytes));
  handed_over_ += kStateChunkBytes;
  return true;
}

void StreamCall::ForgetKept(absl::StatusCode code, bool begun) {
  if (keeper_ == nullptr) return;
  // What a client goes on from.
  const bool broken = code == absl::StatusCode::kUnavailable ||
                      code == absl::StatusCode::kCancelled || code == absl::StatusCode::kInternal;
  if (!broken || !begun) keeper_->Forget(/*old=*/begun);
}

}  // namespace aft::server
