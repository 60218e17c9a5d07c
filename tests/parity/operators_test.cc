// Every form of every operator against the goldens that have no package: the formulas that the
// other tests trust, the training form, and the served forms.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "ATen/ops/from_blob.h"
#include "gtest/gtest.h"
#include "model/train/forms/train_form.h"
#include "tests/parity/goldens.h"
#include "tests/parity/mixer_run.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

const SafetensorsFile& Goldens() {
  static const auto* const kGoldens = new SafetensorsFile(ReadGoldens("operators"));
  return *kGoldens;
}

// The tables, and packed, expected and mask taken out of them.
struct Inputs {
  explicit Inputs(const std::string& name) : tables(Below(Goldens().tensors, name + ".")) {
    packed = Take("packed");
    expected = Take("expected");
    mask = Take("mask");
  }
  at::Tensor Take(const std::string& key) {
    const auto entry = tables.find(key);
    if (entry == tables.end()) return {};
    at::Tensor tensor = std::move(entry->second);
    tables.erase(entry);
    return tensor;
  }

  MixerTables tables;
  at::Tensor packed, expected, mask;
};

std::vector<double> Doubles(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  const float* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

class OperatorTest : public testing::TestWithParam<OperatorCase> {
 protected:
  OperatorTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  const MixerConfig& config() const { return GetParam().config; }
  int64_t hid() const { return inputs_.expected.size(1); }
  int64_t tokens() const { return inputs_.packed.size(0); }
  MixerRun Run() const { return MixerRun(config(), hid(), inputs_.tables, tokens()); }

  const Inputs inputs_{GetParam().name};
};

TEST_P(OperatorTest, FormulasOfTheOtherTestsAgree) {
  ReferenceTables tables;
  for (const auto& [name, table] : inputs_.tables) tables[name] = Doubles(table);
  std::vector<double> y = ReferenceMixer(config(), hid(), Doubles(inputs_.packed), tables,
                                         Doubles(inputs_.mask), GetParam().grid_width);
  // The file has fp32.
  EXPECT_TRUE(Close(at::from_blob(y.data(), {tokens(), hid()}, at::kDouble), inputs_.expected,
                    tolerance::kStored));
}

TEST_P(OperatorTest, TrainsTheSameFunction) {
  TrainFormOptions options;
  if (inputs_.mask.defined()) options.mask = inputs_.mask.unsqueeze(0);
  options.grid_width = GetParam().grid_width;
  EXPECT_TRUE(Close(TrainForm(config(), inputs_.packed.unsqueeze(0), inputs_.tables, options)[0],
                    inputs_.expected, tolerance::kFp32));
}

TEST_P(OperatorTest, EncodesWholeSequences) {
  EXPECT_TRUE(Close(Run().Encode(inputs_.packed, {tokens()}, inputs_.mask, GetParam().grid_width),
                    inputs_.expected, tolerance::kFp32));
}

TEST_P(OperatorTest, PrefillsAndDecodes) {
  if (!config().causal) return;  // Forward is for causal mixers.
  const MixerRun run = Run();
  for (const int64_t chunk : {tokens(), int64_t{5}, int64_t{1}}) {
    EXPECT_TRUE(Close(run.Forward(inputs_.packed, chunk), inputs_.expected, tolerance::kFp32))
        << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, OperatorTest, testing::ValuesIn(OperatorCases(Goldens())),
                         [](const auto& param_info) { return param_info.param.name; });

// Block-local attention has goldens of its own (models_test.cc).
TEST(OperatorGoldensTest, CoverEveryPublishedOperatorCausalAndBidirectional) {
  std::set<std::pair<MixerKind, bool>> seen;
  for (const OperatorCase& golden : OperatorCases(Goldens())) {
    seen.insert({golden.config.kind, golden.config.causal});
  }
  for (const MixerKind kind :
       {MixerKind::kAftSimple, MixerKind::kAftLocal, MixerKind::kAftFull, MixerKind::kAftConv,
        MixerKind::kDotProduct, MixerKind::kCosine, MixerKind::kAdditive, MixerKind::kLocation}) {
    for (const bool causal : {true, false}) {
      EXPECT_EQ(seen.count({kind, causal}), 1U) << MixerKindName(kind) << " causal " << causal;
    }
  }
}

}  // namespace
}  // namespace aft
