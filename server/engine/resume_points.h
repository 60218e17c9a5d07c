#pragma once

#include <memory>

#include "server/engine/stream_slots.h"
#include "server/engine/token_stream.h"

namespace aft::server {

// Decides when streams leave resume points (Survival). For the engine's thread alone.
class ResumePoints {
 public:
  // `slots` must outlive this object.
  explicit ResumePoints(const StreamSlots& slots) : slots_(slots) {}

  // The tokens of another step are about to be published.
  void BeginStep() { left_one_ = false; }

  // Is called when the stream has got a token and continues. At most one stream begins a resume
  // point in a step, so that no step takes much longer. A stream that a step in flight names sits
  // out a step first.
  void MaybeLeave(TokenStream& stream);

  // Returns the last resume point of a stream that a drain ends. Returns null if the stream leaves
  // none, because its state is lost, or because it still reads its prompt, which another server can
  // read again. REQUIRES: no step in flight names the stream's slot.
  std::shared_ptr<ResumePoint> TakeLast(TokenStream& stream) const;

 private:
  const StreamSlots& slots_;
  bool left_one_ = false;  // a stream has begun a resume point in this step
};

}  // namespace aft::server
