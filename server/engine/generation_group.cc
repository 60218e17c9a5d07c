#include "server/engine/generation_group.h"

#include <cstddef>
#include <utility>

#include "server/engine/sequence_state.h"
#include "server/engine/token_stream.h"

namespace aft::server {
namespace {

// What the text has of each token before the last one that the model has yet to consume; null
// without penalties, which nothing else goes by.
std::shared_ptr<const std::vector<TokenUse>> UsesBeforeLast(const GenerationRequest& request) {
  if (!HasPenalties(request.sampling)) return nullptr;
  std::vector<TokenId> read = request.prompt;
  if (!read.empty()) read.pop_back();
  // Those before count a pending token already.
  return std::make_shared<const std::vector<TokenUse>>(
      AddUses(request.uses_before(), std::move(read), /*sampled=*/false));
}

}  // namespace

std::vector<std::unique_ptr<Job>> MakeGroup(const GenerationRequest& request,
                                            const std::vector<std::shared_ptr<TokenSink>>& sinks,
                                            const OutputBuilder& output) {
  std::vector<std::unique_ptr<Job>> group;
  auto leader = std::make_unique<TokenStream>(request, Resumption(request), sinks.front(), output);
  TokenStream& first = *leader;
  group.push_back(std::move(leader));
  const auto uses = UsesBeforeLast(request);
  for (size_t i = 1; i < sinks.size(); ++i) {
    GenerationRequest another = request;
    another.reservation = nullptr;
    another.sampling.seed += i;
    group.push_back(
        std::make_unique<TokenStream>(std::move(another), first, uses, sinks[i], output));
  }
  return group;
}

}  // namespace aft::server
