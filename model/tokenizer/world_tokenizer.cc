#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

// The most bytes of a token. It bounds how far Encode looks ahead from each place of a text.
constexpr size_t kMaxWorldTokenBytes = 1024;

// Moves one of the escape sequences that repr() writes from the front of `rest`, after its
// backslash, to `bytes`. Returns false if there is none.
bool TakeEscape(bool of_bytes, absl::string_view* rest, std::string* bytes) {
  constexpr absl::string_view kLetters = "\\'nrt", kMeanings = "\\'\n\r\t";
  const char letter = rest->empty() ? '\0' : rest->front();
  rest->remove_prefix(std::min<size_t>(rest->size(), 1));
  if (const size_t place = kLetters.find(letter); place != absl::string_view::npos) {
    bytes->push_back(kMeanings[place]);
    return true;
  }
  size_t digits = letter == 'x' ? 2 : 0;
  if (letter == 'u' && !of_bytes) digits = 4;
  if (letter == 'U' && !of_bytes) digits = 8;
  const absl::string_view hex = rest->substr(0, digits);
  rest->remove_prefix(hex.size());
  uint32_t value = 0;
  if (digits == 0 || hex.size() < digits ||
      !std::all_of(hex.begin(), hex.end(), absl::ascii_isxdigit) ||
      !absl::SimpleHexAtoi(hex, &value)) {
    return false;
  }
  if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) return false;  // not a character
  if (of_bytes) {
    bytes->push_back(static_cast<char>(value));
  } else {
    *bytes += EncodeUtf8(value);
  }
  return true;
}

// Appends what a Python literal stands for. Returns false if it is not one that repr() writes.
bool ParseLiteral(absl::string_view literal, std::string* bytes) {
  const bool of_bytes = absl::ConsumePrefix(&literal, "b");
  if (literal.size() < 2 || literal.front() != literal.back()) return false;
  const auto quote = static_cast<unsigned char>(literal.front());
  if (quote != '\'' && quote != '"') return false;
  absl::string_view rest = literal.substr(1, literal.size() - 2);
  while (!rest.empty()) {
    if (absl::ConsumePrefix(&rest, "\\")) {
      if (!TakeEscape(of_bytes, &rest, bytes)) return false;
      continue;
    }
    const auto [point, size] = FirstCharacter(rest);
    if (size == 0 || point == quote || point < ' ' || point == 0x7F) return false;
    if (of_bytes && size > 1) return false;
    bytes->append(rest.data(), size);
    rest.remove_prefix(size);
  }
  return true;
}

absl::StatusOr<std::string> ParseTokenLine(absl::string_view line, size_t id) {
  const std::string head = absl::StrCat(id, " ");
  const size_t last = line.rfind(' ');
  if (!absl::StartsWith(line, head) || last < head.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be ", id, ", a literal and its length, got ", ShownToken(line)));
  }
  const absl::string_view literal = line.substr(head.size(), last - head.size());
  std::string bytes;
  if (!ParseLiteral(literal, &bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        ShownToken(literal), " is not a literal that Python writes for a str or bytes"));
  }
  if (line.substr(last + 1) != absl::StrCat(bytes.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("the length must be ", bytes.size(), ", the number of bytes"));
  }
  if (bytes.empty() || bytes.size() > kMaxWorldTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token must have 1 to ", kMaxWorldTokenBytes, " bytes, got ", bytes.size()));
  }
  return bytes;
}

