#include "base/utf8.h"

#include <cstdint>
#include <random>
#include <set>
#include <string>

#include "gtest/gtest.h"

namespace aft {
namespace {

constexpr char kBad[] = "\xEF\xBF\xBD";

std::string Encode(uint32_t point) {
  std::string out;
  if (point < 0x80) {
    out = {static_cast<char>(point)};
  } else if (point < 0x800) {
    out = {static_cast<char>(0xC0 | point >> 6), static_cast<char>(0x80 | (point & 0x3F))};
  } else if (point < 0x10000) {
    out = {static_cast<char>(0xE0 | point >> 12), static_cast<char>(0x80 | (point >> 6 & 0x3F)),
           static_cast<char>(0x80 | (point & 0x3F))};
  } else {
    out = {static_cast<char>(0xF0 | point >> 18), static_cast<char>(0x80 | (point >> 12 & 0x3F)),
           static_cast<char>(0x80 | (point >> 6 & 0x3F)), static_cast<char>(0x80 | (point & 0x3F))};
  }
  return out;
}

bool IsSurrogate(uint32_t point) { return point >= 0xD800 && point <= 0xDFFF; }

// Returns whether `text` is one whole character. Decodes the bits without checks, and compares the
// encoding of the result with `text`.
bool IsCharacter(const std::string& text) {
  const auto bits = [&](size_t i, uint32_t mask) { return static_cast<uint8_t>(text[i]) & mask; };
  uint32_t point = 0;
  switch (text.size()) {
    case 1:
      point = bits(0, 0x7F);
      break;
    case 2:
      point = bits(0, 0x1F) << 6 | bits(1, 0x3F);
      break;
    case 3:
      point = bits(0, 0x0F) << 12 | bits(1, 0x3F) << 6 | bits(2, 0x3F);
      break;
    default:
      point = bits(0, 0x07) << 18 | bits(1, 0x3F) << 12 | bits(2, 0x3F) << 6 | bits(3, 0x3F);
  }
  return point <= 0x10FFFF && !IsSurrogate(point) && Encode(point) == text;
}

// Every true prefix of a character, listed from all code points rather than from ranges of bytes.
std::set<std::string> CharacterPrefixes() {
  std::set<std::string> prefixes;
  std::string last;
  for (uint32_t point = 0x80; point <= 0x10FFFF; ++point) {
    std::string prefix = Encode(point);
    if (IsSurrogate(point)) continue;
    prefix.pop_back();
    if (prefix == last) continue;
    last = prefix;
    for (; !prefix.empty(); prefix.pop_back()) prefixes.insert(prefix);
  }
  return prefixes;
}

// Returns the expected result for `bytes`. Characters stay. Each longest prefix of a character and
// each other byte become one replacement character.
std::string Reference(const std::string& bytes, const std::set<std::string>& prefixes) {
  std::string out;
  for (size_t i = 0; i < bytes.size();) {
    size_t character = 0;
    size_t prefix = 1;
    for (size_t n = 1; n <= 4 && i + n <= bytes.size(); ++n) {
      if (IsCharacter(bytes.substr(i, n))) character = n;
      if (prefixes.contains(bytes.substr(i, n))) prefix = n;
    }
    out += character > 0 ? bytes.substr(i, character) : kBad;
    i += character > 0 ? character : prefix;
  }
  return out;
}

TEST(Utf8Test, KeepsEveryCharacterButNoSurrogate) {
  for (uint32_t point = 0; point <= 0x10FFFF; ++point) {
    const std::string text = Encode(point);
    ASSERT_EQ(ToValidUtf8(text) == text, !IsSurrogate(point)) << point;
  }
}

// The examples of the Unicode standard, chapter 3, tables 3-8 to 3-11.
TEST(Utf8Test, ReplacesMaximalSubparts) {
  const std::string r = kBad;
  EXPECT_EQ(ToValidUtf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(ToValidUtf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(ToValidUtf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
}

TEST(Utf8Test, HoldsBackAnIncompleteCharacter) {
  Utf8Stream stream;
  std::string out;
  stream.Append("a\xF0\x9F", out);
  EXPECT_EQ(out, "a");
  stream.Append("\x9A", out);
  EXPECT_EQ(out, "a");
  stream.Append("\x80", out);
  EXPECT_EQ(out, "a🚀");
}

TEST(Utf8Test, FlushReplacesWhatStaysIncompleteAndStartsAnew) {
  Utf8Stream stream;
  std::string out;
  stream.Append("\xE2\x82", out);
  stream.Flush(out);
  EXPECT_EQ(out, kBad);
  stream.Append("\xAC", out);  // no longer the end of the euro sign
  stream.Flush(out);
  EXPECT_EQ(out, std::string(kBad) + kBad);
}

TEST(Utf8Test, AnySplitOfAnyBytesGivesTheReferenceResult) {
  const std::set<std::string> prefixes = CharacterPrefixes();
  std::mt19937 random(1);
  // Bytes at the borders of the ranges come often.
  const std::string edges =
      "aZ\x7F\x80\x8F\x90\x9F\xA0\xBF\xC0\xC1\xC2\xDF\xE0\xE1\xEC\xED\xEE\xEF"
      "\xF0\xF1\xF3\xF4\xF5\xFF";
  for (int round = 0; round < 20000; ++round) {
    std::string bytes;
    for (size_t n = random() % 12; n > 0; --n) {
      bytes.push_back(random() % 8 == 0 ? static_cast<char>(random() % 256)
                                        : edges[random() % edges.size()]);
    }
    Utf8Stream stream;
    std::string out;
    for (size_t i = 0; i < bytes.size();) {
      const size_t n = 1 + random() % 4;
      stream.Append(absl::string_view(bytes).substr(i, n), out);
      i += n;
    }
    stream.Flush(out);
    ASSERT_EQ(out, Reference(bytes, prefixes)) << "round " << round;
    ASSERT_EQ(ToValidUtf8(bytes), out) << "round " << round;
  }
}

TEST(ShownTest, IsOneShortLineOfValidUtf8) {
  EXPECT_EQ(Shown("caf\xC3\xA9 \"x\"\n\x01"), "caf\xC3\xA9 \\\"x\\\"\\n\\x01");
  EXPECT_EQ(Shown("a\xFF"), "a\xEF\xBF\xBD");
  EXPECT_EQ(Shown("abc", 3), "abc");
  EXPECT_EQ(Shown("abcd", 3), "abc...");
  EXPECT_EQ(Shown("ab\xC3\xA9", 3), "ab\xEF\xBF\xBD...");  // without half a character
  EXPECT_EQ(Shown(std::string(201, 'x')), std::string(200, 'x') + "...");
}

}  // namespace
}  // namespace aft
