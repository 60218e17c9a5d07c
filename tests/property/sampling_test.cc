// Tests what a runner keeps of its sequences for sampling: token counts and the last token.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

// A model whose logits are the head's bias at every position.
class SamplingTest : public RunnerFixture {
 protected:
  void SetUp() override {
    Write();
    tensors_.at("head.weight").zero_();
    bias_ = random_.Normals(config_.vocab_size, 2.0);
    for (size_t i = 0; i < bias_.size(); ++i) {
      tensors_.at("head.bias")[static_cast<int64_t>(i)] = bias_[i];
    }
    Rewrite();
    runner_ = Load();
  }

  SamplingParams RandomPenalties() {
    SamplingParams params;
    params.temperature = 0;
    params.repetition_penalty = static_cast<float>(random_.Uniform(1.1, 3));
    params.presence_penalty = static_cast<float>(random_.Uniform(0, 2));
    params.frequency_penalty = static_cast<float>(random_.Uniform(0.1, 2));
    params.penalty_decay = random_.Below(2) == 0 ? 1.0F : 0.9F;
    return params;
  }

  // The greedy continuation of `prompt`, by the definition of the penalties. `sampled` are tokens
  // of the output so far; the result has them and `count` tokens in total.
  std::vector<TokenId> Naive(const std::vector<TokenId>& prompt, const SamplingParams& params,
                             int64_t count, std::vector<TokenId> sampled = {}) const {
    while (static_cast<int64_t>(sampled.size()) < count) {
      std::vector<double> logits(bias_.begin(), bias_.end());
      for (size_t i = 0; i < logits.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        double times = 0;
        for (const TokenId token : sampled) {
          times = times * double{params.penalty_decay} + (token == id ? 1 : 0);
        }
        if (times > 0 || std::count(prompt.begin(), prompt.end(), id) > 0) {
          const double penalty = double{params.repetition_penalty};
          logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
        }
        logits[i] -= double{params.frequency_penalty} * times;
        if (times > 0) logits[i] -= double{params.presence_penalty};
      }
      const auto best = std::max_element(logits.begin(), logits.end());
      sampled.push_back(static_cast<TokenId>(best - logits.begin()));
    }
    return sampled;
  }

  static std::vector<TokenId> Ids(const std::vector<SampledToken>& tokens) {
    std::vector<TokenId> ids;
    for (const SampledToken& token : tokens) ids.push_back(token.id);
    return ids;
  }

  // Samples `count` more tokens. Each is fed as kLastSampled.
  static std::vector<TokenId> ContinueBlindly(ModelRunner& runner, int32_t slot, int64_t position,
                                              int64_t count) {
    std::vector<TokenId> ids;
    while (static_cast<int64_t>(ids.size()) < count) {
      const StepRow row = {slot, position++, {kLastSampled}, RowOutput::kLast};
      const StepOutput output = Step(runner, {{row}});
      if (output.sampled.empty()) break;
      ids.push_back(output.sampled[0].id);
    }
    return ids;
  }

