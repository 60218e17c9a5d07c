#include "tests/fuzz/mutator.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"

namespace aft::fuzz {
namespace {

constexpr int kMostSteps = 6;

// Powers of two and what stands beside them.
uint64_t InterestingInteger(TestRandom& random) {
  const uint64_t power = uint64_t{1} << random.Below(64);
  return power + static_cast<uint64_t>(random.Below(3)) - 1;
}

// \\, \" and \xAB, as libFuzzer has them.
std::string Unescape(absl::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      plain.push_back(text[i]);
    } else if (text.substr(i + 1, 1) == "x") {
      const absl::string_view digits = text.substr(i + 2, 2);
      AFT_CHECK(digits.size() == 2 && absl::c_all_of(digits, absl::ascii_isxdigit));
      plain += absl::HexStringToBytes(digits);
      i += 3;
    } else {
      ++i;
      AFT_CHECK(i < text.size() && (text[i] == '\\' || text[i] == '"'));
      plain.push_back(text[i]);
    }
  }
  return plain;
}

std::string Varint(uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text.push_back(static_cast<char>(value | 0x80));
  text.push_back(static_cast<char>(value));
  return text;
}

}  // namespace

std::vector<std::string> ParseDictionary(absl::string_view text) {
  std::vector<std::string> words;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    const size_t first = line.find('"');
    AFT_CHECK(first != absl::string_view::npos && line.size() > first + 1 && line.back() == '"');
    words.push_back(Unescape(line.substr(first + 1, line.size() - first - 2)));
  }
  return words;
}

Mutator::Mutator(TestRandom& random, std::vector<std::string> dictionary, size_t max_bytes)
    : random_(random), dictionary_(std::move(dictionary)), max_bytes_(max_bytes) {}

std::string Mutator::Mutate(std::string input, absl::string_view other) {
  const size_t steps = 1 + Below(kMostSteps);
  for (size_t i = 0; i < steps; ++i) Step(input, other);
  if (input.size() > max_bytes_) input.resize(max_bytes_);
  return input;
}

std::string Mutator::Blow(std::string input, size_t bytes) {
  const Piece piece = PieceOf(input);
  const std::string text = piece.size > 0 ? input.substr(piece.at, piece.size) : "(";
  std::string blown;
  blown.reserve(bytes + text.size());
  while (blown.size() < bytes) blown += text;
  input.insert(piece.at, blown);
  return input;
}

Mutator::Piece Mutator::PieceOf(absl::string_view text) {
  const size_t at = Below(text.size() + 1);
  if (Below(4) == 0) {  // a line
    const size_t before = text.rfind('\n', at);
    const size_t begin = before == absl::string_view::npos ? 0 : std::min(before + 1, text.size());
    return {begin, std::min(text.find('\n', begin), text.size() - 1) + 1 - begin};
  }
  const size_t most = Below(4) == 0 ? text.size() : 16;
  return {at, std::min(Below(most + 1), text.size() - at)};
}

size_t Mutator::Below(size_t n) {
  return static_cast<size_t>(random_.Below(static_cast<int64_t>(n)));
}

void Mutator::Step(std::string& input, absl::string_view other) {
  const Piece piece = PieceOf(input);
  switch (Below(9)) {
    case 0:
      if (piece.at < input.size()) input[piece.at] ^= static_cast<char>(1 << Below(8));
      break;
    case 1:
      if (piece.at < input.size()) input[piece.at] = static_cast<char>(Below(256));
      break;
    case 2:
      input.insert(piece.at, 1 + Below(4), static_cast<char>(Below(256)));
      break;
    case 3:
      input.erase(piece.at, piece.size);
      break;
    case 4:  // move or repeat
      input.insert(PieceOf(input).at, input.substr(piece.at, piece.size));
      break;
    case 5: {  // splice
      const Piece theirs = PieceOf(other);
      input.replace(piece.at, piece.size, std::string(other.substr(theirs.at, theirs.size)));
      break;
    }
    case 6:
      if (!dictionary_.empty()) Put(input, dictionary_[Below(dictionary_.size())]);
      break;
    case 7:
      Put(input, Integer());
      break;
    case 8:
      ReplaceNumber(input);
      break;
  }
}

std::string Mutator::Integer() {
  const uint64_t value = InterestingInteger(random_);
  switch (Below(3)) {
    case 0: {
      const auto* bytes = reinterpret_cast<const char*>(&value);
      return std::string(bytes, size_t{1} << Below(4));
    }
    case 1:
      return Varint(value);
    default:
      return absl::StrCat(Below(4) == 0 ? "-" : "", value);
  }
}

// Inserts, or writes over what is there.
void Mutator::Put(std::string& input, absl::string_view text) {
  const size_t at = PieceOf(input).at;
  const size_t over = Below(2) == 0 ? 0 : std::min(text.size(), input.size() - at);
  input.replace(at, over, text.data(), text.size());
}

void Mutator::ReplaceNumber(std::string& input) {
  const auto is_digit = [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); };
  const auto begin = std::find_if(input.begin() + PieceOf(input).at, input.end(), is_digit);
  const auto end = std::find_if_not(begin, input.end(), is_digit);
  uint64_t number = 0;
  if (begin == end) return;
  if (Below(2) == 0 || !absl::SimpleAtoi(absl::string_view(&*begin, end - begin), &number)) {
    number = InterestingInteger(random_);
  } else {
    number += Below(2) == 0 ? 1 : -1;
  }
  input.replace(begin, end, absl::StrCat(number));
}

}  // namespace aft::fuzz
