#ifndef AFT_SERVER_RPC_GENERATE_CALL_H_
#define AFT_SERVER_RPC_GENERATE_CALL_H_

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/config/config.h"
#include "server/engine/engine.h"
#include "server/observability/metrics.h"
#include "server/registry/model_registry.h"
#include "server/rpc/active_calls.h"
#include "server/rpc/retry_hint.h"

namespace aft::server {

// What every Generate call shares. Outlives them all.
struct GenerateEnvironment {
  ModelRegistry& registry;
  ServerMetrics& metrics;
  ActiveCalls& active;
  LimitsConfig limits;
  RetryHint retry_hint;
};

// One Generate RPC: gRPC's reactor on one side, the engine's sink on the other.
//
// At most one operation of a stream may be outstanding, and operations come from two sides (the
// engine's thread, gRPC's). So there is one right to start the next operation, `writing_`: who
// takes it calls Pump, which starts the write or the end of the stream; OnWriteDone pumps on. While
// a write is under way the engine's tokens collect in one pending message.
//
// The call parses and serialises the messages itself: gRPC answers a request that it cannot parse
// (a `text` that is not UTF-8) with a bare UNIMPLEMENTED, and this server names the fault.
//
// Lifetime: the call owns itself from Start to OnDone, and the engine holds it as its sink: it goes
// when both are done. Every call ends in Conclude, exactly once.
class GenerateCall final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                           public ResponseSink,
                           public std::enable_shared_from_this<GenerateCall> {
 public:
  // Checks the request, submits it and returns the reactor for gRPC. Refusals end the stream.
  // `context` lives until OnDone, as gRPC promises.
  static grpc::ServerWriteReactor<grpc::ByteBuffer>* Start(GenerateEnvironment& environment,
                                                           grpc::CallbackServerContext& context,
                                                           const grpc::ByteBuffer& message);

  // grpc::ServerWriteReactor, on gRPC's threads.
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  // ResponseSink, on the engine's thread.
  bool OnDelta(TokenDelta delta) override;
  void OnFinished(const Outcome& outcome) override;

 private:
  GenerateCall(GenerateEnvironment& environment, grpc::CallbackServerContext& context);

  // Everything up to the engine's acceptance; leaves Started in outgoing_.
  absl::Status Submit(const grpc::ByteBuffer& message);
  // Serialises outgoing_ into outgoing_bytes_.
  const grpc::ByteBuffer* Outgoing();
  // Starts the next operation, or gives the right back. REQUIRES: the caller took `writing_`.
  void Pump();
  // Ends the stream, after the access log and the counters. REQUIRES: as Pump; never given back.
  void Conclude(const Outcome& outcome);
  void Report(const Outcome& outcome, absl::StatusCode code);
  absl::StatusCode FinalCode(const Outcome& outcome) const;

  GenerateEnvironment& environment_;
  grpc::CallbackServerContext& context_;
  const TimePoint arrival_;
  const TimePoint deadline_;
  // Set by Submit, then constant.
  std::string id_;
  std::string model_name_;  // as requested
  bool with_logprobs_ = false;
  ModelMetrics* metrics_ = nullptr;  // of the model that the request names, if there is one
  std::shared_ptr<const ServedModel> model_;

  std::shared_ptr<GenerateCall> self_;  // until OnDone

  // Of whoever has the right to write.
  v1::GenerateResponse outgoing_;
  grpc::ByteBuffer outgoing_bytes_;

  mutable Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // Start has the right first
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint cancelled_at_ ABSL_GUARDED_BY(mutex_);
  v1::GenerateResponse pending_ ABSL_GUARDED_BY(mutex_);
  size_t pending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<Engine::Handle> handle_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_GENERATE_CALL_H_
