// Imports AFT modules of labml_nn and aft_pytorch from the packages' own state_dicts, and expects
// the packages' outputs from the checkpoints. Tests every refusal too.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ATen/TensorOperators.h"
#include "ATen/ops/full.h"
#include "ATen/ops/isfinite.h"
#include "ATen/ops/linear.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/ones.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/convert/import.h"
#include "tests/parity/goldens.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

// 1, s - 1, s, s + 1 and the maximum, with the window s = 8
constexpr int64_t kLengths[] = {1, 7, 8, 9, 64};

// Reads each text as a whole. A causal module also reads it with a state, in one chunk and token by
// token.
void ExpectThePackagesOutputs(const std::string& name, const Checkpoint& checkpoint) {
  SCOPED_TRACE(name);
  EXPECT_EQ(checkpoint.config.architecture, Architecture::kMixer);
  const TensorMap cases = ReadGoldens(name + ".cases").tensors;
  for (const int64_t t : kLengths) {
    const at::Tensor x = cases.at("x").narrow(0, 0, t);
    std::vector<at::Tensor> outputs = {EncodeModule(checkpoint, x)};
    if (checkpoint.config.mixer.causal) {
      for (const int64_t chunk : {t, int64_t{1}})
        outputs.push_back(RunModule(checkpoint, x, chunk));
    }
    for (const at::Tensor& y : outputs) {
      EXPECT_TRUE(Close(y, cases.at("expected." + std::to_string(t)), tolerance::kLayer)) << t;
      EXPECT_TRUE(Close(y, cases.at("package." + std::to_string(t)), tolerance::kLayer)) << t;
    }
  }
}

TEST(AftPytorchImportTest, GivesThePackagesOutputs) {
  const TempFolder folder;
  struct Class {
    std::string name;
    MixerKind kind;
    std::optional<int64_t> window;
    int64_t max_seq_len;  // AFTSimple has no table by position, and so no limit
  };
  for (const Class& one : {Class{"full", MixerKind::kAftFull, std::nullopt, 64},
                           {"simple", MixerKind::kAftSimple, std::nullopt, 0},
                           {"local", MixerKind::kAftLocal, 8, 64}}) {
    for (const char* hidden : {"_16", "_32"}) {
      const std::string name = "aft_pytorch_" + one.name + hidden;
      const Checkpoint checkpoint =
          WriteAndRead(ImportAftPytorch(ReadGoldens(name).tensors, one.window), folder.File(name));
      EXPECT_EQ(checkpoint.config.mixer.kind, one.kind);
      EXPECT_FALSE(checkpoint.config.mixer.causal);
      EXPECT_EQ(checkpoint.config.max_seq_len, one.max_seq_len);
      ExpectThePackagesOutputs(name, checkpoint);
    }
  }
}

TEST(LabmlImportTest, GivesThePackagesOutputs) {
  const TempFolder folder;
  for (const std::string name : {"labml_aft_local", "labml_aft_local_nobias"}) {
    Checkpoint checkpoint =
        WriteAndRead(ImportLabml(ReadGoldens(name).tensors, {}), folder.File(name));
    EXPECT_EQ(checkpoint.config.mixer.kind, MixerKind::kAftLocal);
    EXPECT_TRUE(checkpoint.config.mixer.causal);
    EXPECT_EQ(checkpoint.config.mixer.window, 8);
    EXPECT_EQ(checkpoint.config.max_seq_len, 64);
    EXPECT_EQ(checkpoint.config.qkv_bias, name == "labml_aft_local");
    ExpectThePackagesOutputs(name, checkpoint);
    // With a ring in bf16 the outputs stay close.
    checkpoint.config.mixer.ring = Number::kBf16;
    const TensorMap cases = ReadGoldens(name + ".cases").tensors;
    EXPECT_TRUE(
        Close(RunModule(checkpoint, cases.at("x"), 1), cases.at("expected.64"), tolerance::kBf16));
  }
}

