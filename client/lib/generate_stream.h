#pragma once

#include <grpcpp/alarm.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "aft/v1/inference.grpc.pb.h"
#include "client/lib/call_options.h"
#include "client/lib/generate_listener.h"
#include "client/lib/generation.h"

namespace aft::client {

// A generation on gRPC's threads; owns itself from Start to its end. Internal to the library.
class GenerateStream {
 public:
  // `client` must outlive it.
  static absl::Status Start(const ClientOptions& client,
                            std::unique_ptr<v1::InferenceService::Stub> stub,
                            const v1::GenerateRequest& request, GenerateListener& listener,
                            const CallOptions& options);

 private:
  // One of its calls, which owns itself.
  class Part;

  GenerateStream(const ClientOptions& client, std::unique_ptr<v1::InferenceService::Stub> stub,
                 const v1::GenerateRequest& request, GenerateListener& listener,
                 const CallOptions& options);

  absl::Status StartPart();
  // The call is over and gone; `pause` as of Generation::End.
  void OnPartEnd(std::optional<std::chrono::milliseconds> pause);
  // Calls `then` when the pause is over, or the call cancelled; perhaps at once.
  void Pause(std::chrono::milliseconds pause, std::function<void()> then);
  void End(const absl::Status& status);

  const std::unique_ptr<v1::InferenceService::Stub> stub_;
  GenerateListener& listener_;
  const CallOptions options_;
  Generation generation_;
  grpc::Alarm alarm_;
};

}  // namespace aft::client
