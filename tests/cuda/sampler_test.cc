// Compares the device's sampler with the CPU's: equal logits must give equal tokens.

#include "model/kernels/cuda/sampler/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/sampling/sampler.h"
#include "model/sampling/token_counts.h"
#include "tests/cuda/device_array.h"
#include "tests/property/random_inputs.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

namespace cuda = kernels::cuda;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kLargest = std::numeric_limits<float>::max();
constexpr int32_t kUnwritten = -1094795586;

// One sequence: its row of logits and the sampling data of its slot.
struct Sequence {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenCount> counts;
  uint64_t output_index = 0;
  TokenId target = kNoToken;

  std::string Name() const {
    return absl::StrCat(logits.size(), " tokens, temperature ", params.temperature, ", top_k ",
                        params.top_k, ", top_p ", params.top_p, ", min_p ", params.min_p,
                        ", repetition ", params.repetition_penalty, ", presence ",
                        params.presence_penalty, ", frequency ", params.frequency_penalty,
                        ", decay ", params.penalty_decay, params.temperature_last ? ", last" : "",
                        ", top_logprobs ", params.top_logprobs, ", target ", target, ", rules ",
                        params.rules == nullptr ? 0 : params.rules->rules.size());
  }
};

// The results of a batch, by sequence.
struct Result {
  std::vector<SampledToken> tokens;
  std::vector<std::vector<TokenCount>> counts;
  std::vector<TokenId> last_sampled;
};

// Runs the sequences as one batch, each in its own slot, in another order and with padding rows
// between them. There are `gap` numbers between rows of logits, which must not affect the results.
Result OnDevice(TestRandom& random, const std::vector<Sequence>& sequences, int64_t gap) {
  const size_t count = sequences.size();
  const size_t vocab = sequences.at(0).logits.size();
  const size_t stride = vocab + static_cast<size_t>(gap);
  const size_t rows = 2 * count;
  std::vector<int32_t> slot_of(count);
  std::iota(slot_of.begin(), slot_of.end(), 0);
  for (size_t i = count; i > 1; --i) {
    std::swap(slot_of[i - 1], slot_of[static_cast<size_t>(random.Below(static_cast<int64_t>(i)))]);
  }
  std::vector<cuda::SlotSampling> params(count);
  std::vector<TokenCount> counts(count * vocab);
  // The rules in the memory of a slot without rules must not affect it.
  std::vector<LogitRule> rules(count * kMaxLogitRules, {.id = 0, .bias = kBannedBias});
  std::vector<int32_t> slots(rows, -1);
  std::vector<uint64_t> indexes(rows, 77);
  std::vector<int32_t> targets(rows, kNoToken);
  std::vector<float> logits(rows * stride, kLargest);
  std::vector<size_t> row_of(count);
  for (size_t i = 0; i < count; ++i) {
    const Sequence& sequence = sequences[i];
    const auto slot = static_cast<size_t>(slot_of[i]);
    params[slot] = cuda::ForDevice(sequence.params);
    if (sequence.params.rules != nullptr) {
      const std::vector<LogitRule>& own = sequence.params.rules->rules;
      std::copy(own.begin(), own.end(),
                rules.begin() + static_cast<int64_t>(slot) * kMaxLogitRules);
    }
    std::copy(sequence.counts.begin(), sequence.counts.end(),
              counts.begin() + static_cast<int64_t>(slot * vocab));
    const size_t row = 2 * i + static_cast<size_t>(random.Below(2));
    row_of[i] = row;
    slots[row] = slot_of[i];
    indexes[row] = sequence.output_index;
    targets[row] = sequence.target;
    std::copy(sequence.logits.begin(), sequence.logits.end(),
              logits.begin() + static_cast<int64_t>(row * stride));
  }
  const DeviceArray<cuda::SlotSampling> device_params(params);
  const DeviceArray<TokenCount> device_counts(counts);
  const DeviceArray<LogitRule> device_rules(rules);
  const DeviceArray<int32_t> last_sampled(std::vector<int32_t>(count, kUnwritten));
  const DeviceArray<int32_t> device_slots(slots);
  const DeviceArray<uint64_t> device_indexes(indexes);
  const DeviceArray<int32_t> device_targets(targets);
  const DeviceArray<float> device_logits(logits);
  const DeviceArray<int32_t> ids(std::vector<int32_t>(rows, kUnwritten));
  const DeviceArray<float> logprobs(std::vector<float>(rows, kNan));
  const DeviceArray<int32_t> top_ids(std::vector<int32_t>(rows * kMaxTopLogprobs, kUnwritten));
  const DeviceArray<float> top_logprobs(std::vector<float>(rows * kMaxTopLogprobs, kNan));
  const bool scores = std::any_of(targets.begin(), targets.end(), [](TokenId t) { return t >= 0; });
  EXPECT_EQ(cuda::Sample({static_cast<int64_t>(vocab), device_params.get(), device_counts.get(),
                          last_sampled.get(), device_rules.get()},
                         {static_cast<int64_t>(rows), device_slots.get(), device_indexes.get(),
                          scores ? device_targets.get() : nullptr},
                         device_logits.get(), static_cast<int64_t>(stride),
                         {ids.get(), logprobs.get(), top_ids.get(), top_logprobs.get()}, nullptr),
            0);
  Result result;
  const std::vector<int32_t> id = ids.Get();
  const std::vector<float> logprob = logprobs.Get();
  const std::vector<int32_t> top_id = top_ids.Get();
  const std::vector<float> top_logprob = top_logprobs.Get();
  const std::vector<TokenCount> counts_after = device_counts.Get();
  const std::vector<int32_t> last_after = last_sampled.Get();
  for (size_t i = 0; i < count; ++i) {
    const size_t row = row_of[i];
    SampledToken token;
    token.id = id[row];
    token.logprob = logprob[row];
    bool ended = false;
    for (size_t j = row * kMaxTopLogprobs; j < (row + 1) * kMaxTopLogprobs; ++j) {
      EXPECT_FALSE(ended && top_id[j] != kNoToken) << sequences[i].Name();
      ended = top_id[j] == kNoToken;
      if (!ended) token.top.push_back({top_id[j], top_logprob[j]});
    }
    result.tokens.push_back(token);
    const auto slot = static_cast<size_t>(slot_of[i]);
    result.counts.emplace_back(counts_after.begin() + static_cast<int64_t>(slot * vocab),
                               counts_after.begin() + static_cast<int64_t>((slot + 1) * vocab));
    result.last_sampled.push_back(last_after[slot]);
    // The padding row next to it was not written.
    const size_t padding = row ^ 1;
    EXPECT_EQ(id[padding], kUnwritten);
    EXPECT_TRUE(std::isnan(logprob[padding]));
    for (size_t j = padding * kMaxTopLogprobs; j < (padding + 1) * kMaxTopLogprobs; ++j) {
      EXPECT_EQ(top_id[j], kUnwritten);
      EXPECT_TRUE(std::isnan(top_logprob[j]));
    }
  }
  return result;
}

