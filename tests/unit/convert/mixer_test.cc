// Tests imports of bare mixers from a config. Missing projections become identities, so that LSG's
// class and others are functions of q, k and v. Projections that cannot be identities are refused.

#include <string>

#include "ATen/ops/from_blob.h"
#include "ATen/ops/randn.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "model/convert/import.h"
#include "tests/parity/goldens.h"
#include "tests/support/tolerances.h"
#include "tests/unit/convert/harness.h"

namespace aft {
namespace {

class MixerImportTest : public testing::Test {
 protected:
  absl::StatusOr<Import> From(const std::string& mixer, const std::string& rest = "",
                              const TensorMap& tensors = {}) const {
    WriteBytes(path_, absl::StrCat(R"({"format_version": 1, "architecture": "mixer", "n_layers": 1,
                                   "d_model": 16)",
                                   rest, R"(, "mixer": )", mixer, "}"));
    return ImportMixer(path_, tensors);
  }

  const TempFolder folder_;
  const std::string path_ = folder_.File("config.json");
};

TEST_F(MixerImportTest, EqualsTheClassOfLsgOnQueriesKeysAndValues) {
  const TensorMap cases = ReadGoldens("block_local").tensors;
  const at::Tensor packed = cases.at("packed")[0];  // [19, 48]
  for (const bool global : {true, false}) {
    const std::string dir = folder_.File(global ? "global" : "local");
    WriteAndRead(
        From(absl::StrCat(R"({"kind": "block_local", "block_size": 4, "heads": 2, "causal": false,
                          "global_token": )",
                          global ? "true" : "false", "}")),
        dir);
    const LoadedModel model = Load(dir);
    const std::string form = absl::StrCat("bidirectional.", global ? "global" : "local");
    int seen = 0;
    for (const auto& [name, want] : cases) {
      if (name.find(form + ".expected.") != 0 || want.dim() != 2) continue;
      if (name.find("mask") != std::string::npos) continue;
      const at::Tensor rows = packed.narrow(0, 0, want.size(0));
      const auto vectors = model.encoder->Encode({{.vectors = Floats(rows.narrow(1, 0, 16)),
                                                   .keys = Floats(rows.narrow(1, 16, 16)),
                                                   .values = Floats(rows.narrow(1, 32, 16))}});
      ASSERT_TRUE(vectors.ok()) << vectors.status();
      EXPECT_EQ((*vectors)[0].size(), static_cast<size_t>(want.numel()));
      const at::Tensor got = at::from_blob(const_cast<float*>((*vectors)[0].data()), want.sizes());
      EXPECT_TRUE(Close(got, want, tolerance::kLayer)) << name;
      ++seen;
    }
    EXPECT_GT(seen, 1);
  }
}

TEST_F(MixerImportTest, UsesTheGivenTensorsAndMakesTheOthers) {
  const at::Tensor out = at::randn({16, 16});
  const at::Tensor w = at::randn({8, 8});
  const auto import = From(R"({"kind": "aft_full", "band_rows": 8, "bias": "full"})",
                           R"(, "max_seq_len": 8)", {{"out.weight", out}, {"w.full", w}});
  ASSERT_TRUE(import.ok()) << import.status();
  EXPECT_TRUE(import->tensors.at("layers.0.mixer.out.weight").make()->equal(out));
  EXPECT_TRUE(import->tensors.at("layers.0.mixer.w.full").make()->equal(w));
  EXPECT_EQ(import->tensors.at("layers.0.mixer.out.bias").make()->abs().max().item<float>(), 0);
  const Checkpoint checkpoint = WriteAndRead(import, folder_.File("out"));
  EXPECT_EQ(checkpoint.tensors.size(), 5U);
}

TEST_F(MixerImportTest, RefusalsNameTheTensorOrTheFile) {
  const auto missing = [this](const std::string& mixer, const std::string& rest = "") {
    return From(mixer, rest).status();
  };
  EXPECT_THAT(missing(R"({"kind": "cosine", "heads": 2})", R"(, "max_seq_len": 8)"),
              Refused("tensor 'qkv.weight': is missing, and the identity cannot replace it: b of "
                      "cosine has 2 columns, but the vectors have 16"));
  EXPECT_THAT(missing(R"({"kind": "aft_simple", "hidden": 8})"),
              Refused("q of aft_simple has 8 columns, but the vectors have 16"));
  EXPECT_THAT(
      missing(R"({"kind": "aft_full", "band_rows": 8, "bias": "full"})", R"(, "max_seq_len": 8)"),
      Refused("tensor 'w.full': is missing"));
  EXPECT_THAT(From(R"({"kind": "aft_simple"})", "", {{"w.full", at::randn({2, 2})}}).status(),
              Refused("tensor 'w.full': has no place"));
  EXPECT_THAT(From(R"({"kind": "aft_simple"})", "", {{"out.bias", at::randn({2})}}).status(),
              Refused("tensor 'out.bias': has shape [2], expected [16]"));
  WriteBytes(path_, R"({"format_version": 2})");
  EXPECT_THAT(ImportMixer(path_, TensorMap()).status(), Refused(path_ + ": format_version"));
  const std::string nothing = folder_.File("nothing");
  EXPECT_THAT(ImportMixer(nothing, TensorMap()).status(),
              StatusIs(absl::StatusCode::kNotFound, testing::HasSubstr(nothing)));
}

}  // namespace
}  // namespace aft
