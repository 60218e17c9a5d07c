#include "server/rpc/encode_codec.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/rpc/text_codec.h"

namespace aft::server {
namespace {

// Far below gRPC's default limit of 4 MiB, and within the 64 KiB of HTTP/2's first window: the
// client has the first vectors while the next are on their way.
constexpr size_t kMessageBytes = size_t{32} << 10;

absl::StatusOr<Pooling> DecodePooling(v1::Pooling pooling) {
  switch (pooling) {
    case v1::POOLING_UNSPECIFIED:
      return Pooling::kNone;
    case v1::POOLING_MEAN:
      return Pooling::kMean;
    case v1::POOLING_FIRST:
      return Pooling::kFirst;
    case v1::POOLING_LAST:
      return Pooling::kLast;
    default:  // of a newer client, or nonsense
      return Bad("pooling", absl::StrCat("must be a value of aft.v1.Pooling, got ",
                                         static_cast<int>(pooling)));
  }
}

}  // namespace

absl::StatusOr<EncodingRequest> DecodeEncodeRequest(const v1::EncodeRequest& message,
                                                    const LimitsConfig& limits,
                                                    const Tokenizer& tokenizer,
                                                    const ModelInfo& model,
                                                    int64_t max_batch_tokens) {
  EncodingRequest request;
  AFT_ASSIGN_OR_RETURN(request.pooling, DecodePooling(message.pooling()));
  request.normalize = message.normalize();
  TextRules rules = {.limits = limits,
                     .tokenizer = tokenizer,
                     .vocab_size = model.vocab_size,
                     .max_tokens = max_batch_tokens,
                     .max_tokens_name = "the model's batch.max_tokens"};
  if (model.max_seq_len != 0 && model.max_seq_len < max_batch_tokens) {
    rules.max_tokens = model.max_seq_len;
    rules.max_tokens_name = "the model's max_seq_len";
  }
  AFT_ASSIGN_OR_RETURN(request.text, DecodeText(TextOf(message, "text_to_encode"), rules));
  return request;
}

size_t FillVectors(const std::vector<float>& values, int64_t width, size_t first,
                   v1::Vectors& message) {
  const auto size = static_cast<size_t>(width);
  const size_t left = values.size() / size - first;
  const size_t count = std::min(left, std::max<size_t>(1, kMessageBytes / (size * sizeof(float))));
  const float* const begin = values.data() + first * size;
  message.set_first_index(static_cast<uint32_t>(first));
  message.mutable_values()->Assign(begin, begin + count * size);
  return count;
}

v1::EncodeFinished EncodeEncodeFinished(const Outcome& outcome) {
  v1::EncodeFinished message;
  message.set_batch_rows(outcome.batch_rows);
  *message.mutable_timings() = EncodeTimings(outcome.timings);
  return message;
}

}  // namespace aft::server
