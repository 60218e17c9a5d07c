#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "server/engine/prefix_reads.h"
#include "server/engine/token_stream.h"
#include "server/observability/metrics.h"

namespace aft::server {

// Moves the states of streams into the slots of a runner, and out of them. For the engine's thread
// alone. REQUIRES, for every call that names a slot: no step in flight names it.
//
// If a call that moves a state fails, the stream must end. DATA_LOSS: the state is not the one that
// the stream needs. RESOURCE_EXHAUSTED: there is no memory. Other errors as ModelRunner::BindSlot.
class StreamSlots {
 public:
  // The arguments must outlive this object.
  StreamSlots(ModelRunner& runner, PrefixReads& prefixes, ModelMetrics& metrics)
      : runner_(runner), prefixes_(prefixes), metrics_(metrics) {}

  // The stream has got its first slot. It begins after a kept prefix, after the turn before, or at
  // the beginning of its text.
  absl::Status Begin(TokenStream& stream);

  // The stream has got its first slot, and continues as a copy of `leader`. REQUIRES: `leader` owns
  // a slot.
  absl::Status Fork(const TokenStream& leader, TokenStream& stream);

  // The stream has given up `slot`: its state is kept in the host's memory.
  absl::Status Park(TokenStream& stream, int32_t slot);
  // The stream has got a slot again, and continues where it was.
  absl::Status Unpark(TokenStream& stream);

  // Keeps the state in the host's memory. Errors as ModelRunner::KeepSlot.
  absl::StatusOr<std::shared_ptr<const KeptState>> Keep(int32_t slot) const;

  // Returns what the stream, which has ended and still owns its slot, leaves for the next turn.
  // Errors as Keep. REQUIRES: stream.end.
  absl::StatusOr<std::shared_ptr<TurnEnd>> TakeTurn(TokenStream& stream) const;

 private:
  absl::Status Bind(TokenStream& stream, const StateSource& from);

  ModelRunner& runner_;
  PrefixReads& prefixes_;
  ModelMetrics& metrics_;
};

}  // namespace aft::server
