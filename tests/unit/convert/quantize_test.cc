// Tests checkpoints whose file holds matrices in fewer bits.

#include <filesystem>
#include <string>
#include <vector>

#include "ATen/ops/ones.h"
#include "gtest/gtest.h"
#include "model/config/tensors.h"
#include "model/convert/inspect.h"
#include "tests/support/collect.h"
#include "tests/support/formats.h"
#include "tests/support/shown_progress.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

constexpr char kModel[] = "model/zoo/austen-aft-local";

class QuantizeTest : public testing::TestWithParam<Number> {
 protected:
  std::string Quantize() {
    const std::string dir = folder_.File("out");
    EXPECT_EQ(WriteImport(dir, *Quantized(kModel, GetParam())), absl::OkStatus());
    return dir;
  }

  // Returns the log-probabilities of a text.
  static std::vector<float> Score(const std::string& dir, const std::string& format) {
    LoadOptions options;
    options.checkpoint_dir = dir;
    options.weight_format = format;
    options.slots = 1;
    const absl::StatusOr<LoadedModel> model = LoadModel(options);
    EXPECT_TRUE(model.ok()) << model.status();
    if (format != "stored") {
      EXPECT_EQ(model->runner->info().weight_format, format);
    }
    StepRow row = {.slot = 0, .tokens = {}, .output = RowOutput::kScore};
    for (const char c : std::string("It is a truth universally acknowledged, that a single man")) {
      row.tokens.push_back(c);
    }
    row.targets.assign(row.tokens.begin() + 1, row.tokens.end());
    SlotTerms terms;
    terms.sampling.top_logprobs = 5;
    AFT_CHECK(model->runner->BindSlot(0, NewSequence(), terms).ok());
    const StepOutput output = *Collect(*model->runner, *model->runner->Submit({{row}}));
    std::vector<float> logprobs;
    for (const SampledToken& token : output.scored.at(0)) {
      logprobs.push_back(token.logprob);
      for (const TokenLogprob& other : token.top) logprobs.push_back(other.logprob);
    }
    return logprobs;
  }

  TempFolder folder_;
};

TEST_P(QuantizeTest, EqualsTheModelThatTheWeightFormatMakes) {
  const std::string dir = Quantize();
  const std::vector<float> expected = Score(kModel, NumberName(GetParam()));
  EXPECT_EQ(Score(dir, NumberName(GetParam())), expected);
  EXPECT_EQ(Score(dir, "stored"), expected);
  EXPECT_NE(Score(kModel, "stored"), expected);
  EXPECT_EQ(Score(kModel, "stored"), Score(kModel, "fp32"));
  const auto bytes = [](const std::string& folder) {
    return static_cast<double>(std::filesystem::file_size(folder + "/" + kWeightsFileName));
  };
  const double share = static_cast<double>(NumberBytes(GetParam())) / NumberBytes(Number::kFp32);
  EXPECT_LT(bytes(dir) / bytes(kModel), share + (IsQuantized(GetParam()) ? 0.02 : 0.01));
  const CheckpointFile file = *OpenCheckpoint(dir);
  EXPECT_EQ(file.weight_format, GetParam());
  EXPECT_NEAR(static_cast<double>(file.weight_bytes), bytes(dir), 20'000);  // the file's header
}

TEST_P(QuantizeTest, ShowsItsProgress) {
  ShownProgress shown;
  const absl::StatusOr<Import> import = Quantized(kModel, GetParam(), &shown.progress);
  shown.ExpectComplete();
  ASSERT_EQ(WriteImport(folder_.File("out"), *import, &shown.progress), absl::OkStatus());
  shown.ExpectComplete();
}

TEST_P(QuantizeTest, QuantizingAgainChangesNothing) {
  const std::string dir = Quantize();
  const std::string again = folder_.File("again");
  ASSERT_EQ(WriteImport(again, *Quantized(dir, GetParam())), absl::OkStatus());
  const TensorMap once = ReadSafetensors(dir + "/" + kWeightsFileName)->tensors;
  const TensorMap twice = ReadSafetensors(again + "/" + kWeightsFileName)->tensors;
  ASSERT_EQ(once.size(), twice.size());
  for (const auto& [name, tensor] : once) {
    EXPECT_EQ(tensor.scalar_type(), twice.at(name).scalar_type()) << name;
    EXPECT_TRUE(tensor.equal(twice.at(name))) << name;
  }
}

TEST_P(QuantizeTest, TablesStayAsTheyAre) {
  const TensorMap stored = ReadSafetensors(Quantize() + "/" + kWeightsFileName)->tensors;
  const Checkpoint original = *ReadCheckpoint(kModel);
  for (const TensorSpec& spec : ExpectedTensors(original.config)) {
    if (spec.role == TensorRole::kMatrix) {
      EXPECT_NE(stored.at(spec.name).scalar_type(), at::kFloat) << spec.name;
    } else {
      EXPECT_TRUE(stored.at(spec.name).equal(original.tensors.at(spec.name))) << spec.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeTest,
                         testing::ValuesIn(FormatsThat([](const FormatSpec& spec) {
                           return spec.is_converted_to;
                         })),
                         [](const auto& test) { return NumberName(test.param); });

// int8 sums the products of at most 131,072 inputs.
TEST(StoredWeightsTest, AFormatThatNoDeviceServesIsNeitherMadeNorShown) {
  NetworkConfig config;
  config.vocab_size = 256;
  config.d_model = 2;
  config.n_layers = 1;
  config.d_ff = 131'073;
  config.mixer.window = 4;
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(config)) tensors[spec.name] = at::ones(spec.shape);
  const TempFolder folder;
  ASSERT_EQ(WriteCheckpoint(folder.path(), config, tensors), absl::OkStatus());
  EXPECT_TRUE(Quantized(folder.path(), Number::kBf16).ok());
  EXPECT_THAT(Quantized(folder.path(), QuantizedFormats().at(0)),
              Refused(folder.path() + "/config.json: d_ff: at most 131072 with int8 weights"));
  const auto inspection = Inspect(folder.path());
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  const auto& formats = inspection->at("sizing").at("formats");
  EXPECT_TRUE(formats.contains("bf16") && !formats.contains("int8")) << formats;
}

TEST(StoredWeightsTest, IntegersWithoutTheirScalesAreRefusedByName) {
  const TempFolder folder;
  const std::string dir = folder.File("out");
  ASSERT_EQ(WriteImport(dir, *Quantized(kModel, QuantizedFormats().at(0))), absl::OkStatus());
  const std::string path = dir + "/" + kWeightsFileName;
  const TensorMap good = ReadSafetensors(path)->tensors;
  const std::string name = "layers.1.ffn.up.weight";
  for (const at::Tensor& scales :
       {at::Tensor(), at::ones({767}), at::ones({768, 1}), at::ones({768}, at::kDouble)}) {
    TensorMap tensors = good;
    if (scales.defined()) {
      tensors[name + ".scale"] = scales;
    } else {
      tensors.erase(name + ".scale");
    }
    ASSERT_EQ(WriteSafetensors(path, tensors), absl::OkStatus());
    EXPECT_THAT(ReadCheckpoint(dir).status(),
                StatusIs(absl::StatusCode::kDataLoss,
                         testing::HasSubstr("tensor '" + name + "': is I8 without")));
  }
  TensorMap tensors = good;
  tensors["layers.1.ffn.up.bias"] = at::ones({768}, at::kChar);
  ASSERT_EQ(WriteSafetensors(path, tensors), absl::OkStatus());
  EXPECT_EQ(ReadCheckpoint(dir).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace aft
