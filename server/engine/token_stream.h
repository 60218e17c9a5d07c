#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/api/sampling_params.h"
#include "server/engine/job.h"
#include "server/engine/output_builder.h"
#include "server/engine/pooling.h"
#include "server/engine/prefix_read.h"
#include "server/engine/request.h"
#include "server/engine/resumption.h"
#include "server/engine/sequence_state.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// One accepted generation, scoring or encoding, from its request to the turn that it leaves. The
// scheduler uses only its base Sequence. The engine's caller makes it; then the engine thread alone
// owns it.
struct TokenStream final : Sequence, Job {
  TokenStream(GenerationRequest request, Resumption resumption,
              std::shared_ptr<TokenSink> token_sink, OutputBuilder builder);
  // Makes another answer to the prompt of `leader`, which leads it (Sequence::Lead). `request`
  // differs from the leader's only in its sampling. `uses` is Resumption::had of the leader.
  TokenStream(GenerationRequest request, TokenStream& leader,
              std::shared_ptr<const std::vector<TokenUse>> uses,
              std::shared_ptr<TokenSink> token_sink, OutputBuilder builder);
  // `width` is that of a vector.
  TokenStream(EncodingRequest request, int64_t width, std::shared_ptr<VectorSink> vector_sink);
  // `text_tokens` is the length of the text.
  TokenStream(ScoringRequest request, int64_t text_tokens, std::shared_ptr<TokenSink> token_sink);

  // The position where its own text begins.
  int64_t text_begin() const { return previous != nullptr ? previous->tokens : 0; }
  // The terms for the slot that the stream gets now. REQUIRES: no step in flight names the stream.
  SlotTerms Terms() const;

  const SamplingParams sampling;
  const std::shared_ptr<TokenSink> sink;                // null: it encodes
  std::shared_ptr<const KeptState> parked;              // its state while it is parked
  const std::shared_ptr<const SequenceState> previous;  // null: its text begins here
  std::unique_ptr<TurnEnd> end;                         // null: nothing is stored
  std::unique_ptr<PrefixRead> prefix;                   // null: it does not use the cache
  const uint64_t first_output;                          // index of the first token that it samples
  std::vector<TokenId> sampled;                         // with penalties: its output so far

  // Resume points.
  const Survival survival;
  std::vector<TokenId> unsaved;  // outputs since the last resume point
  int64_t next_point = 0;        // the first position at which there may be a resume point
  bool sits_out = false;         // the stream has no row, so that no step names it

  // Generation.
  // The outcome, if the request brings all of its output or all of its scores, or asks for no
  // output; otherwise null.
  const std::unique_ptr<Outcome> ended;
  bool has_penalties() const { return had_ != nullptr; }
  bool nothing_to_do() const {
    return ended != nullptr && end == nullptr && turn().scores_until == 0;
  }
  std::optional<OutputBuilder> output;
  TimePoint last_token_at;     // valid once first_output_at is set
  int64_t further_tokens = 0;  // number of tokens sampled after the first one
  TokenDelta held;             // held back, so that its sink gets all tokens of a turn together

  // Scoring.
  uint32_t scored_tokens = 0;
  uint64_t scored_bytes = 0;
  double logprob = 0;  // sum

  // Encoding.
  struct Encoding {
    TextVectors vectors;
    std::shared_ptr<VectorSink> sink;
  };
  const std::unique_ptr<Encoding> encoding;  // null: it does not encode

 private:
  const std::shared_ptr<const std::vector<TokenUse>> had_;  // Resumption::had
};

}  // namespace aft::server