SampledToken OnCpu(const Sequence& sequence, const SamplingParams& params) {
  Sampler sampler;
  SampledToken token;
  const auto vocab = static_cast<int64_t>(sequence.logits.size());
  const absl::Status status =
      sequence.target < 0 ? sampler.Sample(sequence.logits.data(), vocab, params,
                                           sequence.counts.data(), sequence.output_index, &token)
                          : sampler.Score(sequence.logits.data(), vocab, sequence.target,
                                          std::max(params.top_logprobs, 0), &token);
  if (!status.ok()) return {kNoToken, 0.0F, {}};
  return token;
}

// Returns whether the CPU samples `id` with a top_p that differs by a factor of 1 +- 1e-6. Rounding
// decides whether a token is kept where the probabilities up to it sum to nearly top_p.
bool FollowsFromNearby(const Sequence& sequence, TokenId id) {
  for (const float factor : {1.0F - 1e-6F, 1.0F + 1e-6F}) {
    SamplingParams params = sequence.params;
    if (params.top_p >= 1.0F) continue;
    params.top_p *= factor;
    if (OnCpu(sequence, params).id == id) return true;
  }
  return false;
}

bool Near(float a, float b) {
  const double allowed = tolerance::kTwoFp32.each * std::max(1.0F, std::abs(b));
  return a == b || std::abs(a - b) <= allowed;
}

void ExpectEqualToCpu(const std::vector<Sequence>& sequences, const Result& result) {
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& sequence = sequences[i];
    const SampledToken expected = OnCpu(sequence, sequence.params);
    const SampledToken& token = result.tokens[i];
    if (token.id != expected.id) {
      EXPECT_TRUE(FollowsFromNearby(sequence, token.id))
          << sequence.Name() << ": " << token.id << " instead of " << expected.id;
    } else {
      EXPECT_TRUE(Near(token.logprob, expected.logprob))
          << sequence.Name() << ": " << token.logprob << " instead of " << expected.logprob;
    }
    ASSERT_EQ(token.top.size(), expected.top.size()) << sequence.Name();
    for (size_t j = 0; j < token.top.size(); ++j) {
      EXPECT_EQ(token.top[j].id, expected.top[j].id) << sequence.Name() << ", alternative " << j;
      EXPECT_TRUE(Near(token.top[j].logprob, expected.top[j].logprob))
          << sequence.Name() << ": " << token.top[j].logprob << " instead of "
          << expected.top[j].logprob;
    }
    std::vector<TokenCount> counts = sequence.counts;
    const bool draws = sequence.target < 0 && token.id >= 0;
    if (draws) CountSample(sequence.params, token.id, sequence.output_index, counts.data());
    EXPECT_EQ(result.counts[i], counts) << sequence.Name();
    EXPECT_EQ(result.last_sampled[i], draws ? token.id : kUnwritten) << sequence.Name();
  }
}

