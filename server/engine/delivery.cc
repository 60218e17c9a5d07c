// GenerateEngine: how streams get their tokens.

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "server/engine/generate_engine.h"

namespace aft::server {

void GenerateEngine::Deliver(TokenStream& stream, TokenDelta delta, bool ended, Outcome outcome,
                             TimePoint now) {
  const bool news = !delta.tokens.empty() || !delta.text.empty();
  // Nobody waits for longer for a first token.
  if (news && !ended && stream.is_in_turn() && stream.further_tokens > 0) {
    Hold(stream, std::move(delta));
  } else if (news) {
    absl::Status status = GiveWithHeld(stream, std::move(delta));
    if (!status.ok()) return Fail(stream, std::move(status), now);
  }
  if (!ended) return;
  if (stream.end != nullptr) {
    absl::StatusOr<std::shared_ptr<TurnEnd>> turn = TakeTurn(stream);
    if (!turn.ok()) return StateLost(stream, "engine.store_failed", turn.status());
    outcome.turn = *std::move(turn);
  } else {
    prefixes_.HasEnded(stream);
  }
  End(stream, std::move(outcome), now);
}

void GenerateEngine::Hold(TokenStream& stream, TokenDelta delta) {
  TokenDelta& held = stream.held;
  if (held.tokens.empty()) {
    held = std::move(delta);
    holding_.push_back(&stream);
    return;
  }
  std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(held.tokens));
  held.text += delta.text;
}

absl::Status GenerateEngine::GiveWithHeld(TokenStream& stream, TokenDelta delta) {
  if (!stream.held.tokens.empty()) {
    Hold(stream, std::move(delta));
    delta = std::exchange(stream.held, {});
    holding_.erase(std::find(holding_.begin(), holding_.end(), &stream));
  }
  return Give(*stream.sink, std::move(delta));
}

// `next`: the step that was planned; null: none. A stream whose next token does not come with a
// step in flight may have to wait for it, and so may all streams where steps are not shared. Small
// steps are few and short, and measure what a step costs, so that nothing leaves before them.
void GenerateEngine::ReleaseHeld(const Step* next) {
  if (next != nullptr && next->small) return;
  const bool shared = next != nullptr && next->shared;
  for (size_t i = holding_.size(); i-- > 0;) {  // from the end: those that are released leave
    if (i >= holding_.size()) continue;         // more than one stream has failed
    TokenStream& stream = *holding_[i];
    if (shared && stream.flights() > 0) continue;
    absl::Status status = GiveWithHeld(stream, {});
    if (!status.ok()) Fail(stream, std::move(status), Now());
  }
}

}  // namespace aft::server