// The tokens of a vocabulary by id.
absl::StatusOr<std::vector<std::string>> ParseVocabulary(absl::string_view text) {
  std::vector<std::string> tokens(1);  // id 0 stands for no bytes
  absl::ConsumeSuffix(&text, "\n");
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    absl::ConsumeSuffix(&line, "\r");
    AFT_ASSIGN_OR_RETURN(std::string token, InFile(absl::StrCat("line ", tokens.size()),
                                                   ParseTokenLine(line, tokens.size())));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

// Tokens as a tree of their bytes. The nodes are in breadth-first order, so the children of a node
// are neighbours. Node 0 is the root.
class ByteTrie {
 public:
  struct Match {
    int32_t id;
    size_t size;  // in bytes
  };

  // `tokens` are by id; id 0 is not a token. INVALID_ARGUMENT: two tokens have the same bytes, or a
  // byte is not a token.
  static absl::StatusOr<ByteTrie> Create(const std::vector<std::string>& tokens);

  // The longest token with which `text` begins. REQUIRES: text is not empty.
  Match Longest(absl::string_view text) const {
    // Every byte is a token, so the children of the root are the nodes 1 to 256.
    size_t node = size_t{1} + static_cast<unsigned char>(text[0]);
    Match longest = {nodes_[node].token, 1};
    for (size_t size = 2; size <= text.size(); ++size) {
      node = Child(node, text[size - 1]);
      if (node == 0) break;
      if (nodes_[node].token != 0) longest = {nodes_[node].token, size};
    }
    return longest;
  }

 private:
  struct Node {
    uint32_t first_child;  // the others follow, up to the first child of the next node
    int32_t token;         // 0: no token ends here
  };

  // The child of `node` for `byte`, or 0.
  size_t Child(size_t node, char byte) const {
    const size_t first = nodes_[node].first_child;
    const size_t count = nodes_[node + 1].first_child - first;
    const char* children = bytes_.data() + first;
    const void* found = std::memchr(children, byte, count);
    if (found == nullptr) return 0;
    return first + static_cast<size_t>(static_cast<const char*>(found) - children);
  }

  std::vector<Node> nodes_;  // and one more, which ends the children of the last node
  std::string bytes_;        // bytes_[n] leads from its parent to node n
};

absl::StatusOr<ByteTrie> ByteTrie::Create(const std::vector<std::string>& tokens) {
  std::vector<std::pair<absl::string_view, int32_t>> sorted;
  for (size_t id = 1; id < tokens.size(); ++id) {
    sorted.emplace_back(tokens[id], static_cast<int32_t>(id));
  }
  std::sort(sorted.begin(), sorted.end());
  for (size_t i = 1; i < sorted.size(); ++i) {
    if (sorted[i].first != sorted[i - 1].first) continue;
    return absl::InvalidArgumentError(absl::StrCat("lines ", sorted[i - 1].second, " and ",
                                                   sorted[i].second, ": the same token"));
  }
  // The tokens below a node, which have their first `depth` bytes in common.
  struct Range {
    uint32_t begin, end, depth;
  };
  std::vector<Range> ranges = {{0, static_cast<uint32_t>(sorted.size()), 0}};
  ByteTrie trie;
  trie.bytes_.push_back('\0');  // no byte leads to the root
  for (size_t node = 0; node < ranges.size(); ++node) {
    auto [begin, end, depth] = ranges[node];
    trie.nodes_.push_back({static_cast<uint32_t>(ranges.size()), 0});
    if (sorted[begin].first.size() == depth) trie.nodes_.back().token = sorted[begin++].second;
    while (begin < end) {
      const char byte = sorted[begin].first[depth];
      trie.bytes_.push_back(byte);
      ranges.push_back({begin, begin, depth + 1});
      while (begin < end && sorted[begin].first[depth] == byte) ++begin;
      ranges.back().end = begin;
    }
  }
  trie.nodes_.push_back({static_cast<uint32_t>(ranges.size()), 0});
  for (int byte = 0; byte < 256; ++byte) {
    const size_t node = trie.Child(0, static_cast<char>(byte));
    if (node != 0 && trie.nodes_[node].token != 0) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("has no token for the byte 0x%02X; every byte must be a token", byte));
  }
  return trie;
}

class WorldTokenizer : public Tokenizer {
 public:
  WorldTokenizer(std::vector<std::string> tokens, ByteTrie trie)
      : tokens_(std::move(tokens)), trie_(std::move(trie)) {}

  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  int32_t eos_id() const override { return 0; }

  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const ByteTrie::Match match = trie_.Longest(text);
      ids.push_back(match.id);
      text.remove_prefix(match.size);
    }
    return ids;
  }

  absl::string_view TokenBytes(int32_t id) const override {
    AFT_CHECK(id >= 0 && id < vocab_size());
    return tokens_[static_cast<size_t>(id)];
  }

 private:
  const std::vector<std::string> tokens_;  // by id
  const ByteTrie trie_;
};

absl::StatusOr<std::shared_ptr<const Tokenizer>> MakeWorldTokenizer(absl::string_view vocabulary) {
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> tokens, ParseVocabulary(vocabulary));
  AFT_ASSIGN_OR_RETURN(ByteTrie trie, ByteTrie::Create(tokens));
  return std::make_shared<WorldTokenizer>(std::move(tokens), std::move(trie));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadWorldTokenizer(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string vocabulary, ReadVocabularyText(path));
  return InFile(path, MakeWorldTokenizer(vocabulary));
}

}  // namespace aft
