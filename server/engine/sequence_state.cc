#include "server/engine/sequence_state.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "model/api/snapshot_bytes.h"

namespace aft::server {
std::vector<TokenUse> AddUses(absl::Span<const TokenUse> had, std::vector<TokenId> tokens,
                              bool sampled) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<TokenUse> merged;
  merged.reserve(had.size());
  auto before = had.begin();
  for (auto first = tokens.begin(); first != tokens.end();) {
    const TokenId id = *first;
    const auto last = std::upper_bound(first, tokens.end(), id);
    for (; before != had.end() && before->id < id; ++before) merged.push_back(*before);
    merged.push_back({.id = id, .sampled = 0});
    if (before != had.end() && before->id == id) merged.back() = *before++;
    if (sampled) merged.back().sampled += static_cast<uint32_t>(last - first);
    first = last;
  }
  merged.insert(merged.end(), before, had.end());
  merged.shrink_to_fit();  // budgets are charged for its size
  return merged;
}

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1 || params.presence_penalty != 0 ||
         params.frequency_penalty != 0;
}

uint64_t HistoryOf(uint64_t history, const std::vector<TokenId>& tokens) {
  for (const TokenId token : tokens) {
    // The finaliser of MurmurHash3: every bit of the token and of the past affects every other one.
    history += static_cast<uint64_t>(token) + 0x9E3779B97F4A7C15U;
    history = (history ^ (history >> 33)) * 0xFF51AFD7ED558CCDU;
    history = (history ^ (history >> 33)) * 0xC4CEB9FE1A85EC53U;
    history ^= history >> 33;
  }
  return history;
}

absl::StatusOr<SequenceState> MakeState(TurnEnd turn) {
  static const auto& none = *new SequenceState();
  const SequenceState& previous = turn.previous != nullptr ? *turn.previous : none;
  SequenceState state;
  state.model = turn.model;
  if (turn.state != nullptr) {
    absl::StatusOr<std::string> snapshot = turn.state->Snapshot();
    if (!snapshot.ok()) return absl::InternalError("the state was lost");
    state.snapshot = *std::move(snapshot);
  }
  state.tokens = previous.tokens + static_cast<int64_t>(turn.text.size() + turn.outputs.size());
  state.outputs = previous.outputs + turn.outputs.size() + (turn.ended_by_token ? 1 : 0);
  state.history = HistoryOf(HistoryOf(previous.history, turn.text), turn.outputs);
  if (turn.last_is_pending) {
    state.pending = turn.outputs.empty() ? turn.text.back() : turn.outputs.back();
  }
  state.had = AddUses(AddUses(previous.had, std::move(turn.text), /*sampled=*/false),
                      std::move(turn.outputs), /*sampled=*/true);
  return state;
}

std::shared_ptr<const SequenceState> MakeInitialState(uint64_t model, InitialState state,
                                                      int32_t number) {
  auto made = std::make_shared<SequenceState>();
  made->model = model;
  made->snapshot = std::move(state.snapshot);
  made->tokens = 1;
  made->history = state.hash;
  made->initial = number;
  return made;
}

absl::Status CheckStateOf(const SequenceState& state, const ModelInfo& info,
                          absl::string_view model) {
  if (state.model != info.fingerprint) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "a state of another model, or of other weights, config or number format: its fingerprint "
        "is %016x, that of \"%s\" is %016x",
        state.model, model, info.fingerprint));
  }
  const auto known = [&info](TokenId id) { return id >= 0 && id < info.vocab_size; };
  const bool good = state.tokens > 0 && state.tokens <= kMaxTextTokens && state.consumed() > 0 &&
                    state.outputs <= static_cast<uint64_t>(state.tokens) &&
                    (state.pending == kNoToken || known(state.pending)) &&
                    std::all_of(state.had.begin(), state.had.end(),
                                [&](const TokenUse& use) { return known(use.id); });
  return good ? absl::OkStatus() : absl::InvalidArgumentError("not a state of a text");
}

int64_t StateBytes(const SequenceState& state) {
  return kStateObjectBytes + static_cast<int64_t>(state.snapshot.size()) +
         static_cast<int64_t>(state.had.size() * sizeof(TokenUse) + state.note.size());
}

int64_t MaxStateBytes(const ModelInfo& info, int64_t tokens, int64_t added) {
  const int64_t uses = std::min(info.vocab_size, tokens);
  return kStateObjectBytes + MaxSnapshotBytes(info, tokens) + uses * int64_t{sizeof(TokenUse)} +
         added * int64_t{sizeof(TokenId)};
}

}  // namespace aft::server
