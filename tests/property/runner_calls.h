#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/encoder_runner.h"
#include "model/api/model_runner.h"
#include "tests/property/network_reference.h"
#include "tests/support/collect.h"

namespace aft {

// Counts tokens in the form that SlotTerms need.
class Uses {
 public:
  void Add(const std::vector<TokenId>& tokens) {
    for (const TokenId token : tokens) times_[token] += 0;
  }
  void Add(const std::vector<SampledToken>& tokens) {
    for (const SampledToken& token : tokens) ++times_[token.id];
  }
  std::vector<TokenUse> all() const {
    std::vector<TokenUse> uses;
    for (const auto& [id, sampled] : times_) uses.push_back({.id = id, .sampled = sampled});
    return uses;
  }

 private:
  std::map<TokenId, uint32_t> times_;
};

// A random model, and the calls that every test of a runner makes.
class RunnerCalls : public testing::Test {
 protected:
  std::vector<TokenId> RandomText(int64_t length) {
    std::vector<TokenId> text(static_cast<size_t>(length));
    for (TokenId& token : text) token = static_cast<TokenId>(random_.Below(config_.vocab_size));
    return text;
  }

  static SamplingParams Greedy() {
    SamplingParams params;
    params.temperature = 0;
    params.top_logprobs = 3;
    return params;
  }

  static SamplingParams Warm(uint64_t seed) {
    SamplingParams params;
    params.temperature = 1.5F;
    params.seed = seed;
    params.top_logprobs = 2;
    return params;
  }

  // Binds a new sequence.
  static void Bind(ModelRunner& runner, int32_t slot, const SamplingParams& params) {
    EXPECT_EQ(Bind(runner, slot, NewSequence(), {params}), 0);
  }
  // Returns the position; -1 when the runner refuses.
  static int64_t Bind(ModelRunner& runner, int32_t slot, const StateSource& from,
                      const SlotTerms& terms) {
    const absl::StatusOr<int64_t> position = runner.BindSlot(slot, from, terms);
    EXPECT_TRUE(position.ok()) << position.status();
    return position.ok() ? *position : -1;
  }

  // Null: it fails.
  static std::shared_ptr<const KeptState> Keep(ModelRunner& runner, int32_t slot,
                                               KeptIn memory = KeptIn::kDevice) {
    return runner.KeepSlot(slot, memory).value_or(nullptr);
  }
  // Empty: it fails.
  static std::string SnapshotOf(ModelRunner& runner, int32_t slot) {
    const std::shared_ptr<const KeptState> kept = Keep(runner, slot, KeptIn::kHost);
    return kept != nullptr ? kept->Snapshot().value_or("") : "";
  }

  static StepOutput Step(ModelRunner& runner, const StepInput& input) {
    const absl::StatusOr<ModelRunner::Ticket> ticket = runner.Submit(input);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    absl::StatusOr<StepOutput> output = Collect(runner, *ticket);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? *std::move(output) : StepOutput();
  }

  // Reads the prompt in chunks of `chunk` tokens, then samples `count` tokens one by one. The
  // sequence is alone in the batch.
  static std::vector<SampledToken> Generate(ModelRunner& runner, int32_t slot,
                                            const std::vector<TokenId>& prompt, int64_t count,
                                            const SamplingParams& params, size_t chunk = 64) {
    Bind(runner, slot, params);
    std::vector<SampledToken> sampled;
    int64_t position = 0;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const size_t end = std::min(at + chunk, prompt.size());
      const RowOutput output = end == prompt.size() ? RowOutput::kLast : RowOutput::kNone;
      StepRow row = {slot, position, Slice(prompt, at, end), output};
      StepOutput step = Step(runner, {{std::move(row)}});
      position += static_cast<int64_t>(end - at);
      for (SampledToken& token : step.sampled) sampled.push_back(std::move(token));
    }
    if (sampled.empty()) return sampled;
    std::vector<SampledToken> more = Continue(runner, slot, position, sampled[0].id, count - 1);
    std::move(more.begin(), more.end(), std::back_inserter(sampled));
    return sampled;
  }

  // Samples `count` more tokens of the sequence in `slot`, the first one after `token`, which is at
  // `position`.
  static std::vector<SampledToken> Continue(ModelRunner& runner, int32_t slot, int64_t position,
                                            TokenId token, int64_t count) {
    std::vector<SampledToken> sampled;
    while (static_cast<int64_t>(sampled.size()) < count) {
      StepRow row = {slot, position++, {token}, RowOutput::kLast};
      StepOutput step = Step(runner, {{std::move(row)}});
      if (step.sampled.empty()) break;
      token = step.sampled[0].id;
      sampled.push_back(std::move(step.sampled[0]));
    }
    return sampled;
  }