  void ExpectRefused(const StepRow& row, const std::string& why) {
    EXPECT_THAT(runner_->Submit({{row}}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }

  std::vector<float> bias_;
  std::unique_ptr<ModelRunner> runner_;
};

TEST_F(SamplingTest, PenaltiesCountPromptAndOutputHoweverThePromptWasCut) {
  for (int round = 0; round < 5; ++round) {
    // Half of the prompt are likely tokens.
    std::vector<TokenId> prompt = Naive({}, RandomPenalties(), 12);
    for (const TokenId token : RandomText(12)) prompt.push_back(token);
    const SamplingParams params = RandomPenalties();
    const std::vector<TokenId> expected = Naive(prompt, params, 60);
    for (const size_t chunk : {1U, 5U, 24U}) {
      EXPECT_EQ(Ids(Generate(*runner_, round, prompt, 60, params, chunk)), expected) << chunk;
    }
  }
}

TEST_F(SamplingTest, NeighboursKeepTheirOwnCounts) {
  constexpr int32_t kSequences = 6;
  std::vector<std::vector<TokenId>> prompts;
  std::vector<SamplingParams> params;
  std::vector<std::vector<TokenId>> together(kSequences);
  StepInput step;
  for (int32_t i = 0; i < kSequences; ++i) {
    prompts.push_back(RandomText(1 + random_.Below(9)));
    params.push_back(RandomPenalties());
    if (i % 3 == 0) params.back() = Greedy();  // no penalties, no counts
    Bind(*runner_, i, params.back());
    step.rows.push_back({i, 0, prompts.back(), RowOutput::kLast});
  }
  for (int n = 0; n < 30; ++n) {
    const StepOutput output = Step(*runner_, step);
    ASSERT_EQ(output.sampled.size(), static_cast<size_t>(kSequences));
    for (size_t i = 0; i < kSequences; ++i) {
      step.rows[i].first_position += static_cast<int64_t>(step.rows[i].tokens.size());
      step.rows[i].tokens = {kLastSampled};
      together[i].push_back(output.sampled[i].id);
    }
  }
  for (size_t i = 0; i < kSequences; ++i) {
    EXPECT_EQ(together[i], Naive(prompts[i], params[i], 30)) << i;
  }
}

// The greedy choice obeys the rules, in whichever slot the sequence continues.
TEST_F(SamplingTest, RulesComeWithTheTermsOfTheSlot) {
  auto rules = std::make_shared<LogitRules>();
  // The best token is banned at first; from output 4 on it is chosen.
  const auto greedy =
      static_cast<TokenId>(std::max_element(bias_.begin(), bias_.end()) - bias_.begin());
  const TokenId other = greedy == 0 ? 1 : 0;
  rules->rules = {{.id = std::min(greedy, other)}, {.id = std::max(greedy, other)}};
  rules->rules[greedy < other ? 0 : 1].ends = 1;
  rules->only_these = true;
  SamplingParams params = Greedy();
  params.rules = rules;
  params.ends_from = 4;
  const std::vector<TokenId> expected = {other, other, other, other, greedy, greedy};
  const std::vector<TokenId> prompt = RandomText(5);
  EXPECT_EQ(Ids(Generate(*runner_, 0, prompt, 6, params, 64)), expected);

  EXPECT_EQ(Ids(Generate(*runner_, 0, prompt, 2, params, 64)),
            std::vector<TokenId>(expected.begin(), expected.begin() + 2));
  const std::vector<TokenId> rest(expected.begin() + 2, expected.end());
  const std::string snapshot = SnapshotOf(*runner_, 0);
  const auto go_on = [&](const StateSource& from, const SamplingParams& terms, int64_t count) {
    Bind(*runner_, 2, from, {terms, /*output_index=*/2});
    return Ids(Continue(*runner_, 2, 6, other, count));
  };
  EXPECT_EQ(go_on(ForkOf{0}, params, 4), rest);
  EXPECT_EQ(go_on(snapshot, Greedy(), 1), std::vector<TokenId>{greedy}) << "without rules";
  EXPECT_EQ(go_on(snapshot, params, 4), rest);
  Bind(*runner_, 2, ForkOf{2}, {params, /*output_index=*/3});
  const StepOutput output = Step(*runner_, {{{2, 10, {0}, RowOutput::kLast}}});
  EXPECT_EQ(output.sampled[0].id, other) << "output 3";
  // The next sequence in the slot has no rules.
  EXPECT_EQ(Ids(Generate(*runner_, 0, prompt, 1, Greedy(), 64)), std::vector<TokenId>{greedy});
}

TEST_F(SamplingTest, ASequenceMovesWithItsTokenCounts) {
  const SamplingParams params = RandomPenalties();
  const std::vector<TokenId> prompt = RandomText(7);
  const std::vector<TokenId> expected = Naive(prompt, params, 40);
  const std::vector<SampledToken> begun = Generate(*runner_, 0, prompt, 10, params, 64);
  Uses uses;
  uses.Add(prompt);
  const std::vector<TokenUse> had = uses.all();
  const std::vector<TokenId> sampled = Ids(begun);
  const std::string snapshot = SnapshotOf(*runner_, 0);
  const std::shared_ptr<const KeptState> kept = Keep(*runner_, 0);
  const std::vector<TokenId> rest(expected.begin() + 10, expected.end());
  for (const StateSource& from :
       {StateSource(snapshot), StateSource(kept.get()), StateSource(ForkOf{0})}) {
    // The previous content of the slot leaves no trace.
    Generate(*runner_, 1, RandomText(3), 5, RandomPenalties(), 64);
    EXPECT_EQ(Bind(*runner_, 1, from, {params, 10, had, sampled}), 16);
    EXPECT_EQ(Ids(Continue(*runner_, 1, 16, begun.back().id, 30)), rest) << from.index();
  }
  Bind(*runner_, 1, params);
  EXPECT_EQ(Ids(Generate(*runner_, 1, prompt, 10, params, 64)),
            std::vector<TokenId>(expected.begin(), expected.begin() + 10));
}

TEST_F(SamplingTest, CountsComeFromEarlierTurnsWhateverTheirOptions) {
  const std::vector<TokenId> prompt = RandomText(7);
  const std::vector<TokenId> before = Ids(Generate(*runner_, 0, prompt, 10, Warm(3), 64));
  std::vector<TokenUse> had;
  for (TokenId id = 0; id < static_cast<TokenId>(config_.vocab_size); ++id) {
    const auto times = static_cast<uint32_t>(std::count(before.begin(), before.end(), id));
    if (times > 0 || std::count(prompt.begin(), prompt.end(), id) > 0) {
      had.push_back({.id = id, .sampled = times});
    }
  }
  SamplingParams params = RandomPenalties();
  params.penalty_decay = 1;
  Bind(*runner_, 0, ForkOf{0}, {params, before.size(), had});
  const std::vector<TokenId> all = Naive(prompt, params, 40, before);
  EXPECT_EQ(Ids(Continue(*runner_, 0, 16, before.back(), 30)),
            std::vector<TokenId>(all.begin() + 10, all.end()));
  // When `had` is empty, penalties ignore all earlier tokens.
  Bind(*runner_, 0, ForkOf{0}, {params});
  EXPECT_EQ(Ids(Continue(*runner_, 0, 46, 1, 20)), Naive({1}, params, 20));
  // With a decay, penalties ignore the output of earlier turns.
  params.repetition_penalty = 1;
  params.penalty_decay = 0.9F;
  Bind(*runner_, 1, ForkOf{0}, {params, 60, had});
  EXPECT_EQ(Ids(Continue(*runner_, 1, 66, 1, 20)), Naive({}, params, 20));
}

TEST_F(SamplingTest, ATokenThatWasSampledAndDroppedCountsWhenItComesBack) {
  const SamplingParams params = RandomPenalties();
  const TokenId dropped = Generate(*runner_, 0, {1, 2}, 1, params, 64).back().id;
  const std::vector<TokenUse> had = {{.id = 1}, {.id = 2}};
  Bind(*runner_, 0, ForkOf{0}, {params, 0, had});
  ExpectRefused({0, 2, {kLastSampled}, RowOutput::kLast}, "the slot sampled, and there is none");
  EXPECT_EQ(Ids(Continue(*runner_, 0, 2, dropped, 20)), Naive({1, 2, dropped}, params, 20));
}

TEST_F(SamplingTest, OutputsOfASequenceMayBeginInTheMiddle) {
  SamplingParams params = Warm(11);
  params.temperature = 3;
  const std::vector<TokenId> whole = Ids(Generate(*runner_, 0, {1, 2}, 21, params, 64));
  Bind(*runner_, 1, NewSequence(), {params, /*output_index=*/9});
  std::vector<TokenId> begin = {1, 2};
  begin.insert(begin.end(), whole.begin(), whole.begin() + 9);
  std::vector<TokenId> rest = Ids(Step(*runner_, {{{1, 0, begin, RowOutput::kLast}}}).sampled);
  const std::vector<TokenId> more = Ids(Continue(*runner_, 1, 11, rest.at(0), 11));
  rest.insert(rest.end(), more.begin(), more.end());
  EXPECT_EQ(rest, std::vector<TokenId>(whole.begin() + 9, whole.end()));
}

TEST_F(SamplingTest, TheLastSampledTokenNeedsNoId) {
  SamplingParams params = Warm(11);
  params.temperature = 3;
  const std::vector<TokenId> prompt = RandomText(5);
  const std::vector<TokenId> expected = Ids(Generate(*runner_, 0, prompt, 21, params, 64));
  Generate(*runner_, 1, prompt, 1, params, 64);
  EXPECT_EQ(ContinueBlindly(*runner_, 1, 5, 20),
            std::vector<TokenId>(expected.begin() + 1, expected.end()));
}

TEST_F(SamplingTest, TheLastSampledTokenMustExistAndComeAlone) {
  const StepRow row = {0, 3, {kLastSampled}, RowOutput::kLast};
  Bind(*runner_, 0, Greedy());
  Step(*runner_, {{{0, 0, {1, 2, 3}, RowOutput::kNone}}});
  ExpectRefused(row, "the slot sampled, and there is none");
  Generate(*runner_, 0, {1, 2, 3}, 1, Greedy(), 64);
  StepRow two = row;
  two.tokens = {kLastSampled, 4};
  ExpectRefused(two, "in a row of one");
  two.tokens = {4, kLastSampled};
  ExpectRefused(two, "in a row of one");
  Step(*runner_, {{row}});
  Bind(*runner_, 0, Greedy());
  Step(*runner_, {{{0, 0, {1, 2, 3}, RowOutput::kNone}}});
  ExpectRefused(row, "the slot sampled, and there is none");
}

// The greedy choice obeys the bans of a row, in slots with and without rules.
TEST_F(SamplingTest, BansOfARowHoldForThatRowOnly) {
  std::vector<TokenId> ranked(bias_.size());
  for (size_t i = 0; i < ranked.size(); ++i) ranked[i] = static_cast<TokenId>(i);
  std::stable_sort(ranked.begin(), ranked.end(), [&](TokenId a, TokenId b) {
    return bias_[static_cast<size_t>(a)] > bias_[static_cast<size_t>(b)];
  });
  auto rules = std::make_shared<LogitRules>();
  for (size_t i = 10; i < 20; ++i) rules->rules.push_back({.id = ranked[i]});
  std::sort(rules->rules.begin(), rules->rules.end(),
            [](const LogitRule& a, const LogitRule& b) { return a.id < b.id; });
  for (const bool only_these : {false, true}) {
    rules->only_these = only_these;
    SamplingParams params = Greedy();
    if (only_these) params.rules = rules;
    Bind(*runner_, 0, params);
    Bind(*runner_, 1, Greedy());
    const size_t first = only_these ? 10 : 0;
    for (int64_t position = 0; position < 30; ++position) {
      StepRow row = {0, position, {1}, RowOutput::kLast};
      size_t left = first;
      if (position % 3 != 2) {
        // Bans up to 200 random tokens, and the best one.
        row.banned = RandomText(random_.Below(200));
        row.banned.push_back(ranked[first]);
        std::sort(row.banned.begin(), row.banned.end());
        row.banned.erase(std::unique(row.banned.begin(), row.banned.end()), row.banned.end());
        while (std::binary_search(row.banned.begin(), row.banned.end(), ranked[left])) ++left;
      }
      const StepOutput output = Step(*runner_, {{row, {1, position, {1}, RowOutput::kLast}}});
      ASSERT_EQ(output.sampled.size(), 2U);
      if (only_these && left >= 20) {
        EXPECT_EQ(output.sampled[0].id, kNoToken);
        break;
      }
      EXPECT_EQ(output.sampled[0].id, ranked[left]) << position;
      EXPECT_EQ(output.sampled[1].id, ranked[0]) << position;
    }
  }
}

TEST_F(SamplingTest, ARowThatBansEveryTokenSamplesNoneAndItsNeighbourSamplesOne) {
  Bind(*runner_, 0, Warm(5));
  Bind(*runner_, 1, Greedy());
  StepRow row = {0, 0, {1}, RowOutput::kLast};
  for (TokenId id = 0; id < static_cast<TokenId>(config_.vocab_size); ++id) {
    row.banned.push_back(id);
  }
  const StepOutput output = Step(*runner_, {{row, {1, 0, {1}, RowOutput::kLast}}});
  EXPECT_EQ(output.sampled.at(0).id, kNoToken);
  EXPECT_EQ(output.sampled.at(1).id, Naive({}, Greedy(), 1).front());
}

}  // namespace
}  // namespace aft
