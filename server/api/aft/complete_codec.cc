#include "server/api/aft/complete_codec.h"

namespace aft::server {

void CompleteCodec::TakeAnswers(Response& outgoing) {
  for (Pending& pending : pending_) {
    v1::Delta& delta = *pending.part.message.mutable_delta();
    v1::Answer& answer = *outgoing.add_answers();
    answer.mutable_token_ids()->Swap(delta.mutable_token_ids());
    answer.mutable_text()->swap(*delta.mutable_text());
    answer.mutable_text()->append(pending.tail.message.delta().text());
    answer.mutable_logprobs()->Swap(delta.mutable_logprobs());
    if (pending.prompt.message.has_prompt_scores()) {
      answer.mutable_prompt_scores()->Swap(pending.prompt.message.mutable_prompt_scores());
    }
    if (pending.finished.has_value()) {
      answer.mutable_finished()->Swap(pending.finished->mutable_finished());
    }
  }
  Drop();
}

}  // namespace aft::server
