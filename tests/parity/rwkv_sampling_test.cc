// Compares the sampler with the distributions from which the package `rwkv` draws, after penalties
// and cuts (make_rwkv_sampling_goldens.py).

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/sampling/philox.h"
#include "model/sampling/sampler.h"
#include "model/sampling/token_counts.h"
#include "tests/parity/goldens.h"

namespace aft {
namespace {

std::vector<int64_t> Integers(const at::Tensor& tensor) {
  const at::Tensor x = tensor.to(at::kLong).contiguous();
  return {x.const_data_ptr<int64_t>(), x.const_data_ptr<int64_t>() + x.numel()};
}

// The random number that is added to the logarithm of a token's probability (sampler.h).
double GumbelOf(uint64_t seed, uint64_t output_index, uint32_t id) {
  const auto words = Philox4x32({static_cast<uint32_t>(output_index), 0, id / 4, 0},
                                {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return -std::log(-std::log((words[id % 4] + 0.5) / 4294967296.0));
}

// The token with the highest score is the one that is drawn. So with enough seeds every token that
// the package keeps is drawn, and a token that is kept only here is drawn too often.
TEST(RwkvSamplingTest, DrawsFromTheDistributionsOfThePackage) {
  const TensorMap goldens = ReadGoldens("rwkv_sampling").tensors;
  const std::vector<int64_t> spared = Integers(goldens.at("spared"));
  const int64_t cases = goldens.at("drawn").size(0);
  const int64_t steps = goldens.at("drawn").size(1);
  for (int64_t i = 0; i < cases; ++i) {
    const auto option = [&](const char* name) { return Floats(goldens.at(name)[i]).at(0); };
    // The tokens of a case get the ids 0, 1, 2 ... here.
    const std::vector<int64_t> ids = Integers(goldens.at("ids")[i]);
    auto rules = std::make_shared<LogitRules>();
    for (size_t id = 0; id < ids.size(); ++id) {
      if (!std::binary_search(spared.begin(), spared.end(), ids[id])) continue;
      rules->rules.push_back({.id = static_cast<TokenId>(id), .uncounted = 1});
    }
    SamplingParams params;
    params.temperature = option("temperature");
    params.top_p = option("top_p");
    params.top_k = static_cast<int32_t>(option("top_k"));
    params.presence_penalty = option("alpha_presence");
    params.frequency_penalty = option("alpha_frequency");
    params.penalty_decay = option("alpha_decay");
    params.temperature_last = true;
    params.rules = rules;
    const std::vector<float> logits = Floats(goldens.at("logits")[i]);
    const std::vector<int64_t> drawn = Integers(goldens.at("drawn")[i]);
    std::vector<TokenCount> counts(ids.size());
    Sampler sampler;
    for (int64_t step = 0; step < steps; ++step) {
      const auto index = static_cast<uint64_t>(step);
      const std::vector<float> probabilities = Floats(goldens.at("probabilities")[i][step]);
      for (params.seed = 0; params.seed < 50; ++params.seed) {
        SampledToken token;
        ASSERT_TRUE(sampler
                        .Sample(logits.data(), static_cast<int64_t>(ids.size()), params,
                                counts.data(), index, &token)
                        .ok());
        const auto score = [&](size_t id) {
          return std::log(double{probabilities[id]}) +
                 GumbelOf(params.seed, index, static_cast<uint32_t>(id));
        };
        double best = score(0);
        for (size_t id = 1; id < ids.size(); ++id) best = std::max(best, score(id));
        // Scores may differ by the rounding of fp32.
        ASSERT_GE(score(static_cast<size_t>(token.id)), best - 1e-4)
            << "case " << i << ", step " << step << ", token " << token.id;
      }
      const auto last = std::lower_bound(ids.begin(), ids.end(), drawn[static_cast<size_t>(step)]);
      CountSample(params, static_cast<TokenId>(last - ids.begin()), index, counts.data());
    }
  }
}

}  // namespace
}  // namespace aft
