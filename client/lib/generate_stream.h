#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "aft/v1/inference.grpc.pb.h"
#include "base/mutex.h"
#include "client/lib/call_options.h"
#include "client/lib/generate_listener.h"
#include "client/lib/generation.h"

namespace aft::client {

// A generation on gRPC's threads. It owns itself from Start to its end. It begins in one lane,
// which makes one call after another. When a call with several sequences breaks, each unfinished
// sequence is resumed in a lane of its own. Internal to the library.
class GenerateStream {
 public:
  // Facts about the stream that its events do not contain.
  struct Summary {
    std::string request_id;
    uint32_t resumes = 0;
    bool exact = true;
  };

  // `client` must outlive the stream. So must `summary` (may be null), which is set when OnEnd is
  // called.
  static absl::Status Start(const ClientOptions& client,
                            std::unique_ptr<v1::InferenceService::Stub> stub,
                            const v1::GenerateRequest& request, GenerateListener& listener,
                            const CallOptions& options, Summary* summary = nullptr);

 private:
  class Lane;
  // One call of a lane, which owns itself.
  class Part;

  GenerateStream(std::unique_ptr<v1::InferenceService::Stub> stub, GenerateListener& listener,
                 const CallOptions& options, Summary* summary);

  // The lane's call has broken. Resumes after `pause`: in this lane, or in one lane for each
  // sequence.
  void GoOn(Lane& lane, std::chrono::milliseconds pause);
  // The lane has ended. With the last lane, the stream ends.
  void EndLane(Lane& lane, const absl::Status& status);
  bool over() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CancelAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  GenerateListener& listener_;
  const CallOptions options_;
  Summary* const summary_;

  // Held while the listener gets an event.
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Lane>> lanes_ ABSL_GUARDED_BY(mutex_);
  size_t open_ ABSL_GUARDED_BY(mutex_) = 1;         // lanes that have not ended
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;  // by the listener
  absl::Status status_ ABSL_GUARDED_BY(mutex_);     // the first error ends all lanes
  Summary total_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::client
