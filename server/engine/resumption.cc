#include "server/engine/resumption.h"

#include <utility>

#include "absl/types/span.h"
#include "base/status_macros.h"
#include "server/engine/sequence_state.h"

namespace aft::server {

Resumption::Resumption(const GenerationRequest& request)
    : unread(static_cast<int64_t>(request.prompt.size())) {
  usage.prompt_tokens = static_cast<uint32_t>(request.prompt.size() - request.resumed);
}

absl::StatusOr<Resumption> Replay(const GenerationRequest& request, OutputBuilder& output) {
  Resumption resumption(request);
  if (request.resumed == 0) return resumption;
  const absl::Span<const TokenId> outputs =
      absl::MakeConstSpan(request.prompt).subspan(resumption.usage.prompt_tokens);
  auto outcome = std::make_unique<Outcome>();
  AFT_ASSIGN_OR_RETURN(const bool ended, output.Replay(outputs, *outcome));
  if (ended) resumption.ended = std::move(outcome);
  resumption.usage.generated_tokens = static_cast<uint32_t>(request.resumed);
  resumption.usage.resumed_tokens = static_cast<uint32_t>(request.resumed);
  static const auto& none = *new std::vector<TokenUse>();
  resumption.had = std::make_shared<const std::vector<TokenUse>>(
      AddUses(request.previous != nullptr ? request.previous->had : none,
              {outputs.begin(), outputs.end()}, /*sampled=*/true));
  return resumption;
}

}  // namespace aft::server
