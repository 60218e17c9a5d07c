#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/sequence_bans.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// SamplingOptions.bad_words, converted to tokens.
struct BadWords {
  std::vector<TokenId> tokens;                      // words that are a single token
  std::shared_ptr<const TokenSequences> sequences;  // all other words; null: none
};

// Errors begin with the field's path.
absl::StatusOr<BadWords> DecodeBadWords(const v1::SamplingOptions& message,
                                        const ServedModel& model);

}  // namespace aft::server
