#include "server/engine/stop_matcher.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace aft::server {
namespace {

bool EndsWith(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// The length of the longest end of `text` with which a stop string begins.
size_t Undecided(const std::string& text, const std::vector<std::string>& stops) {
  size_t longest = 0;
  for (const std::string& stop : stops) {
    for (size_t n = 1; n < stop.size(); ++n) {
      if (EndsWith(text, stop.substr(0, n))) longest = std::max(longest, n);
    }
  }
  return longest;
}

TEST(StopMatcherTest, AnySplitGivesTheReferenceResultAndHoldsBackNoMoreThanNeeded) {
  std::mt19937 random(7);
  const auto word = [&](size_t length) {
    std::string text;
    while (text.size() < length) text.push_back(static_cast<char>('a' + random() % 2));
    return text;
  };
  int matches = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::string> stops;
    for (size_t n = random() % 5; n > 0; --n) {
      stops.push_back(word(1 + random() % 7));
    }
    const std::string text = word(random() % 24);
    const bool include = random() % 2 == 0;
    const size_t ignored = round % 2 == 0 ? 0 : random() % 8;  // no match counts before

    std::string expected = text;
    std::string match;
    for (size_t end = ignored + 1; end <= text.size() && match.empty(); ++end) {
      const std::string head = text.substr(0, end);
      for (const std::string& stop : stops) {
        if (EndsWith(head, stop) && stop.size() > match.size()) match = stop;
      }
      if (!match.empty()) expected = include ? head : head.substr(0, end - match.size());
    }

    StopMatcher matcher(stops, include);
    std::string out;
    bool stopped = false;
    for (size_t i = 0; i < text.size() && !stopped;) {
      size_t n = random() % 6;
      if (i < ignored) n = std::min(n, ignored - i);
      stopped = matcher.Append(absl::string_view(text).substr(i, n), out, i >= ignored);
      i = std::min(i + n, text.size());
      if (!stopped) {
        ASSERT_EQ(out.size(), i - Undecided(text.substr(0, i), stops));
      }
    }
    if (!stopped) matcher.Flush(out);
    ASSERT_EQ(out, expected) << "round " << round;
    ASSERT_EQ(matcher.match(), match) << "round " << round;
    matches += stopped ? 1 : 0;
  }
  EXPECT_GT(matches, 1000);  // both cases were tested
  EXPECT_LT(matches, 19000);
}

}  // namespace
}  // namespace aft::server