class CudaSamplerTest : public testing::Test {
 protected:
  // Returns 20 times `rounds` when AFT_CUDA_FULL is set.
  static int Rounds(int rounds) {
    return std::getenv("AFT_CUDA_FULL") == nullptr ? rounds : 20 * rounds;
  }

  std::vector<float> RandomLogits(int64_t vocab) {
    const double spread = std::vector<double>{0.1, 2.0, 5.0, 40.0}[Pick(4)];
    const double mean = std::vector<double>{0.0, -60.0, 15.0}[Pick(3)];
    std::vector<float> logits = random_.Normals(vocab, spread);
    for (float& logit : logits) logit += static_cast<float>(mean);
    switch (Pick(6)) {
      case 0:  // many ties
        for (float& logit : logits) logit = std::round(logit);
        break;
      case 1:  // one logit outweighs all others
        logits[Pick(vocab)] += 30.0F;
        break;
      case 2:  // all logits but one are equal
        std::fill(logits.begin(), logits.end(), 1.5F);
        logits[Pick(vocab)] = 2.0F;
        break;
      default:
        break;
    }
    return logits;
  }

  // Replaces some or most logits by NaN, infinities and other extreme numbers.
  void Spoil(std::vector<float>* logits) {
    const std::vector<float> extremes = {kNan,      -kInfinity, kInfinity, -kLargest,
                                         -kLargest, 0.0F,       -0.0F,     1e-45F};
    const int64_t one_in = std::vector<int64_t>{1, 2, 10}[Pick(3)];
    const size_t kinds = Pick(static_cast<int64_t>(extremes.size())) + 1;
    for (float& logit : *logits) {
      if (random_.Below(one_in) == 0) logit = extremes[Pick(static_cast<int64_t>(kinds))];
    }
  }

  SamplingParams RandomParams(int64_t vocab) {
    SamplingParams params;
    params.temperature = static_cast<float>(random_.Uniform(0.1, 3.0));
    if (Pick(5) == 0) params.temperature = 0.0F;
    if (Pick(8) == 0) params.temperature = std::vector<float>{1e-30F, 1e-4F, 100.0F}[Pick(3)];
    if (Pick(2) == 0) params.top_k = static_cast<int32_t>(random_.Below(vocab + 3));
    if (Pick(4) == 0) params.top_k = static_cast<int32_t>(random_.Below(51));
    if (Pick(2) == 0) params.top_p = static_cast<float>(random_.Uniform(0.01, 1.0));
    if (Pick(8) == 0) params.top_p = 1e-9F;
    if (Pick(3) == 0) params.min_p = static_cast<float>(random_.Uniform(0.0, 0.3));
    if (Pick(8) == 0) params.min_p = 1.0F;
    if (Pick(3) == 0) params.repetition_penalty = static_cast<float>(random_.Uniform(0.2, 3.0));
    if (Pick(3) == 0) params.presence_penalty = static_cast<float>(random_.Uniform(-2.0, 2.0));
    if (Pick(3) == 0) params.frequency_penalty = static_cast<float>(random_.Uniform(-2.0, 2.0));
    if (Pick(2) == 0) params.penalty_decay = static_cast<float>(random_.Uniform(0.001, 1.0));
    params.temperature_last = Pick(2) == 0;
    params.top_logprobs = static_cast<int32_t>(random_.Below(kMaxTopLogprobs + 2)) - 1;
    params.seed = static_cast<uint64_t>(random_.Below(std::numeric_limits<int64_t>::max()));
    return params;
  }

