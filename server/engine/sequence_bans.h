#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/api/sampling_params.h"

namespace aft::server {

// Each of at least two tokens.
using TokenSequences = std::vector<std::vector<TokenId>>;

// What an output may not go on with, because it would end with one of the sequences that it must
// not have. A copy shares the sequences. Thread-compatible.
class SequenceBans {
 public:
  // Null: there are none.
  explicit SequenceBans(std::shared_ptr<const TokenSequences> sequences);

  bool any() const { return sequences_ != nullptr; }

  // The output's next token.
  void Append(TokenId token);

  // The last token of each sequence whose others the output ends with, in the order of ids, each
  // once.
  std::vector<TokenId> Next() const;

 private:
  std::shared_ptr<const TokenSequences> sequences_;
  size_t longest_ = 0;
  std::vector<TokenId> end_;  // of the output, at least longest_ - 1 tokens where it has as many
};

// Whether rules and bans together leave no token to sample. `early`: as in Ruled. `banned`: in the
// order of ids, each once.
bool LeaveNoToken(const LogitRules* rules, bool early, absl::Span<const TokenId> banned,
                  int64_t vocab_size);

}  // namespace aft::server
