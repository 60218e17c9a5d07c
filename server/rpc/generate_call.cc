#include "server/rpc/generate_call.h"

#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/generate_codec.h"

namespace aft::server {

absl::Status GenerateCall::Submit(const grpc::ByteBuffer& bytes) {
  v1::GenerateRequest message;
  AFT_RETURN_IF_ERROR(Open(bytes, message));
  AFT_RETURN_IF_ERROR(FindModel(message.model()));
  if (model().engine == nullptr) return WrongTask();
  Engine& engine = *model().engine;
  absl::StatusOr<GenerationRequest> request =
      DecodeGenerateRequest(message, limits(), *model().tokenizer, engine.model_info().vocab_size,
                            /*drawn_seed=*/RandomUint64());
  if (!request.ok()) return Invalid(request.status());
  FillHeader(*request);
  with_logprobs_ = message.output().has_top_logprobs();

  v1::Started& started = *outgoing_.mutable_started();
  started.set_model(model().name);
  started.set_model_version(model().version);
  started.set_seed(request->sampling.seed);
  started.set_prompt_tokens(static_cast<uint32_t>(request->prompt.size()));
  return Accepted(engine.Submit(*std::move(request),
                                std::static_pointer_cast<GenerateCall>(shared_from_this())));
}

bool GenerateCall::OnDelta(TokenDelta delta) {
  return Offer([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return AppendDelta(delta, with_logprobs_, *pending_.mutable_delta());
  });
}

bool GenerateCall::TakePending() {
  if (!pending_.has_delta()) return false;
  outgoing_.Swap(&pending_);
  pending_.Clear();
  return true;
}

void GenerateCall::SetFinished(const Outcome& outcome) {
  *outgoing_.mutable_finished() = EncodeFinished(outcome);
}

}  // namespace aft::server
