#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/engine/sequence_bans.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// SamplingOptions.bad_words as tokens.
struct BadWords {
  std::vector<TokenId> tokens;                      // that are one by themselves
  std::shared_ptr<const TokenSequences> sequences;  // the others; null: none
};

// Errors start with the field's path.
absl::StatusOr<BadWords> DecodeBadWords(const v1::SamplingOptions& message,
                                        const ServedModel& model);

}  // namespace aft::server
