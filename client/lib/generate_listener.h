#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Receives the events of a generation without a waiting thread. The methods are called one after
// the other, on gRPC's threads. They must be quick. They may start calls, but must not wait for
// them.
class GenerateListener {
 public:
  virtual ~GenerateListener() = default;

  // Tells the stream how to continue after an event.
  struct Next {
    std::chrono::milliseconds pause{0};  // before the next event is read
    bool cancel = false;                 // cancel the call instead of reading on
  };
  // Is called for every event in order, and not after a cancellation.
  virtual Next OnEvent(const v1::GenerateResponse& event) = 0;
  // Is called once, last, with an error of Client if the generation failed. The listener may be
  // destroyed then.
  virtual void OnEnd(const absl::Status& status) = 0;
};

}  // namespace aft::client