  // The log-probability of every token of `text` except the first, in chunks of `chunk` tokens.
  static std::vector<SampledToken> Score(ModelRunner& runner, int32_t slot,
                                         const std::vector<TokenId>& text, int32_t top,
                                         size_t chunk) {
    SamplingParams params;
    params.top_logprobs = top;
    Bind(runner, slot, params);
    std::vector<SampledToken> scored;
    for (size_t at = 0; at < text.size(); at += chunk) {
      const size_t end = std::min(at + chunk, text.size());
      StepRow row = {slot, static_cast<int64_t>(at), Slice(text, at, end), RowOutput::kScore,
                     Slice(text, at + 1, std::min(end + 1, text.size()))};
      StepOutput step = Step(runner, {{std::move(row)}});
      EXPECT_TRUE(step.sampled.empty());
      EXPECT_EQ(step.scored.size(), 1U);
      if (step.scored.size() != 1) break;
      for (SampledToken& token : step.scored[0]) scored.push_back(std::move(token));
    }
    return scored;
  }

  // The hidden vectors of all tokens, in chunks of `chunk` tokens.
  static std::vector<float> Hidden(ModelRunner& runner, int32_t slot,
                                   const std::vector<TokenId>& text, size_t chunk) {
    Bind(runner, slot, {});
    std::vector<float> vectors;
    for (size_t at = 0; at < text.size(); at += chunk) {
      StepRow row = {slot, static_cast<int64_t>(at),
                     Slice(text, at, std::min(at + chunk, text.size())), RowOutput::kHidden};
      row.hidden = static_cast<int64_t>(row.tokens.size());
      const StepOutput step = Step(runner, {{std::move(row)}});
      EXPECT_EQ(step.hidden.size(), 1U);
      for (const std::vector<float>& part : step.hidden) {
        vectors.insert(vectors.end(), part.begin(), part.end());
      }
    }
    return vectors;
  }

  // The vectors of all tokens, text after text.
  static std::vector<float> Encode(EncoderRunner& encoder,
                                   const std::vector<std::vector<TokenId>>& texts) {
    return Run(encoder, TextInputs(texts));
  }
  static std::vector<float> Run(EncoderRunner& encoder, const std::vector<EncoderInput>& inputs) {
    const absl::StatusOr<std::vector<TokenVectors>> vectors = encoder.Encode(inputs);
    EXPECT_TRUE(vectors.ok()) << vectors.status();
    std::vector<float> all;
    if (!vectors.ok()) return all;
    EXPECT_EQ(vectors->size(), inputs.size());
    for (size_t i = 0; i < vectors->size(); ++i) {
      const TokenVectors& text = (*vectors)[i];
      const int64_t tokens = inputs[i].tokens(encoder.input_width());
      EXPECT_EQ(text.size(), static_cast<size_t>(tokens * encoder.width()));
      all.insert(all.end(), text.begin(), text.end());
    }
    return all;
  }

  // Returns the result in float64 that an encoder must have for the input.
  std::vector<double> Want(const EncoderInput& input) const {
    return Flat(NetworkReference(config_, tensors_, input));
  }

  static std::vector<TokenId> Slice(const std::vector<TokenId>& tokens, size_t begin, size_t end) {
    return {tokens.begin() + static_cast<int64_t>(begin),
            tokens.begin() + static_cast<int64_t>(end)};
  }

  // Whether two tokens are the same. Log-probabilities may differ by `allowed`; if that is not 0,
  // alternatives may differ in their order.
  static bool Same(const SampledToken& a, const SampledToken& b, double allowed = 0) {
    const auto near = [allowed](float x, float y) {
      return x == y || std::abs(double{x} - double{y}) <= allowed;
    };
    return a.id == b.id && near(a.logprob, b.logprob) &&
           std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                      [&](const TokenLogprob& x, const TokenLogprob& y) {
                        return (x.id == y.id || allowed > 0) && near(x.logprob, y.logprob);
                      });
  }
  static bool Same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b,
                   double allowed = 0) {
    return std::equal(
        a.begin(), a.end(), b.begin(), b.end(),
        [allowed](const SampledToken& x, const SampledToken& y) { return Same(x, y, allowed); });
  }

  // The divergence of the distribution of `other` from that of `exact`, in nats. REQUIRES: `top`
  // has the whole vocabulary.
  static double Divergence(const SampledToken& exact, const SampledToken& other) {
    double sum = 0;
    for (const TokenLogprob& p : exact.top) {
      const auto q = std::find_if(other.top.begin(), other.top.end(),
                                  [&p](const TokenLogprob& token) { return token.id == p.id; });
      if (q == other.top.end()) return INFINITY;
      sum += std::exp(double{p.logprob}) * (double{p.logprob} - double{q->logprob});
    }
    return sum;
  }

  TestRandom random_;
  NetworkConfig config_;
  TensorMap tensors_;
};

inline std::string CaseName(const testing::TestParamInfo<NetworkCase>& test) {
  return test.param.name;
}

}  // namespace aft
