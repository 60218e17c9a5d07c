#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"
#include "model/tokenizer/tokenizers.h"

namespace aft {

// A token that exists in addition to those that merges make.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  // Only its id stands for a special token: no text is encoded as it, and it decodes to nothing.
  bool special = false;
  // If true, the token is looked for before others ("normalized": false).
  bool before_others = false;
  // If the token ends a text: what names it, for errors (EndOfText::named_by).
  std::string named_by = {};
};

// The pairs of tokens that merges join to one token.
struct BpeMerges {
  struct Merge {
    int32_t rank;  // lower is merged first; unique
    int32_t id;    // the merged token
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = pairs.find(Key(left, right));
    return found == pairs.end() ? nullptr : &found->second;
  }

  std::array<int32_t, 256> byte_ids{};         // -1 for a byte without a token
  absl::flat_hash_map<uint64_t, Merge> pairs;  // by Key
};

// Builds a byte-level BPE tokenizer (LoadBpeTokenizer) from the content of its files, which is not
// trusted. Errors are INVALID_ARGUMENT and name the token. Thread-compatible.
class BpeBuilder {
 public:
  // `tokens` are in the order of their ids. Tokens that merges make spell bytes as GPT-2 does, and
  // each single byte that UTF-8 has is one of the tokens.
  static absl::StatusOr<BpeBuilder> Create(std::vector<std::string> tokens);

  // The id of a token in its spelling, or -1.
  int32_t Find(absl::string_view token) const;

  // The id of the token that ends a text, which must be there.
  absl::StatusOr<int32_t> FindEndOfText(const EndOfText& eos) const;

  // Adds a token that is among `tokens`. Must be called before the merges are added.
  absl::Status Add(AddedToken token);

  // Adds the next merge, which is less preferred than those before it.
  absl::Status AddMerge(absl::string_view left, absl::string_view right);

  // With `nfc`, texts are put into normal form C before they are encoded.
  // REQUIRES: `eos_id` is the id of a special token, or -1.
  absl::StatusOr<std::shared_ptr<const Tokenizer>> Build(int32_t eos_id, bool nfc = false) &&;

 private:
  BpeBuilder() = default;

  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, int32_t> ids_;
  absl::flat_hash_map<int32_t, AddedToken> added_;
  BpeMerges merges_;
};

// Adds the next merge from a line in the form of merges.txt: "left right".
absl::Status AddMergeLine(absl::string_view line, BpeBuilder* builder);

}  // namespace aft
