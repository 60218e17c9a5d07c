#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/tokenizer/bpe_builder.h"
#include "model/tokenizer/gpt2_pieces.h"
#include "model/tokenizer/nfc.h"
#include "model/tokenizer/utf8_character.h"
#include "model/tokenizer/vocabulary_file.h"
#include "re2/re2.h"

namespace aft {
namespace {

// The bytes that a token spells, or a status that names the character that spells no byte.
absl::StatusOr<std::string> Unspell(absl::string_view token,
                                    const absl::flat_hash_map<char32_t, char>& bytes) {
  std::string out;
  for (size_t at = 0; at < token.size();) {
    const Utf8Character character = FirstCharacter(token.substr(at));
    AFT_CHECK(character.size > 0);  // JSON strings are UTF-8.
    const auto found = bytes.find(character.point);
    if (found == bytes.end()) {
      return absl::InvalidArgumentError(absl::StrFormat("token %s: U+%04X spells no byte",
                                                        ShownToken(token),
                                                        static_cast<uint32_t>(character.point)));
    }
    out.push_back(found->second);
    at += character.size;
  }
  return out;
}

// Merges one piece after another, and holds the memory for it. Thread-compatible.
class BpeMerger {
 public:
  // `merges` must outlive this object.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  // Appends the tokens of `piece` to `ids`. O(n log n).
  // REQUIRES: 0 < piece.size() < 2^31.
  void Append(absl::string_view piece, std::vector<int32_t>& ids);

 private:
  // A token of the piece. The nodes form a list in the order of the text.
  struct Node {
    int32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    int32_t rank;      // rank of the merge with `next`; -1: there is no such merge
  };

  void Rank(int32_t left);

  const BpeMerges& merges_;
  std::vector<Node> nodes_;
  // Min-heap of rank << 32 | left node. An entry is out of date when the node has another rank.
  std::vector<uint64_t> heap_;
};

// Looks up the pair of `left` and its next node, and queues it.
void BpeMerger::Rank(int32_t left) {
  Node& node = nodes_[static_cast<size_t>(left)];
  node.rank = -1;
  if (node.next < 0) return;
  const BpeMerges::Merge* merge = merges_.Find(node.id, nodes_[static_cast<size_t>(node.next)].id);
  if (merge == nullptr) return;
  node.rank = merge->rank;
  heap_.push_back(uint64_t{static_cast<uint32_t>(merge->rank)} << 32 | static_cast<uint32_t>(left));
  std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
}

void BpeMerger::Append(absl::string_view piece, std::vector<int32_t>& ids) {
  const auto size = static_cast<int32_t>(piece.size());
  nodes_.resize(piece.size());
  for (int32_t i = 0; i < size; ++i) {
    const auto byte = static_cast<unsigned char>(piece[static_cast<size_t>(i)]);
    nodes_[static_cast<size_t>(i)] = {merges_.byte_ids[byte], i - 1, i + 1 < size ? i + 1 : -1, -1};
  }
  for (int32_t i = 0; i + 1 < size; ++i) Rank(i);

  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const uint64_t entry = heap_.back();
    heap_.pop_back();
    const auto left = static_cast<int32_t>(entry & 0xFFFFFFFF);
    Node& node = nodes_[static_cast<size_t>(left)];
    if (node.rank != static_cast<int32_t>(entry >> 32)) continue;
    Node& absorbed = nodes_[static_cast<size_t>(node.next)];
    node.id = merges_.Find(node.id, absorbed.id)->id;
    node.next = absorbed.next;
    absorbed.rank = -1;
    if (node.next >= 0) nodes_[static_cast<size_t>(node.next)].previous = left;
    Rank(left);
    if (node.previous >= 0) Rank(node.previous);
  }
  // The first node is never absorbed.
  for (int32_t i = 0; i >= 0; i = nodes_[static_cast<size_t>(i)].next) {
    ids.push_back(nodes_[static_cast<size_t>(i)].id);
  }
}

// Cuts a text at added tokens that are not special. Thread-safe.
class AddedTokens {
 public:
  explicit AddedTokens(const absl::flat_hash_map<int32_t, AddedToken>& added) {
    for (const auto& [id, token] : added) {
      if (token.special) special_.push_back(token.content);
    }
    absl::c_sort(special_);
    for (const bool before_others : {true, false}) {
      std::string pattern;
      bool cuts = false;
      for (const auto& [id, token] : added) {
        if (token.before_others != before_others) continue;
        // Special tokens are in the pattern because no other token is found within them.
        absl::StrAppend(&pattern, pattern.empty() ? "" : "|", re2::RE2::QuoteMeta(token.content));
        if (token.special) continue;
        ids_[token.content] = id;
        cuts = true;
      }
      if (!cuts) continue;
      re2::RE2::Options options(re2::RE2::Latin1);  // bytes: the text need not be UTF-8
      options.set_longest_match(true);
      options.set_log_errors(false);
      options.set_max_mem(kPatternBytes);
      patterns_.push_back(std::make_unique<re2::RE2>(pattern, options));
    }
  }

