// Tests the differentiable network against the float64 reference, for every choice that config.json
// offers.

#include "model/train/train_network.h"

#include <cstdint>
#include <vector>

#include "ATen/core/grad_mode.h"
#include "ATen/ops/from_blob.h"
#include "gtest/gtest.h"
#include "tests/property/network_reference.h"
#include "tests/property/random_inputs.h"
#include "tests/support/close.h"
#include "tests/support/tolerances.h"

namespace aft {
namespace {

class TrainNetworkPropertyTest : public testing::TestWithParam<NetworkCase> {};

TEST_P(TrainNetworkPropertyTest, EqualsTheNetworkThatIsServed) {
  const NetworkConfig& config = GetParam().config;
  TestRandom random;
  const TrainNetwork network(config, RandomTensors(config, random));
  const at::NoGradGuard no_grad;
  for (const int64_t tokens : {int64_t{1}, int64_t{7}, kCaseTokens}) {
    std::vector<int32_t> ids(static_cast<size_t>(tokens));
    for (int32_t& id : ids) id = static_cast<int32_t>(random.Below(config.vocab_size));
    const at::Tensor got =
        network.Forward(at::from_blob(ids.data(), {1, tokens}, at::kInt).to(at::kLong), nullptr,
                        {.bf16 = false})[0];
    const std::vector<double> want = Flat(NetworkReference(config, network.parameters(), ids));
    const at::Tensor dense = got.contiguous();
    const auto* first = dense.const_data_ptr<float>();
    EXPECT_TRUE(Close(std::vector<float>(first, first + dense.numel()), want, tolerance::kVectors))
        << tokens << " tokens";
  }
}

std::vector<NetworkCase> Cases() {
  std::vector<NetworkCase> cases = DecoderCases();
  for (NetworkCase& one : EncoderCases()) {
    one.name += "_encoder";
    cases.push_back(one);
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Networks, TrainNetworkPropertyTest, testing::ValuesIn(Cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace aft
