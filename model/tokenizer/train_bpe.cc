#include "model/tokenizer/train_bpe.h"

#include <algorithm>
#include <array>
#include <map>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/json.h"
#include "model/tokenizer/gpt2_pieces.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/utf8_character.h"
#include "nlohmann/json.hpp"

namespace aft {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr size_t kLongestPiece = 256;
constexpr int64_t kLeastCount = 2;

using Pair = std::pair<int32_t, int32_t>;

// A piece that occurs in the texts, with its current tokens.
struct Piece {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

std::vector<Piece> CountPieces(const std::vector<absl::string_view>& texts,
                               const std::array<int32_t, 256>& byte_ids) {
  const Gpt2Splitter splitter;
  std::map<std::string, int64_t> counts;  // ordered, so that the same texts give the same result
  for (const absl::string_view text : texts) {
    const std::string valid = WithValidUtf8(text);
    for (absl::string_view rest = valid; !rest.empty();) {
      const size_t size = splitter.FirstPiece(rest).size();
      if (size <= kLongestPiece)
        ++counts[std::string(text.substr(text.size() - rest.size(), size))];
      rest.remove_prefix(size);
    }
  }
  std::vector<Piece> pieces;
  for (const auto& [bytes, count] : counts) {
    Piece piece{.count = count};
    for (const char byte : bytes) piece.tokens.push_back(byte_ids[static_cast<uint8_t>(byte)]);
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// The number of times that each pair occurs, and the pieces that it occurs in.
class PairCounts {
 public:
  explicit PairCounts(const std::vector<Piece>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) Count(pieces[i], i, 1);
    for (const auto& [pair, of] : pairs_) queue_.push({of.count, pair});
  }

  // The most frequent pair, or a count below kLeastCount when no pair is left.
  std::pair<int64_t, Pair> Most() {
    while (!queue_.empty()) {
      const Entry top = queue_.top();
      queue_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (count == top.count) return {count, top.pair};
      if (count >= kLeastCount) queue_.push({count, top.pair});  // the entry was out of date
    }
    return {0, {}};
  }

  // Replaces every `pair` in `pieces` by `merged`.
  void Merge(Pair pair, int32_t merged, std::vector<Piece>& pieces) {
    const absl::flat_hash_set<size_t> where = std::move(pairs_[pair].pieces);
    absl::flat_hash_set<Pair> grown;
    for (const size_t i : where) {
      Piece& piece = pieces[i];
      Count(piece, i, -1);
      std::vector<int32_t> tokens;
      for (size_t at = 0; at < piece.tokens.size(); ++at) {
        const bool found = at + 1 < piece.tokens.size() && piece.tokens[at] == pair.first &&
                           piece.tokens[at + 1] == pair.second;
        tokens.push_back(found ? merged : piece.tokens[at]);
        if (found) ++at;
      }
      piece.tokens = std::move(tokens);
      Count(piece, i, 1);
      for (size_t at = 0; at + 1 < piece.tokens.size(); ++at) {
        if (piece.tokens[at] == merged || piece.tokens[at + 1] == merged) {
          grown.insert({piece.tokens[at], piece.tokens[at + 1]});
        }
      }
    }
    for (const Pair& one : grown) queue_.push({pairs_[one].count, one});
  }

 private:
  struct Of {
    int64_t count = 0;
    absl::flat_hash_set<size_t> pieces;  // pieces with the pair, and some that had it before
  };
  struct Entry {
    int64_t count;
    Pair pair;
    // The higher count comes first, then the lower ids.
    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void Count(const Piece& piece, size_t index, int64_t sign) {
    for (size_t at = 0; at + 1 < piece.tokens.size(); ++at) {
      Of& of = pairs_[{piece.tokens[at], piece.tokens[at + 1]}];
      of.count += sign * piece.count;
      if (sign > 0) of.pieces.insert(index);
    }
  }

  absl::flat_hash_map<Pair, Of> pairs_;
  std::priority_queue<Entry> queue_;
};

OrderedJson FormatTokenizer(const std::vector<std::string>& tokens,
                            const std::vector<std::string>& merges) {
  // A list of pairs. OrderedJson's operator[] would search the whole list for each token.
  OrderedJson::object_t vocabulary;
  vocabulary.reserve(tokens.size());
  for (size_t id = 0; id < tokens.size(); ++id) {
    vocabulary.push_back({tokens[id], OrderedJson(id)});
  }
  const OrderedJson byte_level = {{"type", "ByteLevel"},
                                  {"add_prefix_space", false},
                                  {"trim_offsets", true},
                                  {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", OrderedJson::array()},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", OrderedJson(std::move(vocabulary))},
            {"merges", merges}}}};
}

}  // namespace

std::string TrainBpe(const std::vector<absl::string_view>& texts, int64_t vocab_size) {
  AFT_CHECK(vocab_size >= 256);
  // Bytes have ids in the order of the characters that spell them.
  const std::array<char32_t, 256> spelling = ByteSpelling();
  std::array<char32_t, 256> sorted = spelling;
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::string> tokens, merges;
  absl::flat_hash_map<std::string, int32_t> ids;
  for (const char32_t point : sorted) {
    ids[EncodeUtf8(point)] = static_cast<int32_t>(tokens.size());
    tokens.push_back(EncodeUtf8(point));
  }
  std::array<int32_t, 256> byte_ids{};
  for (size_t byte = 0; byte < 256; ++byte) byte_ids[byte] = ids.at(EncodeUtf8(spelling[byte]));

  std::vector<Piece> pieces = CountPieces(texts, byte_ids);
  PairCounts counts(pieces);
  while (static_cast<int64_t>(tokens.size()) < vocab_size) {
    const auto [count, pair] = counts.Most();
    if (count < kLeastCount) break;
    const std::string& left = tokens[static_cast<size_t>(pair.first)];
    const std::string& right = tokens[static_cast<size_t>(pair.second)];
    merges.push_back(absl::StrCat(left, " ", right));
    // Another pair may have made the same token already.
    const auto [known, is_new] =
        ids.try_emplace(absl::StrCat(left, right), static_cast<int32_t>(tokens.size()));
    const int32_t merged = known->second;
    if (is_new) tokens.push_back(known->first);
    counts.Merge(pair, merged, pieces);
  }
  return DumpJson(FormatTokenizer(tokens, merges)) + "\n";
}

std::string CollectCharacters(const std::vector<absl::string_view>& texts, int64_t vocab_size) {
  AFT_CHECK(vocab_size >= 1);
  std::map<char32_t, int64_t> counts;
  for (absl::string_view text : texts) {
    while (!text.empty()) {
      const Utf8Character character = FirstCharacter(text);
      if (character.size > 0) ++counts[character.point];
      text.remove_prefix(std::max<size_t>(character.size, 1));
    }
  }
  std::vector<std::pair<int64_t, char32_t>> order;  // the most frequent first
  order.reserve(counts.size());
  for (const auto& [point, count] : counts) order.emplace_back(-count, point);
  std::sort(order.begin(), order.end());
  order.resize(std::min(order.size(), static_cast<size_t>(vocab_size - 1)));
  OrderedJson characters = OrderedJson::array({kUnknownCharacter});
  for (const auto& [count, point] : order) characters.push_back(EncodeUtf8(point));
  return DumpJson(characters) + "\n";
}

}  // namespace aft
