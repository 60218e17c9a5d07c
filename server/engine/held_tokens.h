#pragma once

#include <vector>

#include "absl/functional/function_ref.h"
#include "server/engine/token_stream.h"
#include "server/scheduling/step.h"

namespace aft::server {

// Tokens of streams that take turns in shared steps: their sinks get the tokens of a turn together.
// For the engine's thread alone.
class HeldTokens {
 public:
  bool empty() const { return streams_.empty(); }

  // Adds to what is held of the stream.
  void Hold(TokenStream& stream, TokenDelta delta);

  // All that is held of the stream, and `delta` after it.
  TokenDelta Take(TokenStream& stream, TokenDelta delta);

  // Gives what must not be held any longer. `next`: the step that was planned; null: none. A stream
  // whose next token does not come with a step in flight may have to wait for it, and so may all
  // streams where steps are not shared. Small steps are few and short, and measure what a step
  // costs, so that nothing leaves before them. `give` may end streams.
  void Release(const Step* next, absl::FunctionRef<void(TokenStream&, TokenDelta)> give);

 private:
  std::vector<TokenStream*> streams_;  // those of which something is held
};

}  // namespace aft::server
