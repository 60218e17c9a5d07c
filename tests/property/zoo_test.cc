// Tests the shipped model, with its real weights, on text that it was not trained on.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/network/cpu_network.h"
#include "model/runtime/parallel.h"

namespace aft {
namespace {

constexpr char kZooFolder[] = "model/zoo/austen-aft-local";
constexpr int64_t kChunk = 256;

class ZooTest : public testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file(std::string(kZooFolder) + "/held_out_sample.txt", std::ios::binary);
    text_.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    ASSERT_GT(text_.size(), 1900U);
    auto checkpoint = ReadCheckpoint(kZooFolder);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }

  // Logits [N, V] of `tokens` as one sequence, served in chunks.
  std::vector<float> Serve(const std::vector<int32_t>& tokens,
                           Number format = Number::kFp32) const {
    const auto network = *CpuNetwork::Create(checkpoint_.config, checkpoint_.tensors, format);
    const ParallelExecutor executor(1);
    EXPECT_TRUE(network->Allocate(kChunk, executor).ok());
    const auto states = *StatePool::Create(network->state_specs(), 1);
    const auto count = static_cast<int64_t>(tokens.size());
    const int64_t vocab = checkpoint_.config.vocab_size;
    std::vector<float> logits(static_cast<size_t>(count * vocab));
    std::vector<int64_t> outputs(kChunk);
    for (int64_t i = 0; i < kChunk; ++i) outputs[static_cast<size_t>(i)] = i;
    for (int64_t begin = 0; begin < count; begin += kChunk) {
      const int32_t slot = 0;
      const int64_t offsets[] = {0, std::min(kChunk, count - begin)};
      CpuNetwork::Batch batch;
      batch.rows = {1, &slot, &begin, offsets};
      batch.tokens = offsets[1];
      batch.ids = tokens.data() + begin;
      batch.outputs = outputs.data();
      batch.output_count = offsets[1];
      EXPECT_TRUE(ForwardStep(*network, batch, states.parts()).ok());
      for (int64_t first = 0; first < batch.output_count; first += network->max_logit_rows()) {
        const int64_t rows = std::min(network->max_logit_rows(), batch.output_count - first);
        std::copy_n(*network->Logits(first, rows), rows * vocab,
                    logits.data() + (begin + first) * vocab);
      }
    }
    return logits;
  }

  // The mean over i in [begin, end) of -log2 p of tokens[i + 1], from the logits at i.
  double BitsPerByte(const std::vector<float>& logits, const std::vector<int32_t>& tokens,
                     size_t begin, size_t end) const {
    const auto vocab = static_cast<size_t>(checkpoint_.config.vocab_size);
    double nats = 0;
    for (size_t i = begin; i < end; ++i) {
      const float* row = logits.data() + i * vocab;
      double sum = 0;
      for (size_t v = 0; v < vocab; ++v) sum += std::exp(static_cast<double>(row[v]));
      nats += std::log(sum) - row[static_cast<size_t>(tokens[i + 1])];
    }
    return nats / static_cast<double>(end - begin) / std::numbers::ln2;
  }

  std::vector<int32_t> Tokens() const {
    return {reinterpret_cast<const uint8_t*>(text_.data()),
            reinterpret_cast<const uint8_t*>(text_.data()) + text_.size()};
  }

  std::string text_;
  Checkpoint checkpoint_;
};

TEST_F(ZooTest, PredictsUnseenTextAsItsCardSays) {
  const std::vector<int32_t> tokens = Tokens();
  EXPECT_LT(BitsPerByte(Serve(tokens), tokens, 0, tokens.size() - 1), 1.75);
}

// Measures what smaller weights cost, compared with fp32 on the same text.
TEST_F(ZooTest, SmallerWeightsPredictNearlyAsWell) {
  const std::vector<int32_t> tokens = Tokens();
  const std::vector<float> exact = Serve(tokens);
  const auto vocab = static_cast<size_t>(checkpoint_.config.vocab_size);
  const double bits = BitsPerByte(exact, tokens, 0, tokens.size() - 1);
  const struct {
    Number format;
    double more_bits;
    double divergence;  // mean, nats
    double agreement;   // of the likeliest bytes
  } cases[] = {{Number::kBf16, 1.0005, 1e-4, 0.99}, {Number::kInt8, 1.005, 5e-3, 0.96}};
  for (const auto& allowed : cases) {
    const std::vector<float> logits = Serve(tokens, allowed.format);
    double divergence = 0;
    size_t agree = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* p = exact.data() + i * vocab;
      const float* q = logits.data() + i * vocab;
      double sum_p = 0;
      double sum_q = 0;
      for (size_t v = 0; v < vocab; ++v) {
        sum_p += std::exp(double{p[v]});
        sum_q += std::exp(double{q[v]});
      }
      const double log_ratio = std::log(sum_q / sum_p);
      for (size_t v = 0; v < vocab; ++v) {
        divergence += std::exp(double{p[v]}) / sum_p * (double{p[v]} - double{q[v]} + log_ratio);
      }
      if (std::max_element(p, p + vocab) - p == std::max_element(q, q + vocab) - q) ++agree;
    }
    const auto count = static_cast<double>(tokens.size());
    const double more = BitsPerByte(logits, tokens, 0, tokens.size() - 1) / bits;
    const std::string name = NumberName(allowed.format);
    RecordProperty(name + "_bits", std::to_string(more));
    RecordProperty(name + "_divergence", std::to_string(divergence / count));
    RecordProperty(name + "_agreement", std::to_string(static_cast<double>(agree) / count));
    EXPECT_LE(more, allowed.more_bits) << name;
    EXPECT_LE(divergence / count, allowed.divergence) << name;
    EXPECT_GE(static_cast<double>(agree) / count, allowed.agreement) << name;
  }
}

TEST_F(ZooTest, IsAsGoodAfterFortyThousandTokensAsAfterTwoThousand) {
  const std::vector<int32_t> once = Tokens();
  std::vector<int32_t> tokens;
  while (tokens.size() < 40'000) tokens.insert(tokens.end(), once.begin(), once.end());
  const std::vector<float> logits = Serve(tokens);
  const size_t n = once.size();
  const double early = BitsPerByte(logits, tokens, n, 2 * n - 1);
  const double late = BitsPerByte(logits, tokens, tokens.size() - n, tokens.size() - 1);
  EXPECT_NEAR(late, early, 0.03 * early);
}

}  // namespace
}  // namespace aft
