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

// Encode; see TypedExchange. All vectors of a text arrive at once. They are sent in messages of
// bounded size, one text after another in the order of arrival. The size of the whole answer is
// known before the texts are encoded, so it is charged to the memory ledger from then until it is
// sent.
class EncodeCodec : public CallTexts {
 public:
  using Request = v1::EncodeRequest;
  using Response = v1::EncodeResponse;
  using Part = std::vector<float>;
  static constexpr Method kMethod = Method::kEncode;
  static bool IsServedBy(const ServedModel& /*model*/) { return true; }

  // Each text must fit the model's max_seq_len. For an encoder, it must also fit one batch.
  absl::StatusOr<EncodingRequest> Decode(const Request& message, const LimitsConfig& limits,
                                         const ServedModel& model, v1::EncodeStarted& started);
  size_t kept_tokens(const EncodingRequest& /*request*/) const { return tokens(); }
  void ExpectSequences(uint32_t /*sequences*/) { unsent_bytes_ = answer_bytes_; }
  void Append(Part part, uint32_t sequence = 0);
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state);
  // Takes as many whole vectors as fit 32 KiB, at least one, or the end of a text.
  bool Take(Response& outgoing);
  void Drop();
  // Is always 0, because the charge for held_bytes already bounds what waits for a slow reader.
  static size_t pending_bytes() { return 0; }
  size_t held_bytes() const { return unsent_bytes_; }
  void Finish(const Outcome& outcome, v1::EncodeFinished& finished) const;

 private:
  // The answer to one text.
  struct Answer {
    uint32_t index = 0;
    Part vectors{};   // until all are sent
    size_t sent = 0;  // number of vectors sent
    std::optional<v1::EncodeFinished> finished{};
  };

  size_t width_ = 0;
  size_t answer_bytes_ = 0;  // of all vectors
  size_t unsent_bytes_ = 0;  // of the vectors not sent yet, including those to come
  std::deque<Answer> answers_;
};

}  // namespace aft::server
