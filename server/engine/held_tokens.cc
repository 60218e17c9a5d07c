#include "server/engine/held_tokens.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace aft::server {

void HeldTokens::Hold(TokenStream& stream, TokenDelta delta) {
  TokenDelta& held = stream.held;
  if (held.tokens.empty()) {
    held = std::move(delta);
    streams_.push_back(&stream);
    return;
  }
  std::move(delta.tokens.begin(), delta.tokens.end(), std::back_inserter(held.tokens));
  held.text += delta.text;
}

TokenDelta HeldTokens::Take(TokenStream& stream, TokenDelta delta) {
  if (stream.held.tokens.empty()) return delta;
  Hold(stream, std::move(delta));
  streams_.erase(std::find(streams_.begin(), streams_.end(), &stream));
  return std::exchange(stream.held, {});
}

void HeldTokens::Release(const Step* next, absl::FunctionRef<void(TokenStream&, TokenDelta)> give) {
  if (next != nullptr && next->small) return;
  const bool shared = next != nullptr && next->shared;
  for (size_t i = streams_.size(); i-- > 0;) {  // from the end, since released ones leave
    TokenStream& stream = *streams_[i];
    if (shared && stream.flights() > 0) continue;
    give(stream, Take(stream, {}));
  }
}

}  // namespace aft::server
