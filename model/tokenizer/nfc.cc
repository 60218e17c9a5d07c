#include "model/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/algorithm/container.h"
#include "base/check.h"
#include "model/tokenizer/utf8_character.h"

namespace aft {
namespace {

// 0 for a character that begins a new sequence of marks.
int CombiningClass(int32_t point) { return utf8proc_get_property(point)->combining_class; }

// Puts the marks of each character in their canonical order. utf8proc does it too, but in O(n^2).
void OrderMarks(std::vector<int32_t>& points) {
  const auto is_mark = [](int32_t point) { return CombiningClass(point) != 0; };
  for (auto at = points.begin(); at != points.end();) {
    const auto begin = std::find_if(at, points.end(), is_mark);
    at = std::find_if_not(begin, points.end(), is_mark);
    std::stable_sort(begin, at, [](int32_t left, int32_t right) {
      return CombiningClass(left) < CombiningClass(right);
    });
  }
}

}  // namespace

std::string ToNfc(absl::string_view text) {
  // Characters below U+0300, which begin with a byte below 0xCC, are their own normal form.
  if (absl::c_all_of(text, [](char byte) { return static_cast<uint8_t>(byte) < 0xCC; })) {
    return std::string(text);
  }
  constexpr int kMostParts = 4;  // of one character, by Unicode's stability policy
  std::vector<int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Character character = FirstCharacter(text.substr(at));
    if (character.size == 0) return std::string(text);
    at += character.size;
    int32_t parts[kMostParts];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<int32_t>(character.point), parts,
                                               kMostParts, UTF8PROC_DECOMPOSE, &boundary);
    AFT_CHECK(count >= 0 && count <= kMostParts);
    points.insert(points.end(), parts, parts + count);
  }
  OrderMarks(points);
  std::string normal;
  normal.reserve(text.size());
  for (auto begin = points.begin(); begin != points.end();) {
    // utf8proc composes U+11A7 with a syllable before it, and the character is lost. No character
    // composes with it in Unicode, so each part that begins with it is composed by itself.
    const auto end = std::find(begin + 1, points.end(), 0x11A7);
    const auto composed = utf8proc_normalize_utf32(
        &*begin, end - begin, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    AFT_CHECK(composed >= 0);
    for (auto point = begin; point != begin + composed; ++point) {
      normal += EncodeUtf8(static_cast<char32_t>(*point));
    }
    begin = end;
  }
  return normal;
}

}  // namespace aft
