#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "model/tokenizer/vocabulary_file.h"
#include "re2/re2.h"

namespace aft {
namespace {

using TokenIds = absl::flat_hash_map<std::string, int32_t>;

// Unicode's White_Space, which is what \s means there; RE2's own \s is ASCII's.
#define AFT_WHITE_SPACE                                                    \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})" \
  R"(\x{205F}\x{3000})"
constexpr char kSpaces[] = "[" AFT_WHITE_SPACE "]+";
constexpr char kWords[] =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{L}\p{N})" AFT_WHITE_SPACE "]+";
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

// The vocabulary as merging needs it.
struct BpeMerges {
  struct Merge {
    int32_t rank;  // lower is merged first; unique
    int32_t id;    // of the merged token
  };
  static uint64_t Key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  const Merge* Find(int32_t left, int32_t right) const {
    const auto found = pairs.find(Key(left, right));
    return found == pairs.end() ? nullptr : &found->second;
  }

  std::array<int32_t, 256> byte_ids{};
  absl::flat_hash_map<uint64_t, Merge> pairs;  // by Key
};

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

class BpeTokenizer : public Tokenizer {
 public:
  BpeTokenizer(std::vector<std::string> bytes, int32_t eos_id, BpeMerges merges)
      : bytes_(std::move(bytes)), eos_id_(eos_id), merges_(std::move(merges)) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t eos_id() const override { return eos_id_; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    if (text.size() >= size_t{std::numeric_limits<int32_t>::max()}) {
      return absl::InvalidArgumentError("text is longer than 2 GiB");
    }
    const std::string valid = WithValidUtf8(text);
    BpeMerger merger(merges_);
    std::vector<int32_t> ids;
    for (size_t at = 0; at < text.size();) {
      const size_t size = splitter_.FirstPiece(absl::string_view(valid).substr(at)).size();
      merger.Append(text.substr(at, size), ids);
      at += size;
    }
    return ids;
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < vocab_size());
    return bytes_[static_cast<size_t>(id)];
  }

 private:
  const std::vector<std::string> bytes_;  // by id; empty for the end of text
  const int32_t eos_id_;
  const BpeMerges merges_;
  const Gpt2Splitter splitter_;
};

// Reads one line of the merges: "left right".
absl::Status AddMerge(absl::string_view line, const TokenIds& ids, BpeMerges* merges) {
  const size_t space = line.find(' ');
  if (space == 0 || space == absl::string_view::npos || space + 1 == line.size() ||
      line.find(' ', space + 1) != absl::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be two tokens with a space between, got ", ShownToken(line)));
  }
  const absl::string_view left = line.substr(0, space);
  const absl::string_view right = line.substr(space + 1);
  std::array<int32_t, 3> found{};
  size_t i = 0;
  for (const std::string& token :
       {std::string(left), std::string(right), absl::StrCat(left, right)}) {
    const auto entry = ids.find(token);
    if (entry == ids.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", ShownToken(token), " is not in the vocabulary"));
    }
    if (token == kEndOfText) {
      return absl::InvalidArgumentError(
          absl::StrCat(kEndOfText, " must not be a part or a result of a merge"));
    }
    found[i++] = entry->second;
  }
  const auto rank = static_cast<int32_t>(merges->pairs.size());
  if (!merges->pairs.emplace(BpeMerges::Key(found[0], found[1]), BpeMerges::Merge{rank, found[2]})
           .second) {
    return absl::InvalidArgumentError(absl::StrCat("merge ", ShownToken(line), " is a duplicate"));
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const std::string& path, const TokenIds& ids, BpeMerges* merges) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
  absl::string_view rest = text;
  for (int64_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const absl::string_view line = absl::StripSuffix(rest.substr(0, end), "\r");
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (number == 1 && line.substr(0, 8) == "#version") continue;
    AFT_RETURN_IF_ERROR(InFile(absl::StrCat(path, ":", number), AddMerge(line, ids, merges)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadBpeTokenizer(const std::string& vocab_path,
                                                                  const std::string& merges_path) {
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ReadTokenIds(vocab_path));
  const std::array<char32_t, 256> spelling = ByteSpelling();
  absl::flat_hash_map<char32_t, char> spelled;
  for (size_t byte = 0; byte < 256; ++byte) spelled[spelling[byte]] = static_cast<char>(byte);

  TokenIds ids;
  for (size_t i = 0; i < tokens.size(); ++i) ids[tokens[i]] = static_cast<int32_t>(i);
  BpeMerges merges;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto found = ids.find(EncodeUtf8(spelling[byte]));
    if (found == ids.end()) {
      return absl::InvalidArgumentError(absl::StrFormat("%s: no token for byte 0x%02X, %s",
                                                        vocab_path, byte,
                                                        ShownToken(EncodeUtf8(spelling[byte]))));
    }
    merges.byte_ids[byte] = found->second;
  }
  AFT_RETURN_IF_ERROR(ReadMerges(merges_path, ids, &merges));

  const auto eos = ids.find(kEndOfText);
  for (std::string& token : tokens) {
    if (token == kEndOfText) {
      token.clear();
      continue;
    }
    AFT_ASSIGN_OR_RETURN(token, InFile(vocab_path, Unspell(token, spelled)));
  }
  return std::make_shared<BpeTokenizer>(std::move(tokens), eos == ids.end() ? -1 : eos->second,
                                        std::move(merges));
}

}  // namespace aft
