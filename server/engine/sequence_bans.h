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

// Which tokens may not come next in an output, because it would then end with a forbidden sequence.
// A copy shares the sequences. Thread-compatible.
class SequenceBans {
 public:
  // `sequences` is null if there are none.
  explicit SequenceBans(std::shared_ptr<const TokenSequences> sequences);

  bool any() const { return sequences_ != nullptr; }

  // Appends the output's next token.
  void Append(TokenId token);

  // The last token of each sequence whose tokens before it the output ends with, in the order of
  // ids, each once.
  std::vector<TokenId> Next() const;

 private:
  std::shared_ptr<const TokenSequences> sequences_;
  size_t longest_ = 0;
  std::vector<TokenId> end_;  // of the output, longest_ - 1 tokens or more where it has as many
};

// Whether rules and bans together leave no token to sample. `early`: as in Ruled. `banned`: in the
// order of ids, each once.
bool LeaveNoToken(const LogitRules* rules, bool early, absl::Span<const TokenId> banned,
                  int64_t vocab_size);

}  // namespace aft::server