// Compares with labml's formula in float64, with an attention mask that hides nothing.
TEST(LabmlImportTest, AModuleMayBeBidirectional) {
  const TempFolder folder;
  TensorMap state = ReadGoldens("labml_aft_local").tensors;
  const Checkpoint module =
      WriteAndRead(ImportLabml(state, {.bidirectional = true}), folder.File("out"));
  EXPECT_FALSE(module.config.mixer.causal);
  const at::Tensor x = ReadGoldens("labml_aft_local.cases").tensors.at("x");
  const auto project = [&state](const char* name, const at::Tensor& in) {
    return at::linear(in, state.at(absl::StrCat(name, ".weight")).to(at::kDouble),
                      state.at(absl::StrCat(name, ".bias")).to(at::kDouble));
  };
  for (const int64_t t : kLengths) {
    const at::Tensor rows = x.narrow(0, 0, t).to(at::kDouble);
    const at::Tensor w = (state.at("pos_bias") * state.at("local_mask"))
                             .to(at::kDouble)
                             .narrow(0, 0, t)
                             .narrow(1, 0, t)
                             .exp();
    const at::Tensor key = project("key", rows).exp();
    const at::Tensor mean = at::mm(w, key * project("value", rows)) / at::mm(w, key);
    const at::Tensor want = project("output", project("query", rows).sigmoid() * mean);
    EXPECT_TRUE(Close(EncodeModule(module, x.narrow(0, 0, t)), want, tolerance::kLayer)) << t;
  }
  EXPECT_THAT(ImportLabml(ReadGoldens("labml_lm").tensors, {.bidirectional = true}),
              Refused("--bidirectional is for modules"));
}

TEST(DifferenceTest, KeysAbove88AreFiniteOnlyHere) {
  const TempFolder folder;
  const Checkpoint module =
      WriteAndRead(ImportAftPytorch(ReadGoldens("aft_pytorch_overflow").tensors, std::nullopt),
                   folder.File("out"));
  const TensorMap cases = ReadGoldens("aft_pytorch_overflow.cases").tensors;
  EXPECT_FALSE(at::isfinite(cases.at("package.16")).any().item<bool>());
  EXPECT_TRUE(Close(EncodeModule(module, cases.at("x")), cases.at("expected.16"),
                    tolerance::kLayerKeys100));
}

TEST(DifferenceTest, KeysThatRiseBy104AreFiniteOnlyHere) {
  const TempFolder folder;
  const Checkpoint module =
      WriteAndRead(ImportLabml(ReadGoldens("labml_spread").tensors, {}), folder.File("out"));
  const TensorMap cases = ReadGoldens("labml_spread.cases").tensors;
  EXPECT_FALSE(at::isfinite(cases.at("package.64")).all().item<bool>());
  for (const int64_t chunk : {64, 1}) {
    EXPECT_TRUE(Close(RunModule(module, cases.at("x"), chunk), cases.at("expected.64"),
                      tolerance::kLayerKeys100));
  }
}

// Checks the band in another way than the importer computes it: one element at a time.
TEST(BandTest, OnlyTheBandOfThePositionBiasIsKept) {
  TensorMap state = ReadGoldens("labml_aft_local").tensors;
  const at::Tensor bias = state.at("pos_bias");
  const auto causal = ImportLabml(state, {});
  ASSERT_TRUE(causal.ok()) << causal.status();
  const at::Tensor band = *causal->tensors.at("layers.0.mixer.w.band").make();
  ASSERT_EQ(band.sizes(), (at::IntArrayRef{64, 8}));
  TensorMap pytorch = ReadGoldens("aft_pytorch_local_16").tensors;
  const at::Tensor w = pytorch.at("wbias");
  const auto both_ways = ImportAftPytorch(pytorch, 8);
  ASSERT_TRUE(both_ways.ok()) << both_ways.status();
  const at::Tensor wide = *both_ways->tensors.at("layers.0.mixer.w.band").make();
  ASSERT_EQ(wide.sizes(), (at::IntArrayRef{64, 15}));
  for (int64_t t = 0; t < 64; ++t) {
    for (int64_t key = 0; key < 64; ++key) {
      if (t - key >= 0 && t - key < 8) {
        EXPECT_EQ(band[t][t - key].item<float>(), bias[t][key].item<float>());
      }
      if (t - key > -8 && t - key < 8) {
        EXPECT_EQ(wide[t][t - key + 7].item<float>(), w[t][key].item<float>());
      }
    }
  }
  EXPECT_EQ(band[0][1].item<float>(), 0.0F);  // there is no key -1
}

