#include "server/engine/generation_group.h"

#include <cstddef>
#include <utility>

#include "server/engine/resumption.h"
#include "server/engine/token_stream.h"

namespace aft::server {
std::vector<std::unique_ptr<Job>> MakeGroup(const GenerationRequest& request,
                                            const std::vector<std::shared_ptr<TokenSink>>& sinks,
                                            const OutputBuilder& output) {
  std::vector<std::unique_ptr<Job>> group;
  Resumption begin(request);
  const std::shared_ptr<const std::vector<TokenUse>> uses = begin.had;
  auto leader = std::make_unique<TokenStream>(request, std::move(begin), sinks.front(), output);
  TokenStream& first = *leader;
  group.push_back(std::move(leader));
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
