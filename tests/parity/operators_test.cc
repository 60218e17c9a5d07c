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
#include "tests/property/mixer_harness.h"
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

class OperatorTest : public testing::TestWithParam<OperatorCase> {
 protected:
  OperatorTest() { at::set_num_threads(1); }  // tiny tensors: a second thread only waits

  const MixerConfig& config() const { return GetParam().config; }
  int64_t hid() const { return inputs_.expected.size(1); }
  int64_t tokens() const { return inputs_.packed.size(0); }
  TestMixer Mixer() const {
    MixerCase mixer_case = {GetParam().name, config(), hid()};
    mixer_case.grid_width = GetParam().grid_width;
    return TestMixer(mixer_case, inputs_.tables);
  }

  const Inputs inputs_{GetParam().name};
};

TEST_P(OperatorTest, FormulasOfTheOtherTestsAgree) {
  ReferenceTables tables;
  for (const auto& [name, table] : inputs_.tables) tables[name] = Doubles(table);
  EXPECT_TRUE(Close(ReferenceMixer(config(), hid(), Doubles(inputs_.packed), tables,
                                   Doubles(inputs_.mask), GetParam().grid_width),
                    Floats(inputs_.expected), tolerance::kStored));
}

TEST_P(OperatorTest, TrainsTheSameFunction) {
  TrainFormOptions options;
  if (inputs_.mask.defined()) options.mask = inputs_.mask.unsqueeze(0);
  options.grid_width = GetParam().grid_width;
  EXPECT_TRUE(Close(TrainForm(config(), inputs_.packed.unsqueeze(0), inputs_.tables, options)[0],
                    inputs_.expected, tolerance::kFp32));
}

TEST_P(OperatorTest, EncodesWholeSequences) {
  std::vector<std::vector<float>> masks;
  if (inputs_.mask.defined()) masks.push_back(Floats(inputs_.mask));
  EXPECT_TRUE(Close(Mixer().Encode({Floats(inputs_.packed)}, masks)[0], Floats(inputs_.expected),
                    tolerance::kFp32));
}

TEST_P(OperatorTest, PrefillsAndDecodes) {
  if (!config().causal) return;  // Forward is for causal mixers.
  for (const int64_t chunk : {tokens(), int64_t{5}, int64_t{1}}) {
    EXPECT_TRUE(Close(Mixer().RunCut(Floats(inputs_.packed), {chunk}), Floats(inputs_.expected),
                      tolerance::kFp32))
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
