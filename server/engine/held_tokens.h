#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "server/engine/token_stream.h"
#include "server/scheduling/step.h"

namespace aft::server {

// Holds tokens of streams that take turns in shared steps, so that a sink gets all tokens of a turn
// together. For the engine's thread alone.
class HeldTokens {
 public:
  // Adds `delta` to what is held of the stream.
  void Hold(TokenStream& stream, TokenDelta delta);

  // Returns all that is held of the stream, with `delta` after it.
  TokenDelta Take(TokenStream& stream, TokenDelta delta);

  // Calls `give` with the tokens that must not be held any longer. `next` is the step that was
  // planned; null: there is none. The tokens of a stream are given if no step in flight contains
  // the stream, because its next token may be late. If the steps are not shared, the tokens of all
  // streams are given. Nothing is given before a small step, because small steps are few and short,
  // and measure the cost of a step. `give` may end the stream that it is called with.
  void Release(const Step* next, absl::FunctionRef<void(TokenStream&, TokenDelta)> give);

 private:
  std::vector<TokenStream*> streams_;  // the streams with held tokens
};

}  // namespace aft::server
