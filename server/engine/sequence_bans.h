#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/api/sampling_params.h"

namespace aft::server {

// Sequences of at least two tokens each.
using TokenSequences = std::vector<std::vector<TokenId>>;

// Finds the tokens that may not come next in an output, because it would then end with a forbidden
// sequence. A copy shares the sequences. Thread-compatible.
class SequenceBans {
 public:
  // `sequences` is null if there are none.
  explicit SequenceBans(std::shared_ptr<const TokenSequences> sequences);

  bool any() const { return sequences_ != nullptr; }

  // Appends the output's next token.
  void Append(TokenId token);

  // The tokens that may not come next, in the order of ids, each once. These are the last tokens of
  // the sequences that the output would complete.
  std::vector<TokenId> Next() const;

 private:
  std::shared_ptr<const TokenSequences> sequences_;
  size_t longest_ = 0;
  std::vector<TokenId> end_;  // the end of the output: at least its last longest_ - 1 tokens
};

// Whether rules and bans together leave no token to sample. `early`: as in Ruled. `banned`: in the
// order of ids, each once.
bool LeaveNoToken(const LogitRules* rules, bool early, absl::Span<const TokenId> banned,
                  int64_t vocab_size);

}  // namespace aft::server
