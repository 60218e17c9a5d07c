// Compares every form of every operator with the goldens of operators: the formulas that other
// tests use as references, the training form, and the served forms.

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Parallel.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "model/train/forms/train_form.h"
#include "tests/parity/goldens.h"
#include "tests/property/mixer_harness.h"
#include "tests/support/mixer_of.h"
#include "tests/support/mixer_reference.h"

namespace aft {
namespace {

const SafetensorsFile& Goldens() {
  static const auto* const kGoldens = new SafetensorsFile(ReadGoldens("operators"));
  return *kGoldens;
}

constexpr int64_t kGridWidth = 7;  // the width of all images

std::vector<MixerCase> Cases() {
  std::vector<MixerCase> cases;
  for (const auto& [name, mixer] : Goldens().metadata) {
    MixerCase one = {name, MixerOf(mixer)};
    one.hid = Goldens().tensors.at(name + ".expected").size(1);
    if (one.config.grid) one.grid_width = kGridWidth;
    cases.push_back(one);
  }
  return cases;
}

class OperatorTest : public testing::TestWithParam<MixerCase> {
 protected:
  OperatorTest() {
    at::set_num_threads(1);  // tiny tensors: a second thread only waits
    for (const TensorSpec& spec : ExpectedMixerTables(config(), hid())) {
      tables_[spec.name] = Golden(spec.name);
    }
  }

  // Returns an undefined tensor if the case has no such golden.
  static at::Tensor Golden(const std::string& key) {
    const auto found = Goldens().tensors.find(GetParam().name + "." + key);
    return found == Goldens().tensors.end() ? at::Tensor() : found->second;
  }
  static const MixerConfig& config() { return GetParam().config; }
  static int64_t hid() { return GetParam().hid; }
  int64_t tokens() const { return packed_.size(0); }
  TestMixer Mixer() const { return TestMixer(GetParam(), tables_); }

  const at::Tensor packed_ = Golden("packed");
  const at::Tensor expected_ = Golden("expected");
  const at::Tensor mask_ = Golden("mask");
  MixerTables tables_;
};

TEST_P(OperatorTest, FormulasOfTheOtherTestsAgree) {
  ReferenceTables tables;
  for (const auto& [name, table] : tables_) tables[name] = Doubles(table);
  EXPECT_TRUE(Close(ReferenceMixer(config(), hid(), Doubles(packed_), tables, Doubles(mask_),
                                   GetParam().grid_width),
                    Floats(expected_), tolerance::kStored));
}

TEST_P(OperatorTest, TrainsTheSameFunction) {
  TrainFormOptions options;
  if (mask_.defined()) options.mask = mask_.unsqueeze(0);
  options.grid_width = GetParam().grid_width;
  EXPECT_TRUE(Close(TrainForm(config(), packed_.unsqueeze(0), tables_, options)[0], expected_,
                    tolerance::kFp32));
}

TEST_P(OperatorTest, EncodesWholeSequences) {
  std::vector<std::vector<float>> masks;
  if (mask_.defined()) masks.push_back(Floats(mask_));
  EXPECT_TRUE(
      Close(Mixer().Encode({Floats(packed_)}, masks)[0], Floats(expected_), tolerance::kFp32));
}

TEST_P(OperatorTest, PrefillsAndDecodes) {
  if (!config().causal) return;  // Only causal mixers prefill and decode.
  for (const int64_t chunk : {tokens(), int64_t{5}, int64_t{1}}) {
    EXPECT_TRUE(
        Close(Mixer().RunCut(Floats(packed_), {chunk}), Floats(expected_), tolerance::kFp32))
        << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Goldens, OperatorTest, testing::ValuesIn(Cases()),
                         [](const auto& param_info) { return param_info.param.name; });

// Block-local attention has goldens of its own (block_local_test.cc).
TEST(OperatorGoldensTest, CoverEveryPublishedOperatorCausalAndBidirectional) {
  std::set<std::pair<MixerKind, bool>> seen;
  for (const MixerCase& golden : Cases()) {
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