TEST(BandTest, GarbageOutsideOfTheBandChangesNothing) {
  const TempFolder folder;
  TensorMap state = ReadGoldens("aft_pytorch_local_16").tensors;
  const Checkpoint before = WriteAndRead(ImportAftPytorch(state, 8), folder.File("before"));
  // The package's own forward pass sets these elements of the state_dict to zero.
  state["wbias"] = ReadGoldens("aft_pytorch_local_16.cases").tensors.at("wbias_after_forward");
  const Checkpoint after = WriteAndRead(ImportAftPytorch(state, 8), folder.File("after"));
  for (const auto& [name, tensor] : before.tensors) {
    EXPECT_TRUE(tensor.equal(after.tensors.at(name))) << name;
  }
}

TEST(BandTest, WindowsThatCoverNothingOrEverything) {
  const TempFolder folder;
  const TensorMap state = ReadGoldens("aft_pytorch_local_16").tensors;
  const at::Tensor x = ReadGoldens("aft_pytorch_local_16.cases").tensors.at("x");
  const Checkpoint none = WriteAndRead(ImportAftPytorch(state, 0), folder.File("none"));
  EXPECT_EQ(none.tensors.count("layers.0.mixer.w.band"), 0U);
  TensorMap simple = state;
  simple.erase("wbias");
  const Checkpoint as_simple =
      WriteAndRead(ImportAftPytorch(simple, std::nullopt), folder.File("simple"));
  EXPECT_TRUE(Close(EncodeModule(none, x), EncodeModule(as_simple, x), tolerance::kLayer));
  const Checkpoint full = WriteAndRead(ImportAftPytorch(state, std::nullopt), folder.File("full"));
  for (const int64_t window : {64, 1000}) {
    const Checkpoint all =
        WriteAndRead(ImportAftPytorch(state, window), folder.File(std::to_string(window)));
    EXPECT_EQ(all.config.mixer.window, 64);
    EXPECT_TRUE(Close(EncodeModule(all, x), EncodeModule(full, x), tolerance::kLayer));
  }
}

TEST(SourceTypesTest, SixteenBitTypesStayAndDoublesBecomeFp32) {
  const TensorMap state = ReadGoldens("labml_aft_local").tensors;
  for (const at::ScalarType type : {at::kDouble, at::kHalf, at::kBFloat16}) {
    TensorMap converted = state;
    for (auto& [name, tensor] : converted) {
      if (tensor.is_floating_point()) tensor = tensor.to(type);
    }
    const auto import = ImportLabml(converted, {});
    ASSERT_TRUE(import.ok()) << import.status();
    const at::ScalarType kept = type == at::kDouble ? at::kFloat : type;
    for (const auto& [name, tensor] : import->tensors) {
      EXPECT_EQ(tensor.type, kept) << name;
      EXPECT_TRUE(tensor.make()->is_contiguous()) << name;
    }
    const at::Tensor expected = state.at("output.weight").to(kept);
    EXPECT_TRUE(import->tensors.at("layers.0.mixer.out.weight").make()->equal(expected));
    const TempFolder folder;
    EXPECT_TRUE(WriteAndRead(import, folder.File("out"))
                    .tensors.at("layers.0.mixer.out.weight")
                    .equal(expected.to(at::kFloat)));
  }
}

// Query, key and value become one tensor, so they need one type.
TEST(SourceTypesTest, PartsOfDifferentTypesBecomeFp32) {
  TensorMap state = ReadGoldens("labml_aft_local").tensors;
  const at::Tensor key = state.at("key.weight").to(at::kHalf);
  state["key.weight"] = key;
  const auto import = ImportLabml(state, {});
  ASSERT_TRUE(import.ok()) << import.status();
  const at::Tensor packed = *import->tensors.at("layers.0.mixer.qkv.weight").make();
  EXPECT_EQ(packed.scalar_type(), at::kFloat);
  EXPECT_TRUE(packed.narrow(0, 32, 32).equal(key.to(at::kFloat)));
}

