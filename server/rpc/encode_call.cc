#include "server/rpc/encode_call.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/rpc/encode_codec.h"

namespace aft::server {

absl::Status EncodeCall::Submit(const grpc::ByteBuffer& bytes) {
  v1::EncodeRequest message;
  AFT_RETURN_IF_ERROR(Open(bytes, message));
  AFT_RETURN_IF_ERROR(FindModel(message.model()));
  if (model().encoder == nullptr) return WrongTask();
  EncodeEngine& engine = *model().encoder;
  absl::StatusOr<EncodingRequest> request = DecodeEncodeRequest(
      message, limits(), *model().tokenizer, engine.model_info(), engine.max_batch_tokens());
  if (!request.ok()) return Invalid(request.status());
  FillHeader(*request);
  width_ = engine.width();

  v1::EncodeStarted& started = *outgoing_.mutable_started();
  started.set_model(model().name);
  started.set_model_version(model().version);
  started.set_tokens(static_cast<uint32_t>(request->text.size()));
  started.set_width(static_cast<uint32_t>(width_));
  return Accepted(
      engine.Submit(*std::move(request), std::static_pointer_cast<EncodeCall>(shared_from_this())));
}

void EncodeCall::OnVectors(std::vector<float> vectors) {
  Offer([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    vectors_ = std::move(vectors);
    return vectors_.size() * sizeof(float);
  });
}

bool EncodeCall::TakePending() {
  if (vectors_.empty()) return false;
  sent_ += FillVectors(vectors_, width_, sent_, *outgoing_.mutable_vectors());
  if (sent_ * static_cast<size_t>(width_) == vectors_.size()) vectors_ = {};
  return true;
}

void EncodeCall::SetFinished(const Outcome& outcome) {
  *outgoing_.mutable_finished() = EncodeEncodeFinished(outcome);
}

}  // namespace aft::server
