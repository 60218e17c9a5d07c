#include "server/engine/resumption.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "server/engine/sequence_state.h"

namespace aft::server {
Resumption::Resumption(const GenerationRequest& request)
    : unread(static_cast<int64_t>(request.prompt.size())) {
  usage.prompt_tokens = static_cast<uint32_t>(request.prompt.size() - request.resumed);
  if (!HasPenalties(request.sampling)) return;
  const auto output = request.prompt.end() - static_cast<std::ptrdiff_t>(request.resumed);
  had = std::make_shared<const std::vector<TokenUse>>(
      AddUses(request.uses_before(), {request.prompt.begin(), output}, /*sampled=*/false));
  sampled.assign(output, request.prompt.end());
}

absl::Status CheckPrevious(const TurnRequest& request, const ModelInfo& info,
                           absl::string_view model) {
  if (request.previous == nullptr) return absl::OkStatus();
  const absl::Status status = CheckStateOf(*request.previous, info, model);
  return absl::Status(status.code(), absl::StrCat("previous: ", status.message()));
}

bool IsWithin(const SequenceState& state, const GenerationRequest& request, const ModelInfo& info) {
  if (!CheckStateOf(state, info, "").ok()) return false;
  static const auto& none = *new SequenceState();
  const SequenceState& before = request.previous != nullptr ? *request.previous : none;
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const auto prompt = tokens - static_cast<int64_t>(request.resumed);
  if (state.tokens <= before.tokens || state.tokens > before.tokens + tokens) return false;
  const int64_t read = state.tokens - before.tokens;
  const auto last = request.prompt.begin() + read;
  if (state.pending == kNoToken ? read == tokens : state.pending != *(last - 1)) return false;
  return state.outputs ==
             before.outputs + static_cast<uint64_t>(std::max<int64_t>(read - prompt, 0)) &&
         state.history == HistoryOf(before.history, {request.prompt.begin(), last});
}

absl::StatusOr<Resumption> Replay(GenerationRequest& request, OutputBuilder& output) {
  Resumption resumption(request);
  if (request.resumed > 0 || output.limit() == 0) {
    auto outcome = std::make_unique<Outcome>();
    const auto outputs = absl::MakeConstSpan(request.prompt);
    AFT_ASSIGN_OR_RETURN(const bool ended, output.Replay(outputs.last(request.resumed), *outcome));
    if (ended) resumption.ended = std::move(outcome);
    resumption.usage.generated_tokens = static_cast<uint32_t>(request.resumed);
    resumption.usage.resumed_tokens = static_cast<uint32_t>(request.resumed);
  }
  if (request.start != nullptr) {
    const int64_t read = request.start->tokens - request.tokens_before();
    // A sequence has at least one token that the model has to consume. The last token of an output
    // that has ended is not consumed: such an output leaves the state before that token.
    const int64_t pending = request.start->pending != kNoToken ? 1 : 0;
    const int64_t kept_back = resumption.ended != nullptr ? 1 : 0;
    if (resumption.unread - read + pending - kept_back > 0) {
      resumption.usage.cached_tokens =
          static_cast<uint32_t>(request.start->consumed() - request.tokens_before());
      request.prompt.erase(request.prompt.begin(), request.prompt.begin() + read);
      request.resumed = std::min(request.resumed, request.prompt.size());
      request.previous = std::move(request.start);
      resumption.unread -= read;
    }
    request.start = nullptr;
  }
  return resumption;
}

}  // namespace aft::server
