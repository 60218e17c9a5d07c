#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/api/aft/texts_codec.h"

namespace aft::server {

// Encode; see TypedExchange. The vectors of a text come all at once, and leave in messages of
// bounded size, text after text as they come. How large the answer is to all texts is known before
// they are encoded: it is held, as far as the ledger goes, from then on until it is sent.
class EncodeCodec : public CallTexts {
 public:
  using Request = v1::EncodeRequest;
  using Response = v1::EncodeResponse;
  using Part = std::vector<float>;
  static constexpr Method kMethod = Method::kEncode;
  static bool IsServedBy(const ServedModel& /*model*/) { return true; }

  // Each text must fit the model's max_seq_len, and of an encoder one batch.
  absl::StatusOr<EncodingRequest> Decode(const Request& message, const LimitsConfig& limits,
                                         const ServedModel& model, v1::EncodeStarted& started);
  size_t kept_tokens(const EncodingRequest& /*request*/) const { return tokens(); }
  void ExpectSequences(uint32_t /*sequences*/) { unsent_bytes_ = answer_bytes_; }
  void Append(Part part, uint32_t sequence = 0);
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state);
  // As many whole vectors as fit 32 KiB, at least one; or the end of a text.
  bool Take(Response& outgoing);
  void Drop();
  // What a slow reader leaves here is bounded: see held_bytes.
  static size_t pending_bytes() { return 0; }
  size_t held_bytes() const { return unsent_bytes_; }
  void Finish(const Outcome& outcome, v1::EncodeFinished& finished) const;

 private:
  // Of one text.
  struct Answer {
    uint32_t index = 0;
    Part vectors{};   // until all are sent
    size_t sent = 0;  // of them
    std::optional<v1::EncodeFinished> finished{};
  };

  size_t width_ = 0;
  size_t answer_bytes_ = 0;  // of all vectors
  size_t unsent_bytes_ = 0;  // of these, those to come included
  std::deque<Answer> answers_;
};

}  // namespace aft::server