  // False when there are too many tokens for a pattern.
  bool ok() const {
    return absl::c_all_of(patterns_, [](const auto& pattern) { return pattern->ok(); });
  }

  // Calls `part(begin, end, id)` for the parts of `text` in order. The id is -1 for a part that is
  // not an added token.
  template <typename Part>
  void ForEach(absl::string_view text, const Part& part) const {
    Cut(text, 0, text.size(), 0, part);
  }

  // The first special token, in the order of bytes, that `text` has; empty if there is none.
  absl::string_view SpecialIn(absl::string_view text) const {
    const auto found = absl::c_find_if(
        special_, [text](const std::string& token) { return absl::StrContains(text, token); });
    return found == special_.end() ? absl::string_view() : *found;
  }

 private:
  static constexpr int64_t kPatternBytes = 64 << 20;

  // Cuts text[begin, end) at tokens of patterns_[level] and of the patterns after it.
  template <typename Part>
  void Cut(absl::string_view text, size_t begin, size_t end, size_t level, const Part& part) const {
    if (begin == end) return;
    if (level == patterns_.size()) return part(begin, end, -1);
    const re2::StringPiece input(text.data(), text.size());
    re2::StringPiece match;
    size_t from = begin;
    while (patterns_[level]->Match(input, from, end, re2::RE2::UNANCHORED, &match, 1)) {
      const auto at = static_cast<size_t>(match.data() - text.data());
      from = at + match.size();
      const auto id = ids_.find(absl::string_view(match.data(), match.size()));
      if (id == ids_.end()) continue;  // a special token, which does not cut the part
      Cut(text, begin, at, level + 1, part);
      part(at, from, id->second);
      begin = from;
    }
    Cut(text, begin, end, level + 1, part);
  }

  std::vector<std::unique_ptr<re2::RE2>> patterns_;
  absl::flat_hash_map<std::string, int32_t> ids_;  // of tokens that are not special
  std::vector<std::string> special_;
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::vector<std::string> bytes, int32_t eos_id, bool nfc, BpeMerges merges,
               AddedTokens added)
      : bytes_(std::move(bytes)),
        eos_id_(eos_id),
        nfc_(nfc),
        merges_(std::move(merges)),
        added_(std::move(added)) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t eos_id() const override { return eos_id_; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::string normal;
    if (nfc_) text = normal = ToNfc(text);
    if (text.size() >= size_t{std::numeric_limits<int32_t>::max()}) {
      return absl::InvalidArgumentError("text is longer than 2 GiB");
    }
    for (const char byte : text) {
      if (merges_.byte_ids[static_cast<uint8_t>(byte)] >= 0) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("text has the byte 0x%02X, which is not UTF-8 and has no token",
                          static_cast<uint8_t>(byte)));
    }
    const std::string valid = WithValidUtf8(text);
    BpeMerger merger(merges_);
    std::vector<int32_t> ids;
    added_.ForEach(text, [&](size_t begin, size_t end, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      // For white space at its end, a part counts as the end of a text.
      const absl::string_view part = absl::string_view(valid).substr(0, end);
      for (size_t at = begin; at < end;) {
        const size_t size = splitter_.FirstPiece(part.substr(at)).size();
        merger.Append(text.substr(at, size), ids);
        at += size;
      }
    });
    return ids;
  }

  absl::string_view SpecialTokenIn(absl::string_view text) const override {
    return added_.SpecialIn(text);
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < vocab_size());
    return bytes_[static_cast<size_t>(id)];
  }

 private:
  const std::vector<std::string> bytes_;  // by id; empty for special tokens
  const int32_t eos_id_;
  const bool nfc_;
  const BpeMerges merges_;
  const AddedTokens added_;
  const Gpt2Splitter splitter_;
};

