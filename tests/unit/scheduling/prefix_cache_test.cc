#include "server/scheduling/prefix_cache.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"

namespace aft::server {
namespace {

using Tokens = std::vector<TokenId>;
using Found = PrefixCache::Found;
using State = std::shared_ptr<const KeptState>;

constexpr PrefixCache::Key kAnn = {.client = "ann", .salt = ""};
constexpr PrefixCache::Key kBob = {.client = "bob", .salt = ""};

// `count` tokens that count up from `first`.
Tokens Text(TokenId first, int64_t count) {
  Tokens text(static_cast<size_t>(count));
  std::iota(text.begin(), text.end(), first);
  return text;
}
Tokens Joined(Tokens text, const Tokens& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

// A state with a label.
struct Kept final : KeptState {
  int64_t bytes() const override { return size; }
  absl::StatusOr<std::string> Snapshot() const override { return of; }
  std::string of;
  int64_t size = 0;
};
State Make(const std::string& of, int64_t bytes) {
  auto kept = std::make_shared<Kept>();
  kept->of = of;
  kept->size = bytes;
  return kept;
}

class PrefixCacheTest : public testing::Test {
 protected:
  // Keeps a state of `bytes` bytes at that position of the text.
  void Keep(PrefixCache::Key key, const Tokens& text, int64_t position, int64_t bytes = 1000,
            bool used = false) {
    PrefixCache::Node* const held = cache_.Hold(key, text);
    ASSERT_NE(held, nullptr);
    cache_.Keep(held, position, used, [&] {
      ++taken_;
      return Make(absl::StrCat(key.client, key.salt, " ", position), bytes);
    });
    cache_.LetGo(held);
  }
  int64_t PositionOf(PrefixCache::Key key, const Tokens& text) {
    return cache_.Find(key, text, static_cast<int64_t>(text.size()) - 1).position;
  }
  void Use(PrefixCache::Key key, const Tokens& text) {
    ASSERT_NE(PositionOf(key, text), 0);
    cache_.Use();
  }

  static constexpr int64_t kRoom = 1 << 20;
  PrefixCache cache_{kRoom};
  int taken_ = 0;
};

TEST_F(PrefixCacheTest, OnlyTheSameClientWithTheSameSaltFindsAnything) {
  const Tokens text = Text(0, 100);
  Keep({.client = "ann", .salt = "s"}, text, 64);
  EXPECT_EQ(PositionOf({.client = "ann", .salt = "s"}, text), 64);
  for (const PrefixCache::Key& key : {kAnn, kBob, PrefixCache::Key{.client = "ann", .salt = "t"},
                                      PrefixCache::Key{.client = "anns", .salt = ""},
                                      PrefixCache::Key{.client = "", .salt = "anns"},
                                      PrefixCache::Key{.client = "an", .salt = "ns"}}) {
    const Found found = cache_.Find(key, text, 99);
    EXPECT_EQ(found.known, 0);
    EXPECT_EQ(found.kept, nullptr);
  }
}

TEST_F(PrefixCacheTest, StatesKeepTheirDistance) {
  const Tokens text = Text(0, 300);
  Keep(kAnn, text, 100);
  EXPECT_EQ(taken_, 1);
  Keep(kAnn, text, 100);
  Keep(kAnn, text, 131);
  EXPECT_EQ(taken_, 1);
  Keep(kAnn, text, 132);
  EXPECT_EQ(taken_, 2);
  EXPECT_EQ(cache_.states(), 2);
  EXPECT_EQ(cache_.deepest(), 132);
}

TEST_F(PrefixCacheTest, KeepsAStateAfterATextAndMoreTokens) {
  const Tokens text = Text(0, 100);
  const Tokens answer = Text(500, 40);
  PrefixCache::Node* const held = cache_.Hold(kAnn, text);
  cache_.KeepBehind(held, answer, [] { return Make("behind", 1000); });
  cache_.LetGo(held);
  const Tokens whole = Joined(text, answer);
  EXPECT_EQ(PositionOf(kAnn, Joined(whole, {7})), 140);
  EXPECT_EQ(cache_.Find(kAnn, whole, 139).position, 0);
  EXPECT_EQ(cache_.Find(kAnn, whole, 139).known, 140);
}

TEST_F(PrefixCacheTest, AStateThatIsNotTakenLeavesItsTextOnly) {
  PrefixCache::Node* const held = cache_.Hold(kAnn, Text(0, 100));
  cache_.Keep(held, 50, false, [] { return nullptr; });
  cache_.LetGo(held);
  EXPECT_EQ(cache_.states(), 0);
  EXPECT_EQ(cache_.Find(kAnn, Text(0, 100), 99).known, 100);
}

TEST_F(PrefixCacheTest, AnEvictedStateIsRemembered) {
  const Tokens text = Text(0, 100);
  Keep(kAnn, text, 64, 400'000);
  Keep(kAnn, Text(1000, 100), 64, 400'000);
  EXPECT_EQ(cache_.evictions(), 0);
  Keep(kAnn, Text(2000, 100), 64, 400'000);  // the first one is the least recently used
  EXPECT_EQ(cache_.evictions(), 1);
  const Found gone = cache_.Find(kAnn, text, 99);
  EXPECT_EQ(gone.kept, nullptr);
  EXPECT_TRUE(gone.evicted);
  EXPECT_FALSE(cache_.Find(kAnn, text, 63).evicted);
  EXPECT_FALSE(cache_.Find(kAnn, Joined(Text(0, 63), Text(800, 40)), 99).evicted);
  Keep(kAnn, text, 64);
  EXPECT_FALSE(cache_.Find(kAnn, text, 99).evicted);
}

TEST_F(PrefixCacheTest, AUsedStateSurvivesAnyNumberOfUnusedOnes) {
  const Tokens hot = Text(0, 100);
  Keep(kAnn, hot, 64, 50'000);
  Use(kAnn, hot);
  for (int i = 1; i < 3000; ++i) {
    const std::string client = absl::StrCat("c", i % 3 == 0 ? i : 0);  // c0, or a new client
    Keep(i % 2 == 0 ? kAnn : PrefixCache::Key{.client = client, .salt = ""}, Text(1000 * i, 100),
         64, 50'000);
    ASSERT_LE(cache_.bytes(), kRoom);
  }
  EXPECT_GT(cache_.evictions(), 2000);
  EXPECT_EQ(PositionOf(kAnn, hot), 64);
}

TEST_F(PrefixCacheTest, LongTextsWithoutStatesEvictNoStates) {
  const Tokens hot = Text(0, 100);
  Keep(kAnn, hot, 64, 50'000);
  Keep(kBob, hot, 64, 50'000);  // never used
  for (int i = 1; i < 200; ++i) {
    PrefixCache::Node* const held = cache_.Hold(kAnn, Text(100'000 * i, 25'000));
    ASSERT_NE(held, nullptr);
    cache_.LetGo(held);
    ASSERT_LE(cache_.bytes(), kRoom);
  }
  EXPECT_EQ(cache_.evictions(), 0);
  EXPECT_EQ(PositionOf(kAnn, hot), 64);
  EXPECT_EQ(PositionOf(kBob, hot), 64);
  EXPECT_EQ(cache_.Find(kAnn, Text(100'000, 25'000), 24'999).known, 0);  // forgotten
}

TEST_F(PrefixCacheTest, AClientThatUsesMuchLeavesOthersTheirShare) {
  for (int i = 0; i < 4; ++i) {
    Keep(kBob, Text(1000 * i, 100), 64, 50'000);
    Use(kBob, Text(1000 * i, 100));
  }
  for (int i = 0; i < 500; ++i) {
    Keep(kAnn, Text(1000 * i, 100), 64, 50'000);
    Use(kAnn, Text(1000 * i, 100));
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(PositionOf(kBob, Text(1000 * i, 100)), 64) << i;
  // Ann has all of the other room.
  EXPECT_GT(cache_.states(), 15);
}

TEST_F(PrefixCacheTest, TheLeastRecentlyUsedStateIsEvictedFirst) {
  for (int i = 0; i < 13; ++i) {
    Keep(kAnn, Text(1000 * i, 100), 64, 50'000);
    Use(kAnn, Text(1000 * i, 100));
  }
  Use(kAnn, Text(0, 100));
  for (int i = 100; i < 120; ++i) Keep(kAnn, Text(1000 * i, 100), 64, 50'000, /*used=*/true);
  for (int i = 100; i < 110; ++i) Use(kAnn, Text(1000 * i, 100));
  EXPECT_EQ(PositionOf(kAnn, Text(1000, 100)), 0);
  EXPECT_EQ(PositionOf(kAnn, Text(109'000, 100)), 64);
}

TEST_F(PrefixCacheTest, AStateOfMoreThanHalfIsNotKept) {
  EXPECT_TRUE(cache_.Fits(1 << 19));
  EXPECT_FALSE(cache_.Fits((1 << 19) + 1));
  Keep(kAnn, Text(0, 100), 64);
  Keep(kAnn, Text(1000, 100), 64, (1 << 19) + 1);
  EXPECT_EQ(cache_.states(), 1);
  EXPECT_EQ(cache_.evictions(), 0);
}

TEST_F(PrefixCacheTest, TextsThatAreHeldStayAndAreBounded) {
  std::vector<PrefixCache::Node*> held;
  int64_t refused = 0;
  for (int i = 0; i < 100; ++i) {
    PrefixCache::Node* const text = cache_.Hold(kAnn, Text(100'000 * i, 5'000));
    text != nullptr ? held.push_back(text) : void(++refused);
  }
  EXPECT_EQ(held.size(), 6U);  // an eighth of the capacity
  EXPECT_EQ(refused, 94);
  for (size_t i = 0; i < held.size(); ++i) {
    EXPECT_EQ(cache_.Find(kAnn, Text(100'000 * static_cast<TokenId>(i), 5'000), 1).known, 5'000);
  }
  // A beginning that texts share counts once.
  for (int i = 0; i < 20; ++i) {
    held.push_back(cache_.Hold(kAnn, Joined(Text(0, 5'000), {-i})));
    ASSERT_NE(held.back(), nullptr);
  }
  EXPECT_EQ(cache_.Hold(kAnn, Text(0, 1 << 17)), nullptr);
  for (PrefixCache::Node* text : held) cache_.LetGo(text);
  EXPECT_NE(cache_.Hold(kAnn, Text(9'900'000, 5'000)), nullptr);
}

TEST_F(PrefixCacheTest, SaltsThatNeverRepeatLeaveNothingBehind) {
  for (int i = 0; i < 5'000; ++i) {
    const std::string salt = absl::StrCat("salt ", i);
    Keep({.client = "ann", .salt = salt}, Text(0, 40), 32, 100);
    ASSERT_LE(cache_.bytes(), kRoom);
  }
  EXPECT_LT(cache_.states(), 1200);
}

// A text may be cut into as many nodes as it has tokens, so the cache must not recurse.
TEST(PrefixCacheDepthTest, ATrieMayBeDeep) {
  PrefixCache cache(int64_t{1} << 30);
  Tokens text;
  for (int i = 0; i < 5'000; ++i) text.push_back(i);
  PrefixCache::Node* const held = cache.Hold(kAnn, text);
  ASSERT_NE(held, nullptr);
  for (int64_t at = 5'000; at > 0; --at) {
    cache.Keep(held, at, false, [] { return nullptr; });
  }
  EXPECT_GT(cache.bytes(), 5'000 * PrefixCache::kNodeBytes);
  EXPECT_EQ(cache.Find(kAnn, text, 1).known, 5'000);
  cache.LetGo(held);
}

TEST(PrefixCacheDepthTest, WithoutCapacityNothingIsKept) {
  PrefixCache cache(0);
  EXPECT_EQ(cache.Hold(kAnn, Text(0, 100)), nullptr);
  EXPECT_EQ(cache.Find(kAnn, Text(0, 100), 99).known, 0);
  EXPECT_EQ(cache.bytes(), 0);
}

// Compares the cache with a list of all texts that were ever held. If there is room for all, the
// two agree. If not, each state that is found is the one that was kept there.
TEST(PrefixCachePropertyTest, AgreesWithAListOfTexts) {
  TestRandom random;
  int64_t evictions = 0;
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    const bool roomy = round % 2 == 0;
    const int64_t room = roomy ? int64_t{1} << 28 : 20'000 + random.Below(300'000);
    PrefixCache cache(room);
    std::map<std::string, std::vector<Tokens>> texts;       // by partition
    std::map<std::string, std::map<Tokens, State>> states;  // all that were ever kept
    std::vector<std::pair<PrefixCache::Node*, std::pair<std::string, Tokens>>> held;
    for (int turn = 0; turn < 400; ++turn) {
      const std::string client = absl::StrCat("c", random.Below(2));
      const std::string salt = absl::StrCat("s", random.Below(2));
      const PrefixCache::Key key = {.client = client, .salt = salt};
      const std::string name = client + salt;
      // Texts have few different tokens, so that they share beginnings.
      Tokens text;
      if (!texts[name].empty() && random.Below(3) != 0) {
        text = texts[name]
                    [static_cast<size_t>(random.Below(static_cast<int64_t>(texts[name].size())))];
        text.resize(static_cast<size_t>(1 + random.Below(static_cast<int64_t>(text.size()))));
      }
      for (int64_t i = random.Below(150); i >= 0; --i) {
        text.push_back(static_cast<TokenId>(random.Below(3)));
      }
      const auto length = static_cast<int64_t>(text.size());
      const int64_t limit = random.Below(length + 1);
      const Found found = cache.Find(key, text, limit);
      int64_t known = 0;
      for (const Tokens& other : texts[name]) {
        const auto end = std::mismatch(text.begin(), text.end(), other.begin(), other.end());
        known = std::max<int64_t>(known, end.first - text.begin());
      }
      int64_t position = 0;
      for (const auto& [prefix, state] : states[name]) {
        const auto size = static_cast<int64_t>(prefix.size());
        if (size > limit || size <= position) continue;
        if (!std::equal(prefix.begin(), prefix.end(), text.begin())) continue;
        position = size;
      }
      if (roomy) {
        ASSERT_EQ(found.known, known);
        ASSERT_EQ(found.position, position);
        ASSERT_FALSE(found.evicted);
      } else {
        ASSERT_LE(found.known, known);
        ASSERT_LE(found.position, std::min(found.known, position));
        ASSERT_TRUE(!found.evicted || position > 0);
      }
      for (const auto& [node, whose] : held) {
        const auto end =
            std::mismatch(text.begin(), text.end(), whose.second.begin(), whose.second.end());
        ASSERT_EQ(cache.Shared(node), whose.first == name ? end.first - text.begin() : 0);
      }
      if (found.kept != nullptr) {
        const Tokens prefix(text.begin(), text.begin() + found.position);
        ASSERT_EQ(found.kept, states[name][prefix]);
        if (random.Below(4) != 0) cache.Use();
      }
      PrefixCache::Node* const node = cache.Hold(key, text);
      ASSERT_TRUE(node != nullptr || !roomy);
      texts[name].push_back(text);
      if (node == nullptr) continue;
      for (int64_t cuts = random.Below(3); cuts > 0; --cuts) {
        const int64_t at = 1 + random.Below(length);
        cache.Keep(node, at, random.Below(2) == 0, [&] {
          const Tokens prefix(text.begin(), text.begin() + at);
          states[name][prefix] = Make(name, 2000);
          return states[name][prefix];
        });
        ASSERT_LE(cache.bytes(), room);
      }
      if (random.Below(2) == 0) {
        Tokens more;
        for (int64_t i = random.Below(60); i > 0; --i) {
          more.push_back(static_cast<TokenId>(random.Below(3)));
        }
        const Tokens whole = Joined(text, more);
        if (roomy) texts[name].push_back(whole);
        cache.KeepBehind(node, more, [&] {
          states[name][whole] = Make(name, 2000);
          return states[name][whole];
        });
        if (!roomy) texts[name].push_back(whole);
      }
      held.push_back({node, {name, text}});
      while (static_cast<int64_t>(held.size()) > random.Below(6)) {
        const auto gone = held.begin() + random.Below(static_cast<int64_t>(held.size()));
        cache.LetGo(gone->first);
        held.erase(gone);
      }
      ASSERT_LE(cache.bytes(), room);
    }
    for (const auto& [node, whose] : held) cache.LetGo(node);
    evictions += cache.evictions();
    if (roomy) {
      EXPECT_EQ(cache.evictions(), 0);
    }
  }
  EXPECT_GT(evictions, 500);
}

}  // namespace
}  // namespace aft::server