  Sequence RandomSequence(int64_t vocab) {
    Sequence sequence;
    sequence.logits = RandomLogits(vocab);
    if (Pick(5) == 0) Spoil(&sequence.logits);
    sequence.params = RandomParams(vocab);
    sequence.counts.resize(static_cast<size_t>(vocab));
    sequence.output_index = static_cast<uint64_t>(1000 + random_.Below(int64_t{1} << 40));
    for (TokenCount& count : sequence.counts) {
      if (Pick(3) == 0) count = WithSeen({});
      if (Pick(3) != 0) continue;
      count = WithSample({static_cast<float>(Pick(4)), 0}, 1.0F,
                         sequence.output_index - 1 - Pick(1000), Pick(4) != 0);
    }
    sequence.counts[Pick(vocab)] = {1e6F, kSeen | kSampled};
    if (Pick(3) == 0) SetRules(vocab, sequence);
    if (Pick(5) == 0) sequence.target = static_cast<TokenId>(random_.Below(vocab));
    return sequence;
  }

  // Draws up to kMaxLogitRules rules for random tokens. In some draws only the tokens with rules
  // are allowed.
  void SetRules(int64_t vocab, Sequence& sequence) {
    auto rules = std::make_shared<LogitRules>();
    rules->only_these = Pick(3) == 0;
    const int64_t one_in = std::vector<int64_t>{1, 2, 10, 200}[Pick(4)];
    for (TokenId id = 0; id < vocab; ++id) {
      if (rules->rules.size() == kMaxLogitRules || random_.Below(one_in) != 0) continue;
      LogitRule rule = {.id = id, .bias = static_cast<float>(random_.Uniform(-100.0, 100.0))};
      if (Pick(4) == 0) rule.bias = kBannedBias;
      rule.ends = Pick(4) == 0 ? 1 : 0;
      rule.uncounted = Pick(2) == 0 ? 1 : 0;
      rules->rules.push_back(rule);
    }
    sequence.params.rules = std::move(rules);
    sequence.params.ends_from = sequence.output_index + Pick(2);
  }

  size_t Pick(int64_t n) { return static_cast<size_t>(random_.Below(n)); }

  TestRandom random_;
};

TEST_F(CudaSamplerTest, RandomBatchesEqualTheCpu) {
  const std::pair<int64_t, int> batches[] = {{1, 3},    {3, 5},    {100, 8},  {256, 8},
                                             {1000, 8}, {5003, 6}, {20000, 1}};
  for (const auto& [vocab, count] : batches) {
    for (int batch = 0; batch < Rounds(count); ++batch) {
      std::vector<Sequence> sequences;
      for (int i = 0; i < 10; ++i) sequences.push_back(RandomSequence(vocab));
      if (Pick(2) == 0) {
        for (Sequence& sequence : sequences) sequence.target = kNoToken;  // no targets at all
      }
      ExpectEqualToCpu(sequences,
                       OnDevice(random_, sequences, std::vector<int64_t>{0, 1, 4, 7}[Pick(4)]));
    }
  }
}

// The kept tokens do not fit into shared memory, and cuts fall among thousands of equal logits.
TEST_F(CudaSamplerTest, ManyKeptTokensEqualTheCpu) {
  constexpr int64_t kVocab = 9001;
  std::vector<Sequence> sequences;
  for (int i = 0; i < Rounds(16); ++i) {
    Sequence sequence = RandomSequence(kVocab);
    sequence.logits = random_.Normals(kVocab, 0.01);
    if (i % 2 == 0) sequence.logits.assign(kVocab, 3.0F);
    sequence.params.temperature = 1.0F;
    sequence.params.top_k = i % 3 == 0 ? 0 : static_cast<int32_t>(4000 + random_.Below(5000));
    sequence.params.top_p = i % 3 == 1 ? 1.0F : static_cast<float>(random_.Uniform(0.4, 0.99));
    sequence.params.min_p = i % 5 == 0 ? 0.5F : 0.0F;
    sequence.params.repetition_penalty = 1.0F;
    sequence.params.presence_penalty = 0.0F;
    sequence.params.frequency_penalty = 0.0F;
    sequence.target = kNoToken;
    sequences.push_back(sequence);
  }
  ExpectEqualToCpu(sequences, OnDevice(random_, sequences, 0));
}

// Each round draws 100 tokens of one distribution, enough to show a token that only the CPU or only
// the device keeps.
TEST_F(CudaSamplerTest, KeepsTheTokensThatTheCpuKeeps) {
  for (int round = 0; round < Rounds(12); ++round) {
    const int64_t vocab = 12 + random_.Below(30);
    Sequence sequence = RandomSequence(vocab);
    sequence.logits = random_.Normals(vocab, 0.7);
    if (round % 2 == 0) {  // with equal logits
      for (float& logit : sequence.logits) logit = std::round(logit * 3.0F) / 3.0F;
    }
    sequence.params.temperature = static_cast<float>(random_.Uniform(0.5, 2.0));
    sequence.target = kNoToken;
    std::vector<Sequence> sequences(100, sequence);
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i].output_index = i;
    ExpectEqualToCpu(sequences, OnDevice(random_, sequences, 0));
  }
}

