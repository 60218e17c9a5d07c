#pragma once

#include <grpcpp/alarm.h>
#include <grpcpp/support/client_callback.h>

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "aft/v1/inference.grpc.pb.h"
#include "client/lib/call.h"
#include "client/lib/call_options.h"
#include "client/lib/cancel_token.h"
#include "client/lib/generate_listener.h"
#include "client/lib/stream_checker.h"

namespace aft::client {

// A generation on gRPC's threads; owns itself from Start to its end. Internal to the library.
class GenerateStream final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  static absl::Status Start(const ClientOptions& client, v1::InferenceService::Stub& stub,
                            const v1::GenerateRequest& request, GenerateListener& listener,
                            const CallOptions& options);

 private:
  GenerateStream(GenerateListener& listener, const CallOptions& options)
      : listener_(listener), options_(options), cancel_scope_(options.cancel, call_.context) {}

  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  // Reads on once the pause is over, or the call cancelled.
  void ReadWhenPaused();

  GenerateListener& listener_;
  const CallOptions options_;
  Call call_;
  const CancelScope cancel_scope_;
  v1::GenerateResponse event_;
  StreamChecker checker_;
  std::string broken_;
  std::chrono::milliseconds pause_left_{0};
  grpc::Alarm alarm_;
};

}  // namespace aft::client
