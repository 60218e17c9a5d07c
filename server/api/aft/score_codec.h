#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/api/aft/pending_sequences.h"
#include "server/api/aft/texts_codec.h"

namespace aft::server {

// Score; see TypedExchange. All waiting scores of a text are merged into one ScoreChunk.
class ScoreCodec : public CallTexts, public PendingSequences<v1::ScoreResponse> {
 public:
  using Request = v1::ScoreRequest;
  using Response = v1::ScoreResponse;
  using Part = TokenDelta;
  static constexpr Method kMethod = Method::kScore;
  static bool IsServedBy(const ServedModel& model) { return model.generate != nullptr; }

  // Each text may have at most as many tokens as the model's max_seq_len.
  absl::StatusOr<ScoringRequest> Decode(const Request& message, const LimitsConfig& limits,
                                        const ServedModel& model, v1::ScoreStarted& started);
  size_t kept_tokens(const ScoringRequest& /*request*/) const { return tokens(); }
  void Append(Part part, uint32_t sequence = 0);
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state);
  void Finish(const Outcome& outcome, v1::ScoreFinished& finished) const;
};

}  // namespace aft::server
