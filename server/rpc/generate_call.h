#ifndef AFT_SERVER_RPC_GENERATE_CALL_H_
#define AFT_SERVER_RPC_GENERATE_CALL_H_

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/engine.h"
#include "server/rpc/stream_call.h"

namespace aft::server {

// One Generate RPC. Tokens that wait become one Delta.
class GenerateCall final : public StreamCall, public ResponseSink {
 public:
  GenerateCall(CallEnvironment& environment, grpc::CallbackServerContext& context)
      : StreamCall(Method::kGenerate, environment, context) {}

  // ResponseSink, on the engine's thread.
  bool OnDelta(TokenDelta delta) override;
  void OnFinished(const Outcome& outcome) override { End(outcome); }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) override;
  const google::protobuf::MessageLite& outgoing() const override { return outgoing_; }
  bool TakePending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { pending_.Clear(); }
  void SetFinished(const Outcome& outcome) override;

  bool with_logprobs_ = false;  // set by Submit, then constant
  v1::GenerateResponse outgoing_;
  v1::GenerateResponse pending_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_GENERATE_CALL_H_
