#ifndef AFT_TESTS_PROPERTY_RUNNER_CALLS_H_
#define AFT_TESTS_PROPERTY_RUNNER_CALLS_H_

#include <algorithm>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/model_runner.h"

namespace aft {

// What every test of a runner does with it.
class RunnerCalls : public testing::Test {
 protected:
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

  static StepOutput Step(ModelRunner& runner, const StepInput& input) {
    const absl::StatusOr<ModelRunner::Ticket> ticket = runner.Submit(input);
    EXPECT_TRUE(ticket.ok()) << ticket.status();
    if (!ticket.ok()) return {};
    absl::StatusOr<StepOutput> output = runner.Collect(*ticket);
    EXPECT_TRUE(output.ok()) << output.status();
    return output.ok() ? *std::move(output) : StepOutput();
  }

  static bool Same(const SampledToken& a, const SampledToken& b) {
    return a.id == b.id && a.logprob == b.logprob &&
           std::equal(a.top.begin(), a.top.end(), b.top.begin(), b.top.end(),
                      [](const TokenLogprob& x, const TokenLogprob& y) {
                        return x.id == y.id && x.logprob == y.logprob;
                      });
  }
  static bool Same(const std::vector<SampledToken>& a, const std::vector<SampledToken>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const SampledToken& x, const SampledToken& y) { return Same(x, y); });
  }
};

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_RUNNER_CALLS_H_
