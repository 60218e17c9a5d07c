#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/api/load.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"

// A sequence between two turns, as a plain value.
namespace aft::server {

// All that a model needs to continue a text. It depends on the text's token ids, on which of them
// were sampled, and on how many outputs ended with a token that is no part of the text: not on
// options, nor on how the text was otherwise cut into turns.
struct SequenceState {
  uint64_t model = 0;    // ModelInfo::fingerprint
  std::string snapshot;  // KeptState::Snapshot
  int64_t tokens = 0;    // the length of the text so far
  // The number of sampled tokens, which is the index of the next one. It counts the stop and
  // end-of-text tokens that ended outputs: the random numbers that drew one are not used again.
  uint64_t outputs = 0;
  uint64_t history = 0;        // HistoryOf the text
  TokenId pending = kNoToken;  // the last token, if the model has yet to consume it
  std::vector<TokenUse> had;   // the uses of each token in the text, in the order of ids
  std::string note = {};       // a note by the request that left the state; models ignore it
  // Not 0: nothing but this model's tuned state of that number, from 1 on, before any text. It
  // counts as one token, of which no id is known.
  int32_t initial = 0;

  // The number of tokens that the snapshot has consumed.
  int64_t consumed() const { return tokens - (pending == kNoToken ? 0 : 1); }
};

// A hash of a text's token ids, in order. `history` is the hash of the tokens before, 0 if there
// are none. It tells texts apart, but is no defence against an attacker who looks for a collision.
uint64_t HistoryOf(uint64_t history, const std::vector<TokenId>& tokens);

// Adds the uses of `tokens` to `had`, which is in the order of ids.
std::vector<TokenUse> AddUses(absl::Span<const TokenUse> had, std::vector<TokenId> tokens,
                              bool sampled);

// Whether sampling depends on the uses of tokens in the text.
bool HasPenalties(const SamplingParams& params);

// The data that a turn leaves, from which MakeState makes its state.
struct TurnEnd {
  std::shared_ptr<const SequenceState> previous;  // null: the text began with this turn
  uint64_t model = 0;
  std::shared_ptr<const KeptState> state;  // null: the state that is made has no snapshot
  std::vector<TokenId> text;               // the prompt, or the text that was scored
  std::vector<TokenId> outputs;            // the output tokens that the client got
  bool last_is_pending = false;            // `state` is that before the last of these tokens
  bool ended_by_token = false;  // a stop or end-of-text token was sampled after these tokens
};

// Takes time in proportion to the state, the turn's tokens and the number of different tokens in
// the text, and waits until the state is in the host's memory. INTERNAL: the device failed.
// REQUIRES: the turn has a token, or last_is_pending is false.
absl::StatusOr<SequenceState> MakeState(TurnEnd turn);

// Checks that the model can continue from the state, as far as this is possible without the
// snapshot. FAILED_PRECONDITION, with both fingerprints: it is a state of another model.
// INVALID_ARGUMENT: its numbers fit no text. `model`: the name of the model.
absl::Status CheckStateOf(const SequenceState& state, const ModelInfo& info,
                          absl::string_view model);

// The state of `model` (ModelInfo::fingerprint) that is a tuned one; `number` counts from 1.
std::shared_ptr<const SequenceState> MakeInitialState(uint64_t model, InitialState state,
                                                      int32_t number);

// No text is longer, so that sums of a few lengths do not overflow.
inline constexpr int64_t kMaxTextTokens = int64_t{1} << 48;

// The bytes that a state takes in addition to its snapshot and its counts.
inline constexpr int64_t kStateObjectBytes = 512;

// The approximate memory of a state, which is charged to budgets.
int64_t StateBytes(const SequenceState& state);

// The most memory that the state after a turn takes, including the data that is kept for it during
// the turn. The text has `tokens` in all, of which the turn adds `added`.
int64_t MaxStateBytes(const ModelInfo& info, int64_t tokens, int64_t added);

}  // namespace aft::server
