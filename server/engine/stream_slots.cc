#include "server/engine/stream_slots.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "base/status_macros.h"

namespace aft::server {

absl::Status StreamSlots::Begin(TokenStream& stream) {
  const std::shared_ptr<const KeptState> prefix = prefixes_.Take(stream);
  if (prefix != nullptr) return Bind(stream, prefix.get());
  if (stream.previous != nullptr) return Bind(stream, stream.previous->snapshot);
  return Bind(stream, NewSequence());
}

absl::Status StreamSlots::Fork(const TokenStream& leader, TokenStream& stream) {
  if (leader.position() == 0) return Bind(stream, NewSequence());
  return Bind(stream, ForkOf{leader.slot()});
}

absl::Status StreamSlots::Park(TokenStream& stream, int32_t slot) {
  metrics_.parks.Increment();
  AFT_ASSIGN_OR_RETURN(stream.parked, Keep(slot));
  return absl::OkStatus();
}

absl::Status StreamSlots::Unpark(TokenStream& stream) {
  const std::shared_ptr<const KeptState> parked = std::move(stream.parked);
  AFT_RETURN_IF_ERROR(Bind(stream, parked.get()));
  metrics_.resumes.Increment();
  return absl::OkStatus();
}

absl::Status StreamSlots::Bind(TokenStream& stream, const StateSource& from) {
  return Catching([&]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(const int64_t position,
                         runner_.BindSlot(stream.slot(), from, stream.Terms()));
    // If they differ, the runner would refuse the next step, and all of its sequences would end.
    if (position == stream.position()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("a state of ", position, " tokens, for position ", stream.position()));
  });
}

absl::StatusOr<std::shared_ptr<const KeptState>> StreamSlots::Keep(int32_t slot) const {
  std::shared_ptr<const KeptState> kept;
  AFT_RETURN_IF_ERROR(Catching([&]() -> absl::Status {
    AFT_ASSIGN_OR_RETURN(kept, runner_.KeepSlot(slot, KeptIn::kHost));
    return absl::OkStatus();
  }));
  return kept;
}

absl::StatusOr<std::shared_ptr<TurnEnd>> StreamSlots::TakeTurn(TokenStream& stream) const {
  std::shared_ptr<TurnEnd> turn = std::move(stream.end);
  turn->previous = stream.previous;
  turn->model = runner_.info().fingerprint;
  AFT_ASSIGN_OR_RETURN(turn->state, Keep(stream.slot()));
  return turn;
}

}  // namespace aft::server