TEST_F(CudaSamplerTest, NeighboursAndRunsChangeNoBit) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < 12; ++i) sequences.push_back(RandomSequence(1000));
  const Result together = OnDevice(random_, sequences, 0);
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const int64_t gap : {0, 4, 5}) {  // with the last one, the kernel reads single numbers
      const Result alone = OnDevice(random_, {sequences[i]}, gap);
      const SampledToken& token = together.tokens[i];
      EXPECT_EQ(alone.tokens[0].id, token.id) << sequences[i].Name();
      EXPECT_EQ(std::bit_cast<uint32_t>(alone.tokens[0].logprob),
                std::bit_cast<uint32_t>(token.logprob))
          << sequences[i].Name();
      ASSERT_EQ(alone.tokens[0].top.size(), token.top.size());
      for (size_t j = 0; j < token.top.size(); ++j) {
        EXPECT_EQ(alone.tokens[0].top[j].id, token.top[j].id);
        EXPECT_EQ(alone.tokens[0].top[j].logprob, token.top[j].logprob);
      }
    }
  }
}

TEST_F(CudaSamplerTest, LogitsWithoutANumberGiveNoToken) {
  std::vector<Sequence> sequences;
  for (const float nothing : {kNan, -kInfinity}) {
    for (const TokenId target : {kNoToken, 7}) {
      Sequence sequence = RandomSequence(300);
      sequence.logits.assign(300, nothing);
      sequence.target = target;
      sequences.push_back(sequence);
    }
  }
  const Result result = OnDevice(random_, sequences, 0);
  for (const SampledToken& token : result.tokens) EXPECT_EQ(token.id, kNoToken);
  ExpectEqualToCpu(sequences, result);
}

TEST_F(CudaSamplerTest, CountsAreMarkedAndCleared) {
  constexpr int64_t kVocab = 301;
  constexpr int32_t kSlots = 4;
  std::vector<TokenCount> counts(kSlots * kVocab);
  for (TokenCount& count : counts) {
    if (Pick(3) == 0) count = WithSample({}, 1.0F, Pick(9), /*counted=*/true);
  }
  const DeviceArray<TokenCount> device_counts(counts);
  const DeviceArray<int32_t> last_sampled(std::vector<int32_t>{10, 11, 12, 13});
  const cuda::SamplerSlots slots = {kVocab, nullptr, device_counts.get(), last_sampled.get()};

  std::vector<int32_t> tokens;
  std::vector<int32_t> token_slots;
  for (int i = 0; i < 1000; ++i) {
    tokens.push_back(static_cast<int32_t>(random_.Below(kVocab + 1)) - 1);
    token_slots.push_back(static_cast<int32_t>(random_.Below(kSlots)) - 1);  // never the last slot
    if (tokens.back() < 0 || token_slots.back() < 0) continue;
    TokenCount& count = counts[static_cast<size_t>(token_slots.back() * kVocab + tokens.back())];
    count = WithSeen(count);
  }
  const DeviceArray<int32_t> device_tokens(tokens);
  const DeviceArray<int32_t> device_token_slots(token_slots);
  const int marked =
      cuda::MarkSeen(slots, device_tokens.get(), device_token_slots.get(), 1000, nullptr);
  EXPECT_EQ(marked, 0) << cudaGetErrorString(static_cast<cudaError_t>(marked));
  EXPECT_EQ(cuda::MarkSeen(slots, nullptr, nullptr, 0, nullptr), 0);
  EXPECT_EQ(device_counts.Get(), counts);

  EXPECT_EQ(cuda::ClearCounts(slots, 1, nullptr), 0);
  const auto at = [&](int64_t slot) { return counts.begin() + slot * kVocab; };
  std::fill(at(1), at(2), TokenCount{});
  EXPECT_EQ(device_counts.Get(), counts);
  EXPECT_EQ(last_sampled.Get(), (std::vector<int32_t>{10, 0, 12, 13}));
}

TEST_F(CudaSamplerTest, AVocabularyBeyondTheLimitIsRefused) {
  for (const int64_t vocab : {int64_t{0}, cuda::kMaxVocabSize + 1}) {
    EXPECT_NE(cuda::Sample({vocab, nullptr, nullptr, nullptr}, {}, nullptr, vocab, {}, nullptr), 0);
  }
}

}  // namespace
}  // namespace aft
