#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/api/aft/pending_sequences.h"
#include "server/api/aft/text_codec.h"

namespace aft::server {

// The end of the error about a max_tokens of 0 that is not accepted. GenerationOptions removes it.
inline constexpr char kZeroTokensHint[] = "; 0 needs prompt_logprobs";

// Generate; see TypedExchange. All waiting tokens of a sequence are merged into one Delta. Text
// without tokens is not merged with tokens before it, because a resumed stream sends it again.
class GenerateCodec : public PendingSequences<v1::GenerateResponse> {
 public:
  using Request = v1::GenerateRequest;
  using Response = v1::GenerateResponse;
  using Part = TokenDelta;
  static constexpr Method kMethod = Method::kGenerate;
  static bool IsServedBy(const ServedModel& model) { return model.generate != nullptr; }

  absl::StatusOr<GenerationRequest> Decode(const Request& message, const LimitsConfig& limits,
                                           const ServedModel& model, v1::Started& started);
  size_t kept_tokens(const GenerationRequest& request) const;
  // The number of sequences that the decoded request asks for.
  uint32_t sequences() const { return sequences_; }
  void Append(Part part, uint32_t sequence = 0);
  // Adds the sequence's Finished after its pending tokens. `state`: the state that was stored for
  // it, or null.
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state);
  void Finish(const Outcome& outcome, v1::Finished& finished) const;
  // Moves out the scores of the sequence's prompt that wait.
  v1::ScoreChunk TakePromptScores(uint32_t sequence) {
    Response taken;
    TakePart(pending_[sequence].prompt, taken);
    return std::move(*taken.mutable_prompt_scores());
  }

 private:
  absl::Status Echo(const GenerationRequest& request, const LimitsConfig& limits,
                    const Tokenizer& tokenizer, v1::Prompt& prompt);

  bool with_logprobs_ = false;  // the request asks for log-probabilities
  size_t echo_bytes_ = 0;       // of Started.prompt, in memory
  uint32_t sequences_ = 1;
};

}  // namespace aft::server