TEST(LabmlRefusalTest, NamesTheTensor) {
  const TensorMap state = ReadGoldens("labml_aft_local").tensors;
  const auto import = [](const TensorMap& tensors) { return Made(ImportLabml(tensors, {})); };
  const at::Tensor mask = state.at("local_mask");
  at::Tensor no_band = mask.clone();
  no_band[40][3].fill_(true);
  ExpectRefused(
      state, import,
      {{"value.weight", {}, "is missing"},
       {"query.weight", {}, "is missing"},
       {"key.bias", {}, "is missing"},
       {"output.bias", {}, "is missing"},
       {"pos_bias", {}, "is missing"},
       {"local_mask", {}, "is missing: the window must be given"},
       {"key.weight", at::zeros({31, 32}), "has shape [31, 32], expected [32, 32]"},
       {"query.weight", at::zeros({32}), "has shape [32], expected [any, any]"},
       {"query.weight", at::zeros({0, 32}), "has shape [0, 32]"},
       {"pos_bias", at::zeros({64, 63}), "has shape [64, 63], expected as many rows as columns"},
       {"local_mask", at::ones({63, 63}, at::kBool), "has shape [63, 63], expected [64, 64]"},
       {"local_mask", no_band, "is not a band as wide as its first row says, 8"},
       {"local_mask", mask.to(at::kFloat), "holds F32, expected BOOL"},
       {"key.bias", at::zeros({32}, at::kLong), "holds I64, expected F32, BF16, F16 or F64"},
       {"key.bias", at::full({32}, std::nan("")), "holds a value that is not finite"},
       {"key.bias", at::full({32}, 1e300, at::kDouble), "holds a value that is not finite"},
       {"gate.weight", at::zeros({2}), "has no place"}});
  TensorMap without_query_bias = state;
  without_query_bias.erase("query.bias");
  EXPECT_THAT(import(without_query_bias),
              Refused("tensors 'key.bias', 'value.bias': have no place"));
  EXPECT_THAT(import({}), Refused("tensor 'query.weight': is missing"));
}

TEST(LabmlRefusalTest, TheWindowMustBeThatOfTheMask) {
  TensorMap state = ReadGoldens("labml_aft_local").tensors;
  LabmlOptions options;
  options.window = 8;
  EXPECT_TRUE(ImportLabml(state, options).ok());
  options.window = 9;
  EXPECT_THAT(ImportLabml(state, options),
              Refused("tensor 'local_mask': has a window of 8, but --window is 9"));
  options.window = 100;
  EXPECT_THAT(ImportLabml(state, options), Refused("a window of 8, but --window is 100"));
  // In labml, the mask of a window beyond T hides nothing.
  state["local_mask"] = at::ones({64, 64}, at::kBool);
  EXPECT_TRUE(ImportLabml(state, options).ok());
  options.window = 9;
  state.erase("local_mask");
  const auto import = ImportLabml(state, options);
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_EQ(import->config.mixer.window, 9);
  options.chars_path = "chars.json";
  EXPECT_THAT(ImportLabml(state, options), Refused("--chars"));
}

TEST(AftPytorchRefusalTest, NamesTheTensor) {
  ExpectRefused(
      ReadGoldens("aft_pytorch_local_16").tensors,
      [](const TensorMap& tensors) { return ImportAftPytorch(tensors, 8).status(); },
      {{"to_k.weight", {}, "is missing"},
       {"project.weight", at::zeros({16, 32}), "has shape [16, 32], expected [32, 16]"},
       {"wbias", at::zeros({64, 60}), "has shape [64, 60], expected as many rows as columns"},
       {"extra", at::zeros({1}), "has no place"},
       {"wbias", {}, "is missing: an AFTSimple, which has no window"}});
  TensorMap wrapped;  // as by DataParallel
  for (const auto& [name, tensor] : ReadGoldens("aft_pytorch_local_16").tensors) {
    wrapped["module." + name] = tensor;
  }
  EXPECT_THAT(ImportAftPytorch(wrapped, 8),
              Refused("tensor 'to_q.weight': is missing, but 'module.to_q.weight' is there: save "
                      "the state_dict() of the module inside"));
}

}  // namespace
}  // namespace aft
