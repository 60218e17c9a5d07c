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
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "model/tokenizer/bpe_builder.h"
#include "model/tokenizer/utf8_character.h"
#include "model/tokenizer/vocabulary_file.h"
#include "re2/re2.h"

namespace aft {
namespace {

// Unicode's White_Space, which is what \s means there; RE2's own \s is ASCII's.
#define AFT_WHITE_SPACE                                                    \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})" \
  R"(\x{205F}\x{3000})"
// Letters and digits, with those that Unicode 15.1 and 16 added: Hugging Face's tokenizers knows
// them, but RE2's tables may be older.
#define AFT_LETTERS                                                                 \
  R"(\p{L}\x{1C89}-\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3})"  \
  R"(\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}\x{10EC2}-\x{10EC4}\x{11380}-\x{11389})" \
  R"(\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3})"             \
  R"(\x{11BC0}-\x{11BE0}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C})" \
  R"(\x{18CFF}\x{1E5D0}-\x{1E5ED}\x{1E5F0}\x{2EBF0}-\x{2EE5D})"
#define AFT_DIGITS                                                                       \
  R"(\p{N}\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{16130}-\x{16139})" \
  R"(\x{16D70}-\x{16D79}\x{1CCF0}-\x{1CCF9}\x{1E5F1}-\x{1E5FA})"
constexpr char kSpaces[] = "[" AFT_WHITE_SPACE "]+";
constexpr char kWords[] = "'s|'t|'re|'ve|'m|'ll|'d| ?[" AFT_LETTERS "]+| ?[" AFT_DIGITS
                          "]+| ?[^" AFT_LETTERS AFT_DIGITS AFT_WHITE_SPACE "]+";
#undef AFT_DIGITS
#undef AFT_LETTERS
#undef AFT_WHITE_SPACE

// Length of the match at the start of `text`, 0 if there is none.
size_t MatchLength(const re2::RE2& pattern, absl::string_view text) {
  const re2::StringPiece input(text.data(), text.size());
  re2::StringPiece match;
  if (!pattern.Match(input, 0, input.size(), re2::RE2::ANCHOR_START, &match, 1)) return 0;
  return match.size();
}

// Cuts text into the pieces within which GPT-2's byte-pair encoding merges; their concatenation is
// the text. Source: openai/gpt-2, src/encoder.py,
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// RE2 has no look-ahead, so runs of white space are cut by hand: all but the last character of a
// run that something follows, or the whole run at the end of the text. Thread-safe.
class Gpt2Splitter {
 public:
  Gpt2Splitter() { AFT_CHECK(spaces_.ok() && words_.ok()); }

