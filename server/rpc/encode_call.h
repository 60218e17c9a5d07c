#ifndef AFT_SERVER_RPC_ENCODE_CALL_H_
#define AFT_SERVER_RPC_ENCODE_CALL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/encode_engine.h"
#include "server/rpc/stream_call.h"

namespace aft::server {

// One Encode RPC. The vectors, which come all at once and are no more than a batch holds, leave in
// messages of bounded size, one after the other.
class EncodeCall final : public StreamCall, public VectorSink {
 public:
  EncodeCall(CallEnvironment& environment, grpc::CallbackServerContext& context)
      : StreamCall(Method::kEncode, environment, context) {}

  // VectorSink, on the engine's thread.
  void OnVectors(std::vector<float> vectors) override;
  void OnFinished(const Outcome& outcome) override { End(outcome); }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) override;
  const google::protobuf::MessageLite& outgoing() const override { return outgoing_; }
  bool TakePending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { vectors_ = {}; }
  void SetFinished(const Outcome& outcome) override;

  int64_t width_ = 0;  // set by Submit, then constant
  v1::EncodeResponse outgoing_;
  std::vector<float> vectors_ ABSL_GUARDED_BY(mutex_);
  size_t sent_ ABSL_GUARDED_BY(mutex_) = 0;  // vectors
};

}  // namespace aft::server

#endif  // AFT_SERVER_RPC_ENCODE_CALL_H_
