// Models of other packages are imported and served. Over real gRPC, Score must answer what the
// packages computed (tests/parity/goldens).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/convert/import.h"
#include "model/tokenizer/utf8_character.h"
#include "nlohmann/json.hpp"
#include "tests/integration/server_fixture.h"
#include "tests/parity/goldens.h"
#include "tests/support/temp_files.h"
#include "tests/support/tolerances.h"

namespace aft::server {
namespace {

using tolerance::kLogProbability;

// Imports and serves a model and scores `text` with it. Returns the largest difference to
// `expected` [T, V], the log-probabilities of all V tokens after each of the T tokens in `tokens`
// [T].
double ScoreDistance(const absl::StatusOr<Import>& import, const std::string& text,
                     const at::Tensor& tokens, const at::Tensor& expected) {
  const TempFolder folder;
  const std::string dir = folder.File("imported");
  EXPECT_TRUE(import.ok()) << import.status();
  const absl::Status written = WriteImport(dir, *import);
  EXPECT_TRUE(written.ok()) << written;
  ServerConfig config = TestConfig();
  config.models[0].checkpoint_dir = dir;
  config.models[0].max_step_tokens = 16;  // the text comes in several chunks
  config.models[0].weight_format = "fp32";
  TestServer server(config, LoadModel);
  EXPECT_TRUE(server.server().WaitReady().ok());

  v1::ScoreRequest request;
  request.set_text(text);
  ScoreStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  int64_t t = 0;
  double distance = 0;
  for (const v1::ScoreResponse& event : stream.events) {
    for (int i = 0; i < event.chunk().token_ids_size(); ++i, ++t) {
      const int64_t id = event.chunk().token_ids(i);
      EXPECT_EQ(id, tokens[t + 1].item<int64_t>());
      distance = std::max(
          distance, std::abs(event.chunk().logprobs(i).logprob() - expected[t][id].item<double>()));
    }
  }
  EXPECT_EQ(t + 1, tokens.size(0));
  return distance;
}

TEST(ImportedModelTest, LabmlLanguageModelScoresAsInPyTorch) {
  const SafetensorsFile golden = ReadGoldens("labml_lm");
  const TensorMap cases = ReadGoldens("labml_lm.cases").tensors;
  std::vector<std::string> characters;
  const std::string& all = golden.metadata.at("characters");
  for (size_t at = 0; at < all.size(); at += characters.back().size()) {
    characters.push_back(all.substr(at, FirstCharacter(absl::string_view(all).substr(at)).size));
  }
  const TempFolder folder;
  LabmlOptions options;
  options.chars_path = folder.File("chars.json");
  WriteBytes(options.chars_path, nlohmann::json(characters).dump());
  const at::Tensor& tokens = cases.at("tokens");
  std::string text;
  for (int64_t t = 0; t < tokens.size(0); ++t) {
    text += characters[static_cast<size_t>(tokens[t].item<int64_t>())];
  }
  EXPECT_LE(ScoreDistance(ImportLabml(golden.tensors, options), text, tokens, cases.at("package")),
            kLogProbability);
}

TEST(ImportedModelTest, Gpt2ScoresAsInPyTorchWithItsOwnAndWithBlockLocalAttention) {
  const SafetensorsFile cases = ReadGoldens("gpt2.cases");
  AttentionOptions options;
  options.block_size = std::stoll(cases.metadata.at("block_size"));
  for (const bool block_local : {false, true}) {
    options.block_local = block_local;
    const std::string name = block_local ? "block_local.package" : "dot_product.package";
    EXPECT_LE(
        ScoreDistance(ImportGpt2("tests/parity/goldens/gpt2", options), cases.metadata.at("text"),
                      cases.tensors.at("tokens"), cases.tensors.at(name)),
        kLogProbability)
        << name;
  }
}

TEST(ImportedModelTest, AFolderOfTheHubScoresAsInPyTorch) {
  const SafetensorsFile cases = ReadGoldens("gpt2_hub.cases");
  EXPECT_LE(
      ScoreDistance(ImportGpt2("tests/parity/goldens/gpt2_hub", {}), cases.metadata.at("text"),
                    cases.tensors.at("tokens"), cases.tensors.at("package")),
      kLogProbability);
}

}  // namespace
}  // namespace aft::server
