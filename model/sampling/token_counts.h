#pragma once

#include <cstdint>
#include <vector>

#include "model/api/model_runner.h"
#include "model/sampling/penalties.h"

namespace aft {

// How often a sequence has had each token when it gets a slot, for penalties. `counts` becomes
// [vocab_size]. REQUIRES: ids of the terms are within the vocabulary.
void CountTokens(const SlotTerms& terms, int64_t vocab_size, std::vector<TokenCount>& counts);

// Counts a token that was sampled at `output_index`.
void CountSample(const SamplingParams& params, TokenId id, uint64_t output_index,
                 TokenCount* counts);

}  // namespace aft
