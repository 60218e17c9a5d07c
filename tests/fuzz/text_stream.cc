// The processing of a model's output bytes: stop strings, then UTF-8. The result equals that of
// plain loops over the whole text, however the stream was cut. Sections: a line "include" or
// "exclude", then one stop string a line; the lengths of the pieces, one character each; the bytes.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/utf8.h"
#include "model/tokenizer/utf8_character.h"
#include "server/engine/output_builder.h"
#include "server/engine/stop_matcher.h"
#include "tests/fuzz/target.h"
#include "tests/support/fake_tokenizer.h"

namespace aft::fuzz {

// A piece of one byte takes two strings and a token.
const MemoryBound kMemory = {.fixed = 1 << 20, .per_byte = 512};

namespace {

constexpr size_t kMostStopStrings = 16;  // in a request
constexpr size_t kMostStopStringBytes = 256;

bool IsCharacter(const std::string& bytes) {
  return !bytes.empty() && FirstCharacter(bytes).size == bytes.size();
}

// Returns whether more bytes can complete it to one character.
bool BeginsCharacter(const std::string& bytes, size_t more = 3) {
  if (IsCharacter(bytes)) return true;
  if (more == 0) return false;
  for (const char next : {'\x80', '\x90', '\xA0', '\xBF'}) {
    if (BeginsCharacter(bytes + next, more - 1)) return true;
  }
  return false;
}

std::string NaiveUtf8(absl::string_view bytes) {
  std::string out;
  while (!bytes.empty()) {
    size_t size = FirstCharacter(bytes).size;
    if (size > 0) {
      out.append(bytes.data(), size);
    } else {
      // A character's longest beginning, or one byte that begins none.
      size = 1;
      while (size < bytes.size() && BeginsCharacter(std::string(bytes.substr(0, size + 1)))) ++size;
      out += "\xEF\xBF\xBD";
    }
    bytes.remove_prefix(size);
  }
  return out;
}

struct Stopped {
  std::string text;
  std::string match;
};

Stopped NaiveStop(const std::string& bytes, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= bytes.size(); ++end) {
    const absl::string_view so_far = absl::string_view(bytes).substr(0, end);
    std::string match;
    for (const std::string& stop : stops) {
      if (stop.size() > match.size() && absl::EndsWith(so_far, stop)) match = stop;
    }
    if (!match.empty()) return {bytes.substr(0, include ? end : end - match.size()), match};
  }
  return {bytes, ""};
}

// Cuts `bytes` into pieces whose lengths the characters of `lengths` give, in a cycle.
std::vector<std::string> Cut(absl::string_view bytes, absl::string_view lengths) {
  std::vector<std::string> pieces;
  for (size_t i = 0; !bytes.empty(); ++i) {
    const size_t length = lengths.empty() ? 1 : lengths[i % lengths.size()] & 15;
    // Some pieces may be empty, but not all.
    const size_t least = i % 16 == 0 ? 1 : 0;
    pieces.emplace_back(bytes.substr(0, std::max(length, least)));
    bytes.remove_prefix(pieces.back().size());
  }
  return pieces;
}

void CheckUtf8(const std::string& bytes, const std::vector<std::string>& pieces) {
  std::string all;
  Utf8Stream stream;
  for (const std::string& piece : pieces) {
    std::string out;
    stream.Append(piece, out);
    AFT_CHECK(IsUtf8(out));
    all += out;
  }
  stream.Flush(all);
  AFT_CHECK(all == NaiveUtf8(bytes));
  AFT_CHECK(all == ToValidUtf8(bytes) && ToValidUtf8(all) == all);
}

void CheckStop(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
               bool include, const Stopped& expected) {
  server::StopMatcher matcher(stops, include);
  std::string out;
  bool found = false;
  for (size_t i = 0; i < pieces.size() && !found; ++i) {
    const size_t before = out.size();
    found = matcher.Append(pieces[i], out);
    // Output cannot be taken back, so it must never be more than expected.
    AFT_CHECK(expected.text.compare(before, out.size() - before, out, before) == 0);
  }
  if (!found) matcher.Flush(out);
  AFT_CHECK(found == !expected.match.empty());
  AFT_CHECK(out == expected.text && matcher.match() == expected.match);
}

void CheckOutput(const std::vector<std::string>& pieces, const std::vector<std::string>& stops,
                 bool include, const Stopped& expected) {
  if (pieces.empty()) return;
  const FakeTokenizer tokenizer(pieces);
  server::StopConditions stop;
  stop.max_tokens = static_cast<int32_t>(pieces.size());
  stop.strings = stops;
  stop.include_stop_string = include;
  server::OutputBuilder builder(tokenizer, stop, /*prompt_tokens=*/1, /*max_seq_len=*/0);
  server::Outcome outcome;
  std::string text;
  bool ended = false;
  for (size_t i = 0; !ended; ++i) {
    server::TokenDelta delta;
    SampledToken token;
    token.id = FakeTokenizer::kFirstWord + static_cast<TokenId>(i);
    ended = builder.Append(std::move(token), delta, outcome);
    AFT_CHECK(IsUtf8(delta.text));
    text += delta.text;
  }
  AFT_CHECK(text == NaiveUtf8(expected.text));
  AFT_CHECK(outcome.stop_string == expected.match);
  AFT_CHECK(outcome.reason ==
            (expected.match.empty() ? server::FinishReason::kLength : server::FinishReason::kStop));
}

}  // namespace
}  // namespace aft::fuzz

void aft::fuzz::RunInput(const uint8_t* data, size_t size) {
  using namespace aft::fuzz;
  const std::vector<absl::string_view> sections = Sections(AsText(data, size), 3);
  std::vector<std::string> stops = absl::StrSplit(sections[0], '\n');
  const bool include = stops[0] == "include";
  stops.erase(stops.begin());
  stops.resize(std::min(stops.size(), kMostStopStrings));
  for (std::string& stop : stops) stop.resize(std::min(stop.size(), kMostStopStringBytes));
  const std::string bytes(sections[2]);
  const std::vector<std::string> pieces = Cut(bytes, sections[1]);
  const Stopped expected = NaiveStop(bytes, stops, include);
  CheckUtf8(bytes, pieces);
  CheckStop(pieces, stops, include, expected);
  CheckOutput(pieces, stops, include, expected);
}
