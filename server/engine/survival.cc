// What GenerateEngine does so that streams survive its server.

#include <memory>
#include <string>
#include <utility>

#include "server/engine/generate_engine.h"

namespace aft::server {

// At most one begins in a step, so that no step is much longer for them.
void GenerateEngine::LeaveCheckpoint(TokenStream& stream) {
  const Survival& survival = stream.survival;
  if (survival.interval == 0 || stream.position() < stream.next_checkpoint) return;
  if (!stream.sits_out) {
    if (std::exchange(checkpointed_, true)) return;
    if (!survival.sink->Ready()) {
      stream.next_checkpoint = stream.position() + survival.interval;
      return;
    }
  }
  stream.sits_out = stream.flights() > 0;
  if (stream.sits_out) return ContinuousScheduler::Pause(stream);
  stream.next_checkpoint = stream.position() + survival.interval;
  std::string snapshot = runner_->SnapshotSlot(stream.slot());
  if (snapshot.empty()) return;  // the device fails, and its steps will say so
  survival.sink->OnCheckpoint({std::move(snapshot), std::exchange(stream.unsaved, {})});
}

// Of a prompt nothing is left behind: whoever goes on with it reads it again.
void GenerateEngine::Leave(Job& job, TimePoint now) {
  auto& stream = static_cast<TokenStream&>(job);
  if (!stream.survival.resumable) return;
  Outcome outcome;
  outcome.status = absl::UnavailableError("the server is draining: resume the stream elsewhere");
  if (stream.survival.sink != nullptr && stream.prompt_left() == 0) {
    if (stream.flights() > 0) return ContinuousScheduler::Pause(stream);
    auto checkpoint = std::make_shared<Checkpoint>();
    checkpoint->snapshot = stream.slot() < 0 ? std::move(stream.snapshot)  // it is parked
                                             : runner_->SnapshotSlot(stream.slot());
    checkpoint->outputs = std::move(stream.unsaved);
    if (!checkpoint->snapshot.empty()) outcome.hand_over = std::move(checkpoint);
  }
  End(stream, std::move(outcome), now);
}

}  // namespace aft::server
