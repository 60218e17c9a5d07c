#include "model/tokenizer/gpt2_splitter.h"

#include <cstddef>

#include "base/check.h"

namespace aft {
namespace {

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

}  // namespace

Gpt2Splitter::Gpt2Splitter() : spaces_(kSpaces, re2::RE2::Quiet), words_(kWords, re2::RE2::Quiet) {
  AFT_CHECK(spaces_.ok() && words_.ok());
}

absl::string_view Gpt2Splitter::FirstPiece(absl::string_view text) const {
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

}  // namespace aft
