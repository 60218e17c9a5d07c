#include "model/sampling/token_counts.h"

#include <cstddef>

#include "model/sampling/logit_rules.h"

namespace aft {
namespace {

bool CountsToken(const SamplingParams& params, TokenId id) {
  const LogitRules* const rules = params.rules.get();
  return rules == nullptr ||
         IsCounted(rules->rules.data(), static_cast<int32_t>(rules->rules.size()), id);
}

}  // namespace

void CountTokens(const SlotTerms& terms, int64_t vocab_size, std::vector<TokenCount>& counts) {
  counts.assign(static_cast<size_t>(vocab_size), {});
  // With a decay only the tokens of this request count.
  const bool all = terms.sampling.penalty_decay == 1.0F;
  for (const TokenUse& use : terms.had) {
    TokenCount& count = counts[static_cast<size_t>(use.id)];
    count.use = kSeen;
    if (!all || use.sampled == 0) continue;
    count.use |= kSampled;
    if (CountsToken(terms.sampling, use.id)) count.sampled = static_cast<float>(use.sampled);
  }
  uint64_t index = terms.output_index - terms.sampled.size();
  for (const TokenId id : terms.sampled) CountSample(terms.sampling, id, index++, counts.data());
}

void CountSample(const SamplingParams& params, TokenId id, uint64_t output_index,
                 TokenCount* counts) {
  counts[id] = WithSample(counts[id], params.penalty_decay, output_index, CountsToken(params, id));
}

}  // namespace aft
