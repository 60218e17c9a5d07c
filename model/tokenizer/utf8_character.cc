#include "model/tokenizer/utf8_character.h"

namespace aft {

Utf8Character FirstCharacter(absl::string_view text) {
  const auto byte = [text](size_t i) -> char32_t { return static_cast<unsigned char>(text[i]); };
  const char32_t first = byte(0);
  if (first < 0x80) return {first, 1};
  // The lead byte says how many bytes follow; `smallest` is the least point that needs that many.
  size_t size = 0;
  char32_t smallest = 0;
  if (first >= 0xC2 && first <= 0xDF) {
    size = 2;
    smallest = 0x80;
  } else if (first >= 0xE0 && first <= 0xEF) {
    size = 3;
    smallest = 0x800;
  } else if (first >= 0xF0 && first <= 0xF4) {
    size = 4;
    smallest = 0x10000;
  }
  if (size == 0 || size > text.size()) return {};
  char32_t point = first & (0x7F >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return {};
    point = point << 6 | (byte(i) & 0x3F);
  }
  if (point < smallest || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) return {};
  return {point, size};
}

std::string EncodeUtf8(char32_t point) {
  const auto continuation = [point](int shift) {
    return static_cast<char>(0x80 | (point >> shift & 0x3F));
  };
  if (point < 0x80) return {static_cast<char>(point)};
  if (point < 0x800) return {static_cast<char>(0xC0 | point >> 6), continuation(0)};
  if (point < 0x10000) {
    return {static_cast<char>(0xE0 | point >> 12), continuation(6), continuation(0)};
  }
  return {static_cast<char>(0xF0 | point >> 18), continuation(12), continuation(6),
          continuation(0)};
}

}  // namespace aft
