#include "server/engine/sequence_bans.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

SequenceBans Bans(TokenSequences sequences) {
  return SequenceBans(std::make_shared<const TokenSequences>(std::move(sequences)));
}

TEST(SequenceBansTest, TheLastTokenIsBannedExactlyAfterThoseBeforeIt) {
  SequenceBans bans = Bans({{1, 2}, {3, 1, 4}, {5, 1, 4}, {1, 0}});
  EXPECT_TRUE(bans.any());
  EXPECT_THAT(bans.Next(), IsEmpty());
  bans.Append(1);
  EXPECT_THAT(bans.Next(), ElementsAre(0, 2));
  bans.Append(3);
  EXPECT_THAT(bans.Next(), IsEmpty());
  bans.Append(1);
  EXPECT_THAT(bans.Next(), ElementsAre(0, 2, 4));
  // A copy is independent.
  SequenceBans copy = bans;
  copy.Append(9);
  EXPECT_THAT(copy.Next(), IsEmpty());
  EXPECT_THAT(bans.Next(), ElementsAre(0, 2, 4));
}

TEST(SequenceBansTest, WithoutSequencesNothingIsBanned) {
  SequenceBans bans(nullptr);
  bans.Append(1);
  EXPECT_FALSE(bans.any());
  EXPECT_THAT(bans.Next(), IsEmpty());
}

TEST(SequenceBansTest, AgreesWithASearchInTheWholeOutput) {
  TestRandom random;
  for (int round = 0; round < 200; ++round) {
    TokenSequences sequences(static_cast<size_t>(1 + random.Below(6)));
    for (auto& sequence : sequences) {
      for (int64_t length = 2 + random.Below(4); length > 0; --length) {
        sequence.push_back(static_cast<TokenId>(random.Below(3)));
      }
    }
    SequenceBans bans = Bans(sequences);
    std::vector<TokenId> output;
    for (int i = 0; i < 60; ++i) {
      std::vector<TokenId> expected;
      for (TokenId next = 0; next < 3; ++next) {
        std::vector<TokenId> longer = output;
        longer.push_back(next);
        const bool bad = std::any_of(sequences.begin(), sequences.end(), [&](const auto& sequence) {
          return longer.size() >= sequence.size() &&
                 std::equal(sequence.rbegin(), sequence.rend(), longer.rbegin());
        });
        if (bad) expected.push_back(next);
      }
      ASSERT_EQ(bans.Next(), expected) << i;
      output.push_back(static_cast<TokenId>(random.Below(3)));
      bans.Append(output.back());
    }
  }
}

TEST(SequenceBansTest, KnowsWhereNoTokenIsLeft) {
  constexpr TokenId kVocab = 4;
  TestRandom random;
  int none = 0;
  for (int round = 0; round < 2000; ++round) {
    LogitRules rules;
    rules.only_these = random.Below(2) == 0;
    std::vector<TokenId> banned;
    for (TokenId id = 0; id < kVocab; ++id) {
      if (random.Below(2) == 0) {
        rules.rules.push_back({.id = id,
                               .bias = random.Below(2) == 0 ? kBannedBias : 1.0F,
                               .ends = random.Below(2) == 0 ? 1U : 0U});
      }
      if (random.Below(2) == 0) banned.push_back(id);
    }
    const bool early = random.Below(2) == 0;
    bool left = false;
    for (TokenId id = 0; id < kVocab; ++id) {
      const auto rule = std::find_if(rules.rules.begin(), rules.rules.end(),
                                     [&](const LogitRule& one) { return one.id == id; });
      const bool listed = rule != rules.rules.end();
      const bool out =
          listed ? rule->bias == kBannedBias || (early && rule->ends != 0) : rules.only_these;
      left = left || (!out && std::count(banned.begin(), banned.end(), id) == 0);
    }
    none += left ? 0 : 1;
    ASSERT_EQ(LeaveNoToken(&rules, early, banned, kVocab), !left);
    ASSERT_EQ(LeaveNoToken(nullptr, early, banned, kVocab), banned.size() == size_t{kVocab});
  }
  EXPECT_GT(none, 100);
}

}  // namespace
}  // namespace aft::server
