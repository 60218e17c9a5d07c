#pragma once

#include "base/status_macros.h"
#include "server/api/aft/stream_call.h"

namespace aft::server {

// A call of InferenceService that a thread of the decode pool answers, and no engine. Its Codec
// knows Request, Response, kMethod and
//   Answer(message, limits, model)   the response, or why there is none
template <typename Codec>
class AnswerCall final : public StreamCall {
 public:
  AnswerCall(InferenceEnvironment& environment, grpc::CallbackServerContext& context)
      : StreamCall(Codec::kMethod, environment, context) {}

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) override {
    typename Codec::Request message;
    AFT_RETURN_IF_ERROR(Parse(bytes, message));
    AFT_RETURN_IF_ERROR(FindModel(message.model(), message.model_version()));
    auto answer = Codec::Answer(message, limits(), model());
    if (!answer.ok()) return Invalid(answer.status());
    outgoing_ = *std::move(answer);
    {
      MutexLock lock(mutex_);
      held_bytes_ = outgoing_.SpaceUsedLong() + outgoing_.ByteSizeLong();
    }
    return Answer();
  }

  const google::protobuf::MessageLite& outgoing() const override { return outgoing_; }
  bool TakePending() override { return false; }
  void DropPending() override {}
  size_t pending_bytes() const override { return 0; }
  size_t held_bytes() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return held_bytes_; }
  void SetHandOver(std::string /*chunk*/) override {}
  void SetFinished(const Outcome& /*outcome*/) override {}
  void AppendFinished(const Outcome& /*outcome*/, uint32_t /*sequence*/,
                      const v1::State* /*state*/) override {}

  typename Codec::Response outgoing_;
  size_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
