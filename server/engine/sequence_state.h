#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"

// A sequence between two turns, as a plain value. Immutable once it is shared.
namespace aft::server {

// All that a model needs to go on with a text. It depends on the text's token ids alone, and on
// which of them were sampled: not on options, nor on how the text was cut into turns.
struct SequenceState {
  uint64_t model = 0;          // ModelInfo::fingerprint
  std::string snapshot;        // ModelRunner::SnapshotSlot
  int64_t tokens = 0;          // of the text so far
  uint64_t outputs = 0;        // of these, sampled ones: the index of the next
  uint64_t history = 0;        // HistoryOf the text
  TokenId pending = kNoToken;  // its last token, where the model has yet to consume it
  std::vector<TokenUse> had;   // what the text has of each token, in the order of ids
  std::string note = {};       // what the request that left it keeps with it; models ignore it

  // Tokens that the snapshot has consumed.
  int64_t consumed() const { return tokens - (pending == kNoToken ? 0 : 1); }
};

// Of a text's token ids, in order: `history` is that of the tokens before; 0 of none. Tells texts
// apart; not a defence against someone who looks for two that are alike.
uint64_t HistoryOf(uint64_t history, const std::vector<TokenId>& tokens);

// Adds the uses of `tokens` to `had`, which is in the order of ids.
std::vector<TokenUse> AddUses(absl::Span<const TokenUse> had, std::vector<TokenId> tokens,
                              bool sampled);

// Whether anything goes by what a text has of each token.
bool HasPenalties(const SamplingParams& params);

// What a turn leaves behind.
struct TurnEnd {
  std::shared_ptr<const SequenceState> previous;  // null: the text began with this turn
  uint64_t model = 0;
  std::string snapshot;
  std::vector<TokenId> text;     // the prompt, or what was scored
  std::vector<TokenId> outputs;  // that the client got
  bool last_is_pending = false;  // the snapshot stands before the last of these
};

// Its time grows with the turn's tokens and with how many different ones the text has.
// REQUIRES: the turn has a token, or last_is_pending is false.
SequenceState MakeState(TurnEnd turn);

// That the model can go on from it, as far as can be said without the snapshot.
// FAILED_PRECONDITION: it is of another one; names both fingerprints. INVALID_ARGUMENT: it is of no
// text. `model`: the name of the model.
absl::Status CheckStateOf(const SequenceState& state, const ModelInfo& info,
                          absl::string_view model);

// No text is longer, so that sums of a few lengths do not overflow.
inline constexpr int64_t kMaxTextTokens = int64_t{1} << 48;

// What a state takes beside its snapshot and its counts.
inline constexpr int64_t kStateObjectBytes = 512;

// Memory that a state takes, about: what budgets are charged.
int64_t StateBytes(const SequenceState& state);

// The most that the state after a turn takes, and what is kept for it during the turn: a text of
// `tokens` in all, of which the turn adds `added`.
int64_t MaxStateBytes(const ModelInfo& info, int64_t tokens, int64_t added);

}  // namespace aft::server