  // The first piece of `text`, at a cost that depends on the piece alone.
  // REQUIRES: text is not empty and valid UTF-8.
  absl::string_view FirstPiece(absl::string_view text) const {
    const size_t spaces = MatchLength(spaces_, text);
    if (spaces > 0) {
      if (spaces == text.size()) return text;
      size_t last = spaces - 1;  // where the run's last character starts
      while ((static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
      if (last > 0) return text.substr(0, last);
      if (text[0] != ' ') return text.substr(0, spaces);
    }
    const size_t length = MatchLength(words_, text);
    AFT_CHECK(length > 0);
    return text.substr(0, length);
  }

 private:
  const re2::RE2 spaces_{kSpaces, re2::RE2::Quiet};
  const re2::RE2 words_{kWords, re2::RE2::Quiet};
};

// GPT-2 spells each byte as one printable character: those of Latin-1 as themselves, the other 68
// as U+0100 and up, in their order.
std::array<char32_t, 256> ByteSpelling() {
  std::array<char32_t, 256> spelling{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    spelling[byte] = printable ? byte : next++;
  }
  return spelling;
}

// The bytes that a token spells, or the status that says which character spells none.
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

// `text`, with every byte that is not UTF-8 replaced by one that is: a symbol of the same length.
std::string WithValidUtf8(absl::string_view text) {
  std::string valid(text);
  for (size_t at = 0; at < text.size();) {
    const size_t size = FirstCharacter(text.substr(at)).size;
    if (size == 0) valid[at] = '\x01';
    at += std::max<size_t>(size, 1);
  }
  return valid;
}

// Merges one piece after another; holds the memory for it. Thread-compatible.
class BpeMerger {
 public:
  // `merges` must outlive this object.
  explicit BpeMerger(const BpeMerges& merges) : merges_(merges) {}

  // Appends the tokens of `piece` to `ids`. O(n log n).
  // REQUIRES: 0 < piece.size() < 2^31.
  void Append(absl::string_view piece, std::vector<int32_t>& ids);

 private:
  // A token of the piece; they form a list in the order of the text.
  struct Node {
    int32_t id;
    int32_t previous;  // -1: none
    int32_t next;      // -1: none
    int32_t rank;      // of the merge with `next`; -1: there is none
  };

  void Rank(int32_t left);

  const BpeMerges& merges_;
  std::vector<Node> nodes_;
  // Min-heap of rank << 32 | left node. An entry is out of date when the node's rank is another.
  std::vector<uint64_t> heap_;
};

// Looks up the pair of `left` and its next, and queues it.
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

// Cuts a text at added tokens. Thread-safe.
class AddedTokens {
 public:
  explicit AddedTokens(const absl::flat_hash_map<int32_t, AddedToken>& added) {
    for (const bool before_others : {true, false}) {
      std::string pattern;
      for (const auto& [id, token] : added) {
        if (token.special || token.before_others != before_others) continue;
        absl::StrAppend(&pattern, pattern.empty() ? "" : "|", re2::RE2::QuoteMeta(token.content));
        ids_[token.content] = id;
      }
      if (pattern.empty()) continue;
      re2::RE2::Options options(re2::RE2::Latin1);  // bytes: the text need not be UTF-8
      options.set_longest_match(true);
      options.set_log_errors(false);
      options.set_max_mem(kPatternBytes);
      patterns_.push_back(std::make_unique<re2::RE2>(pattern, options));
    }
  }

  // Too many of them for a pattern.
  bool ok() const {
    return absl::c_all_of(patterns_, [](const auto& pattern) { return pattern->ok(); });
  }

  // Calls `part(begin, end, id)` for the parts of `text` in their order; id -1: no added token.
  template <typename Part>
  void ForEach(absl::string_view text, const Part& part) const {
    Cut(text, 0, text.size(), 0, part);
  }

 private:
  static constexpr int64_t kPatternBytes = 64 << 20;

  // Those of patterns_[level] and after it, in text[begin, end).
  template <typename Part>
  void Cut(absl::string_view text, size_t begin, size_t end, size_t level, const Part& part) const {
    if (begin == end) return;
    if (level == patterns_.size()) return part(begin, end, -1);
    const re2::StringPiece input(text.data(), text.size());
    re2::StringPiece match;
    while (patterns_[level]->Match(input, begin, end, re2::RE2::UNANCHORED, &match, 1)) {
      const auto at = static_cast<size_t>(match.data() - text.data());
      Cut(text, begin, at, level + 1, part);
      begin = at + match.size();
      part(at, begin, ids_.at(absl::string_view(match.data(), match.size())));
    }
    Cut(text, begin, end, level + 1, part);
  }

  std::vector<std::unique_ptr<re2::RE2>> patterns_;
  absl::flat_hash_map<std::string, int32_t> ids_;
};

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::vector<std::string> bytes, int32_t eos_id, BpeMerges merges, AddedTokens added)
      : bytes_(std::move(bytes)),
        eos_id_(eos_id),
        merges_(std::move(merges)),
        added_(std::move(added)) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t eos_id() const override { return eos_id_; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    if (text.size() >= size_t{std::numeric_limits<int32_t>::max()}) {
      return absl::InvalidArgumentError("text is longer than 2 GiB");
    }
    const std::string valid = WithValidUtf8(text);
    BpeMerger merger(merges_);
    std::vector<int32_t> ids;
    added_.ForEach(text, [&](size_t begin, size_t end, int32_t id) {
      if (id >= 0) return ids.push_back(id);
      // A part ends a text as far as its white space is concerned.
      const absl::string_view part = absl::string_view(valid).substr(0, end);
      for (size_t at = begin; at < end;) {
        const size_t size = splitter_.FirstPiece(part.substr(at)).size();
        merger.Append(text.substr(at, size), ids);
        at += size;
      }
    });
    return ids;
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < vocab_size());
    return bytes_[static_cast<size_t>(id)];
  }

 private:
  const std::vector<std::string> bytes_;  // by id; empty for special tokens
  const int32_t eos_id_;
  const BpeMerges merges_;
  const AddedTokens added_;
  const Gpt2Splitter splitter_;
};

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
    if (builder.merges_.byte_ids[byte] < 0) {
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

absl::Status BpeBuilder::Add(AddedToken token) {
  AFT_CHECK(Find(token.content) == token.id);
  if (token.content.empty()) return absl::InvalidArgumentError("a token is empty");
  if (absl::c_linear_search(merges_.byte_ids, token.id)) {
    return absl::InvalidArgumentError(
        absl::StrCat("token ", ShownToken(token.content), ": is that of a byte"));
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
      return absl::InvalidArgumentError(
          absl::StrCat("token ", ShownToken(token), " must not be a part or a result of a merge"));
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

absl::StatusOr<std::shared_ptr<const Tokenizer>> BpeBuilder::Build(int32_t eos_id) && {
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
  if (!added.ok()) return absl::InvalidArgumentError("too many added tokens that are not special");
  return std::make_shared<BpeTokenizer>(std::move(tokens_), eos_id, std::move(merges_),
                                        std::move(added));
}

}  // namespace aft
