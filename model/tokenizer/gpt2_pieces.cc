#include "model/tokenizer/gpt2_pieces.h"

#include <algorithm>

#include "base/check.h"
#include "base/utf8.h"
#include "model/tokenizer/utf8_character.h"

namespace aft {
namespace {

// Unicode's White_Space, which \s means in GPT-2's pattern. RE2's own \s covers ASCII only.
#define AFT_WHITE_SPACE                                                    \
  R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F})" \
  R"(\x{205F}\x{3000})"
// Letters and digits, including those that Unicode 15.1 and 16 added. Hugging Face's tokenizers
// knows these, but RE2's tables may be older.
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

// The length of the match at the start of `text`, or 0 if there is no match.
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
    while (ContinuesUtf8(text[last])) --last;
    if (last > 0) return text.substr(0, last);
    if (text[0] != ' ') return text.substr(0, spaces);
  }
  const size_t length = MatchLength(words_, text);
  AFT_CHECK(length > 0);
  return text.substr(0, length);
}

std::array<char32_t, 256> ByteSpelling() {
  std::array<char32_t, 256> spelling{};
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    spelling[byte] = printable ? byte : next++;
  }
  return spelling;
}

std::string WithValidUtf8(absl::string_view text) {
  std::string valid(text);
  for (size_t at = 0; at < text.size();) {
    const size_t size = FirstCharacter(text.substr(at)).size;
    if (size == 0) valid[at] = '\x01';
    at += std::max<size_t>(size, 1);
  }
  return valid;
}

}  // namespace aft