// Returns the words that an error about the token adds if the token ends a text, or "".
std::string NamedBy(const AddedToken& token) {
  if (token.named_by.empty()) return "";
  return absl::StrCat("; ", token.named_by, " names it as the end of text");
}

}  // namespace

absl::StatusOr<BpeBuilder> BpeBuilder::Create(std::vector<std::string> tokens) {
  BpeBuilder builder;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (!builder.ids_.emplace(tokens[i], static_cast<int32_t>(i)).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", ShownToken(tokens[i]), ": given more than once"));
    }
  }
  const std::array<char32_t, 256> spelling = ByteSpelling();
  for (size_t byte = 0; byte < 256; ++byte) {
    const std::string token = EncodeUtf8(spelling[byte]);
    builder.merges_.byte_ids[byte] = builder.Find(token);
    const bool in_utf8 = byte < 0xC0 || (byte > 0xC1 && byte < 0xF5);
    if (builder.merges_.byte_ids[byte] < 0 && in_utf8) {
      return absl::InvalidArgumentError(
          absl::StrFormat("no token for byte 0x%02X, %s", byte, ShownToken(token)));
    }
  }
  builder.tokens_ = std::move(tokens);
  return builder;
}

int32_t BpeBuilder::Find(absl::string_view token) const {
  const auto found = ids_.find(token);
  return found == ids_.end() ? -1 : found->second;
}

absl::StatusOr<int32_t> BpeBuilder::FindEndOfText(const EndOfText& eos) const {
  const int32_t id = Find(eos.token);
  if (id >= 0) return id;
  return absl::InvalidArgumentError(absl::StrCat("has no token ", ShownToken(eos.token), ", which ",
                                                 eos.named_by, " names as the end of text"));
}

absl::Status BpeBuilder::Add(AddedToken token) {
  AFT_CHECK(Find(token.content) == token.id);
  if (token.content.empty()) return absl::InvalidArgumentError("a token is empty");
  if (absl::c_linear_search(merges_.byte_ids, token.id)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "token ", ShownToken(token.content), ": is the token of a single byte", NamedBy(token)));
  }
  added_[token.id] = std::move(token);
  return absl::OkStatus();
}

absl::Status BpeBuilder::AddMerge(absl::string_view left, absl::string_view right) {
  std::array<int32_t, 3> found{};
  size_t i = 0;
  for (const std::string& token :
       {std::string(left), std::string(right), absl::StrCat(left, right)}) {
    found[i] = Find(token);
    if (found[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", ShownToken(token), " is not in the vocabulary"));
    }
    // Added tokens stand for their characters as they are: only graphic ASCII spells the same
    // bytes.
    const auto added = added_.find(found[i]);
    if (added != added_.end() &&
        (added->second.special || !absl::c_all_of(token, absl::ascii_isgraph))) {
      return absl::InvalidArgumentError(absl::StrCat("token ", ShownToken(token),
                                                     " must not be a part or a result of a merge",
                                                     NamedBy(added->second)));
    }
    ++i;
  }
  const auto rank = static_cast<int32_t>(merges_.pairs.size());
  if (!merges_.pairs.emplace(BpeMerges::Key(found[0], found[1]), BpeMerges::Merge{rank, found[2]})
           .second) {
    return absl::InvalidArgumentError(
        absl::StrCat("merge ", ShownToken(absl::StrCat(left, " ", right)), " is a duplicate"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> BpeBuilder::Build(int32_t eos_id, bool nfc) && {
  const std::array<char32_t, 256> spelling = ByteSpelling();
  absl::flat_hash_map<char32_t, char> spelled;
  for (size_t byte = 0; byte < 256; ++byte) spelled[spelling[byte]] = static_cast<char>(byte);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    std::string& token = tokens_[id];
    const auto added = added_.find(static_cast<int32_t>(id));
    if (added == added_.end()) {
      AFT_ASSIGN_OR_RETURN(token, Unspell(token, spelled));
    } else if (added->second.special) {
      token.clear();
    }
  }
  AddedTokens added(added_);
  if (!added.ok()) return absl::InvalidArgumentError("too many added tokens");
  return std::make_shared<BpeTokenizer>(std::move(tokens_), eos_id, nfc, std::move(merges_),
                                        std::move(added));
}

}  // namespace aft
