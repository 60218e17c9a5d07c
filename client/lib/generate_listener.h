#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// Follows a generation that no thread waits for. The methods are called one after the other, on
// gRPC's threads; they must be quick and may start calls, but not wait for them.
class GenerateListener {
 public:
  virtual ~GenerateListener() = default;

  // What the stream does after an event.
  struct Next {
    std::chrono::milliseconds pause{0};  // before the next event is read
    bool cancel = false;                 // instead of reading on
  };
  // Every event in order; none after a cancellation.
  virtual Next OnEvent(const v1::GenerateResponse& event) = 0;
  // Once, the last of all; errors as of Client. The listener may go.
  virtual void OnEnd(const absl::Status& status) = 0;
};

}  // namespace aft::client
