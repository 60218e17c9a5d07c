#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/rpc/text_codec.h"

namespace aft::server {

// Score; see TypedCall. Scores that wait become one ScoreChunk.
class ScoreCodec : public PendingMessage<v1::ScoreResponse> {
 public:
  using Request = v1::ScoreRequest;
  using Part = TokenDelta;
  static constexpr Method kMethod = Method::kScore;
  static constexpr auto kEngine = &ServedModel::generate;
  static constexpr auto kAction = &GenerateEngine::Score;

  // The text may have as many tokens as the model's max_seq_len.
  absl::StatusOr<ScoringRequest> Decode(const Request& message, const LimitsConfig& limits,
                                        const ServedModel& model, v1::ScoreStarted& started);
  static size_t tokens(const v1::ScoreStarted& started) { return started.tokens(); }
  static size_t kept_tokens(const ScoringRequest& request) { return request.text.size(); }
  static int64_t MostOutputs(const ScoringRequest& /*request*/) { return 0; }
  void Append(Part part);
  void Finish(const Outcome& outcome, v1::ScoreFinished& finished) const;
};

}  // namespace aft::server
