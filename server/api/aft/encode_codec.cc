#include "server/api/aft/encode_codec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/call/outcome_messages.h"

namespace aft::server {
namespace {

// Far below gRPC's default limit of 4 MiB, and within the 64 KiB of HTTP/2's first window. The
// client has the first vectors while the next ones are still on the way.
constexpr size_t kMessageBytes = size_t{32} << 10;

absl::StatusOr<Pooling> DecodePooling(v1::Pooling pooling, const ModelInfo& model) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
      return Pooling::kNone;
    case v1::POOLING_MEAN:
      return Pooling::kMean;
    case v1::POOLING_FIRST:
      return Pooling::kFirst;
    case v1::POOLING_LAST:
      return Pooling::kLast;
    case v1::POOLING_MODEL:
      return model.pooling;
    default:  // an unknown value, perhaps of a newer client
      return BadField("pooling", absl::StrCat("must be a value of aft.v1.Pooling, got ",
                                              static_cast<int>(pooling)));
  }
}

}  // namespace

absl::StatusOr<EncodingRequest> EncodeCodec::Decode(const Request& message,
                                                    const LimitsConfig& limits,
                                                    const ServedModel& model,
                                                    v1::EncodeStarted& started) {
  EncodingRequest request;
  AFT_ASSIGN_OR_RETURN(request.service_class,
                       DecodePriority(message.priority(), ServiceClass::kNormal));
  AFT_ASSIGN_OR_RETURN(request.pooling, DecodePooling(message.pooling(), model.info));
  request.normalize =
      message.normalize() || (message.pooling() == v1::POOLING_MODEL && model.info.normalize);
  TextRules rules = {
      .limits = limits, .tokenizer = *model.tokenizer, .vocab_size = model.info.vocab_size};
  const bool at_once = model.info.hidden_width == 0;  // an encoder never splits a text
  if (at_once) {
    rules.max_tokens = model.config.max_batch_tokens;
    rules.max_tokens_name = "the model's batch.max_tokens";
  }
  if (model.info.max_seq_len != 0 && (!at_once || model.info.max_seq_len < rules.max_tokens)) {
    rules.max_tokens = model.info.max_seq_len;
    rules.max_tokens_name = "the model's max_seq_len";
  }
  AFT_RETURN_IF_ERROR(DecodeTexts(message, "text_to_encode", rules, started));
  width_ = static_cast<size_t>(model.vector_width);
  answer_bytes_ =
      (request.pooling == Pooling::kNone ? tokens() : sequences()) * width_ * sizeof(float);
  started.set_width(static_cast<uint32_t>(width_));
  return request;
}

void EncodeCodec::Append(Part part, uint32_t sequence) {
  Answer& answer = answers_.emplace_back();
  answer.index = sequence;
  answer.vectors = std::move(part);
}

void EncodeCodec::AppendFinished(const Outcome& outcome, uint32_t sequence,
                                 const v1::State* /*state*/) {
  const auto answer = std::find_if(answers_.begin(), answers_.end(),
                                   [sequence](const Answer& one) { return one.index == sequence; });
  v1::EncodeFinished finished;
  Finish(outcome, finished);
  if (answer != answers_.end()) {
    answer->finished = std::move(finished);
  } else {  // all vectors of the text were taken
    answers_.push_back({.index = sequence, .finished = std::move(finished)});
  }
}

bool EncodeCodec::Take(Response& outgoing) {
  if (answers_.empty()) return false;
  Answer& answer = answers_.front();
  outgoing.set_index(answer.index);
  if (answer.vectors.empty()) {
    *outgoing.mutable_finished() = *std::move(answer.finished);
    answers_.pop_front();
    return true;
  }
  const size_t left = answer.vectors.size() / width_ - answer.sent;
  const size_t count =
      std::min(left, std::max<size_t>(1, kMessageBytes / (width_ * sizeof(float))));
  const float* const begin = answer.vectors.data() + answer.sent * width_;
  v1::Vectors& message = *outgoing.mutable_vectors();
  message.set_first_index(static_cast<uint32_t>(answer.sent));
  message.mutable_values()->Assign(begin, begin + count * width_);
  answer.sent += count;
  unsent_bytes_ -= count * width_ * sizeof(float);
  if (count < left) return true;
  std::vector<float>().swap(answer.vectors);
  if (!answer.finished.has_value()) answers_.pop_front();
  return true;
}

void EncodeCodec::Drop() {
  answers_.clear();
  unsent_bytes_ = 0;
}

void EncodeCodec::Finish(const Outcome& outcome, v1::EncodeFinished& finished) const {
  finished.set_batch_rows(outcome.batch_rows);
  *finished.mutable_timings() = EncodeTimings(outcome.timings);
}

}  // namespace aft::server
