// Tuned states of an RWKV-7: a text that begins from one is the same, bit for bit, as a text of a
// model that has the state among its weights.

#include <cmath>
#include <string>
#include <vector>

#include "ATen/ops/full.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros_like.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/checkpoint/safetensors.h"
#include "tests/property/runner_fixture.h"
#include "tests/support/mixer_reference.h"
#include "tests/support/status_matchers.h"

namespace aft {
namespace {

using testing::HasSubstr;

class InitialStatesTest : public RunnerFixture {
 protected:
  InitialStatesTest() {
    UseMixer(ExampleMixer(MixerKind::kWkv7, /*tokens=*/64), &config_);
    config_.mixer.initial_state = true;
    Write();
    for (auto& [name, tensor] : tensors_) {
      if (name.ends_with("initial_state")) state_[name] = tensor;
    }
  }

  void WriteState(const std::string& name, const TensorMap& tensors) {
    const std::string path = folder_.File(StateFileName(name));
    ASSERT_EQ(WriteSafetensors(path, tensors), absl::OkStatus());
  }

  // From here on the weights have no state.
  void TakeFromWeights() {
    config_.mixer.initial_state = false;
    for (const auto& [name, tensor] : state_) tensors_.erase(name);
    Rewrite();
  }

  std::vector<InitialState> Read() {
    absl::StatusOr<LoadedModel> model = LoadModel(options_);
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? std::move(model->initial_states) : std::vector<InitialState>();
  }

  // The scores of `text` in slot 3, which begins from `from`.
  std::vector<SampledToken> ScoreFrom(ModelRunner& runner, const StateSource& from,
                                      const std::vector<TokenId>& text) {
    SamplingParams params;
    params.top_logprobs = 5;
    StepRow row = {3, Bind(runner, 3, from, {params}), text, RowOutput::kScore,
                   Slice(text, 1, text.size())};
    return Step(runner, {{std::move(row)}}).scored.at(0);
  }

  TensorMap state_;
};

TEST_F(InitialStatesTest, ATextFromAStateIsThatOfAModelWithTheStateInItsWeights) {
  const std::vector<TokenId> text = RandomText(30);
  const auto in_weights = ScoreFrom(*Load(), NewSequence(), text);
  WriteState("tuned", state_);
  // A named state replaces the one of the weights.
  TensorMap zeros;
  for (const auto& [name, tensor] : state_) zeros[name] = at::zeros_like(tensor);
  WriteState("zero.0", zeros);
  std::vector<InitialState> states = Read();
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].name, "tuned");
  EXPECT_EQ(states[1].name, "zero.0");
  const auto from_zeros = ScoreFrom(*Load(), states[1].snapshot, text);
  EXPECT_TRUE(Same(ScoreFrom(*Load(), states[0].snapshot, text), in_weights));

  TakeFromWeights();
  states = Read();
  const auto runner = Load();
  // The slot still holds the state of another sequence.
  Generate(*runner, 3, RandomText(20), 5, Warm(1));
  EXPECT_TRUE(Same(ScoreFrom(*runner, states[0].snapshot, text), in_weights));
  EXPECT_TRUE(Same(ScoreFrom(*runner, NewSequence(), text), from_zeros));
  EXPECT_FALSE(Same(in_weights, from_zeros));
}

TEST_F(InitialStatesTest, StatesOfOneFileHaveOneHashInEveryProcess) {
  WriteState("a", state_);
  WriteState("b", state_);
  TensorMap other = state_;
  other.begin()->second = other.begin()->second.neg();
  WriteState("c", other);
  const std::vector<InitialState> states = Read();
  ASSERT_EQ(states.size(), 3U);
  EXPECT_EQ(states[0].hash, states[1].hash);
  EXPECT_NE(states[0].hash, states[2].hash);
  EXPECT_EQ(states[0].hash, Read()[0].hash);
}

TEST_F(InitialStatesTest, NumbersMayBeStoredInHalfTheBits) {
  TensorMap half;
  for (auto& [name, tensor] : state_) {
    half[name] = tensor.to(at::kBFloat16);
    tensor = half[name].to(at::kFloat);
  }
  WriteState("half", half);
  WriteState("whole", state_);
  const std::vector<InitialState> states = Read();
  ASSERT_EQ(states.size(), 2U);
  EXPECT_EQ(states[0].snapshot, states[1].snapshot);
}

TEST_F(InitialStatesTest, FilesWithOtherNamesAreNoStates) {
  for (const char* name : {"", "a b", "a/b", "ä"}) EXPECT_FALSE(IsStateName(name)) << name;
  EXPECT_TRUE(IsStateName(std::string(64, 'x')));
  EXPECT_FALSE(IsStateName(std::string(65, 'x')));
  for (const char* file : {"state-.safetensors", "state-a b.safetensors", "state-a.pth", "a"}) {
    WriteBytes(folder_.File(file), "no state");
  }
  EXPECT_TRUE(Read().empty());
}

TEST_F(InitialStatesTest, ADamagedOrForeignStateIsRefusedByFileAndTensor) {
  const std::string path = folder_.File(StateFileName("x"));
  const auto refused = [&](const TensorMap& tensors, const std::string& why) {
    WriteState("x", tensors);
    EXPECT_THAT(LoadModel(options_), StatusIs(absl::StatusCode::kInvalidArgument,
                                              HasSubstr(absl::StrCat(path, ": ", why))));
  };
  const std::string second = InitialStateName(1);
  TensorMap changed = state_;
  changed["more"] = at::ones({1});
  refused(changed, "must have 3 tensors, has 4");
  changed.erase(second);
  refused(changed, absl::StrCat("tensor '", second, "': is missing"));
  changed = state_;
  changed[second] = at::ones({2, 20, 10});
  refused(changed, absl::StrCat("tensor '", second,
                                "': must have floating-point numbers and the shape [2, 20, 20]"));
  changed[second] = at::ones({2, 20, 20}, at::kInt);
  refused(changed, absl::StrCat("tensor '", second, "': must have floating-point numbers"));
  changed[second] = at::full({2, 20, 20}, INFINITY);
  refused(changed, absl::StrCat("tensor '", second, "': has a value that is not finite"));
  WriteBytes(path, "no file of tensors");
  EXPECT_THAT(LoadModel(options_), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
}

TEST_F(InitialStatesTest, OnlyRwkv7TakesStates) {
  WriteState("x", state_);
  UseMixer(ExampleMixer(MixerKind::kWkv4, /*tokens=*/64), &config_);
  Write();
  EXPECT_THAT(LoadModel(options_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("only a model of the kind wkv7 takes")));
}

TEST_F(InitialStatesTest, AModelThatNumbersItsPositionsTakesNoStates) {
  WriteState("x", state_);
  config_.position = PositionKind::kSinusoidal;
  config_.max_seq_len = 64;
  Write();
  EXPECT_THAT(LoadModel(options_), StatusIs(absl::StatusCode::kInvalidArgument,
                                            HasSubstr("a model with a table of positions takes")));
}

}  // namespace
}  // namespace aft
