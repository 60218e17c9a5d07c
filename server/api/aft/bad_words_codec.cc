#include "server/api/aft/bad_words_codec.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/config/checks.h"
#include "server/engine/token_bytes.h"

namespace aft::server {
namespace {

constexpr size_t kMaxBadWordBytes = 256;
constexpr size_t kMaxBadWordTokens = 64;

void Add(std::vector<TokenId> tokens, const Tokenizer& tokenizer, BadWords& words,
         TokenSequences& sequences) {
  // A token without bytes stands for an unknown character, which the output cannot have.
  if (absl::c_any_of(tokens, [&](TokenId id) { return TokenBytes(tokenizer, id).empty(); })) return;
  if (tokens.size() == 1) {
    words.tokens.push_back(tokens.front());
  } else {
    sequences.push_back(std::move(tokens));
  }
}

}  // namespace

absl::StatusOr<BadWords> DecodeBadWords(const v1::SamplingOptions& message,
                                        const ServedModel& model) {
  BadWords words;
  if (message.bad_words().empty()) return words;
  const Tokenizer& tokenizer = *model.tokenizer;
  TokenSequences sequences;
  for (int i = 0; i < message.bad_words_size(); ++i) {
    const std::string& text = message.bad_words(i);
    const std::string path = absl::StrCat("sampling.bad_words[", i, "]");
    if (text.empty() || text.size() > kMaxBadWordBytes) {
      return BadField(
          path, absl::StrCat("must have 1 to ", kMaxBadWordBytes, " bytes, got ", text.size()));
    }
    absl::StatusOr<std::vector<TokenId>> tokens = tokenizer.Encode(text);
    if (!tokens.ok()) return BadField(path, tokens.status().message());
    if (tokens->empty() || tokens->size() > kMaxBadWordTokens) {
      return BadField(path, absl::StrCat("must have 1 to ", kMaxBadWordTokens, " tokens, got ",
                                         tokens->size()));
    }
    // If the vocabulary has no space, encoding fails. The output cannot have a space then either.
    absl::StatusOr<std::vector<TokenId>> spaced = std::vector<TokenId>();
    if (text.front() != ' ') spaced = tokenizer.Encode(absl::StrCat(" ", text));
    if (spaced.ok() && spaced->size() == tokens->size() && *spaced != *tokens) {
      Add(*std::move(spaced), tokenizer, words, sequences);
    }
    Add(*std::move(tokens), tokenizer, words, sequences);
  }
  // Each entry of the option becomes at most two sequences.
  static_assert(kMaxRowBans >= size_t{2} * 128);
  if (!sequences.empty()) {
    words.sequences = std::make_shared<const TokenSequences>(std::move(sequences));
  }
  return words;
}

}  // namespace aft::server
