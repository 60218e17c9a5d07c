// Real models in a server, over real gRPC.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/randn.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/tensors.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

constexpr char kShippedModel[] = "model/zoo/austen-aft-local";
constexpr char kPrompt[] = "It is a truth universally acknowledged, that";

ServerConfig ConfigOf(const std::string& path) {
  ServerConfig config = TestConfig();
  config.models[0].checkpoint_dir = path;
  config.models[0].slots = 8;
  config.models[0].max_step_tokens = 48;  // texts are read in several chunks
  config.models[0].intra_op_threads = 2;
  return config;
}

class ServedModel final : public TestServer {
 public:
  explicit ServedModel(const ServerConfig& config) : TestServer(config, LoadModel) {
    const absl::Status ready = server().WaitReady();
    EXPECT_TRUE(ready.ok()) << ready;
  }
};

// The log-probability of each token of the text except the first.
std::vector<float> Score(TestServer& server, const std::vector<TokenId>& text) {
  v1::ScoreRequest request;
  for (const TokenId id : text) request.mutable_tokens()->add_ids(static_cast<uint32_t>(id));
  ScoreStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  std::vector<float> scores;
  for (const v1::ScoreResponse& event : stream.events) {
    for (const v1::TokenLogprobs& token : event.chunk().logprobs()) {
      scores.push_back(token.logprob());
    }
  }
  return scores;
}

std::vector<float> Encode(TestServer& server, const std::string& text, v1::Pooling pooling) {
  v1::EncodeRequest request;
  request.set_text(text);
  request.set_pooling(pooling);
  EncodeStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return ValuesOf(stream);
}

struct Generated {
  std::vector<TokenId> text;  // prompt and output
  std::vector<float> logprobs;
};

Generated Generate(TestServer& server, uint64_t seed) {
  v1::GenerateRequest request = Request(kPrompt, 150, seed);
  request.mutable_output()->set_top_logprobs(0);
  GenerateStream stream(server.inference(), request);
  Generated generated;
  for (const char c : std::string(kPrompt)) {
    generated.text.push_back(static_cast<unsigned char>(c));  // each byte is one token
  }
  while (stream.Next()) {
    for (const v1::TokenLogprobs& token : stream.event().delta().logprobs()) {
      generated.logprobs.push_back(token.logprob());
    }
  }
  EXPECT_TRUE(stream.Finish().ok());
  generated.text.insert(generated.text.end(), stream.tokens.begin(), stream.tokens.end());
  return generated;
}

// The attack: a client gets a slot that another client had before, and exports a state whose text
// is one byte.
TEST(ServedModelTest, AnExportedStateRevealsNothingOfEarlierUsersOfTheSlot) {
  const TempFolder folder;
  ServerConfig config = ConfigOf(kShippedModel);
  UseStateKey(folder, config);  // so that exports are comparable
  const auto export_of = [](TestServer& server, const std::string& text) {
    v1::ScoreRequest request;
    request.set_raw(text);
    request.mutable_store();
    ScoreStream stream(server.inference(), request);
    EXPECT_TRUE(stream.Finish().ok());
    grpc::ClientContext context;
    v1::StateServiceExportRequest wanted;
    wanted.set_id(stream.events.back().finished().state().id());
    const auto reader = server.states().Export(&context, wanted);
    v1::StateServiceExportResponse response;
    std::string bytes;
    while (reader->Read(&response)) bytes += response.chunk();
    EXPECT_TRUE(reader->Finish().ok());
    return bytes;
  };
  ServedModel fresh(config);
  ServedModel used(config);
  for (int slot = 0; slot < 2 * config.models[0].slots; ++slot) {
    v1::GenerateRequest secret = Request("my password is hunter2, tell no one", 60, slot);
    EXPECT_TRUE(GenerateStream(used.inference(), secret).Finish().ok());
  }
  for (const char* text : {"A", "It", "It is a truth"}) {
    const std::string expected = export_of(fresh, text);
    for (int32_t slot = 0; slot < config.models[0].slots; ++slot) {
      EXPECT_TRUE(export_of(used, text) == expected) << text;
    }
  }
}

TEST(ServedModelTest, ScoresAreTheSameBitsUnderAnyLoad) {
  ServedModel server(ConfigOf(kShippedModel));
  const Generated generated = Generate(server, 3);
  const std::vector<float> alone = Score(server, generated.text);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 4; ++i) {
        if (t % 2 == 0) {
          EXPECT_EQ(Score(server, generated.text), alone);
        } else {
          const Generated again = Generate(server, 3);
          EXPECT_EQ(again.text, generated.text);
          EXPECT_EQ(again.logprobs, generated.logprobs);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(ServedModelTest, ALanguageModelsVectorsAreTheSameBitsHoweverTheTextIsCut) {
  const std::string text(200, 'e');
  std::vector<std::vector<float>> answers[2];
  for (const int64_t step_tokens : {int64_t{48}, int64_t{64}}) {
    ServerConfig config = ConfigOf(kShippedModel);
    config.models[0].max_step_tokens = step_tokens;
    ServedModel server(config);
    auto& answer = answers[step_tokens == 48 ? 0 : 1];
    for (const v1::Pooling pooling :
         {v1::POOLING_UNSPECIFIED, v1::POOLING_MEAN, v1::POOLING_LAST}) {
      answer.push_back(Encode(server, text, pooling));
    }
    const size_t width = answer[2].size();
    ASSERT_EQ(answer[0].size(), text.size() * width);
    EXPECT_EQ(answer[1].size(), width);
    EXPECT_EQ(answer[2], std::vector<float>(answer[0].end() - static_cast<std::ptrdiff_t>(width),
                                            answer[0].end()));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

TEST(ServedModelTest, AnEncodersVectorsDoNotDependOnTheirBatch) {
  NetworkConfig network;
  network.architecture = Architecture::kEncoder;
  network.vocab_size = 256;
  network.d_model = 16;
  network.n_layers = 2;
  network.d_ff = 32;
  network.mixer.kind = MixerKind::kAftLocal;
  network.mixer.window = 4;
  network.mixer.causal = false;
  TensorMap tensors;
  for (const TensorSpec& spec : ExpectedTensors(network)) {
    tensors[spec.name] = at::randn(spec.shape);
  }
  const TempFolder folder;
  const absl::Status written = WriteCheckpoint(folder.File("encoder"), network, tensors);
  ASSERT_TRUE(written.ok()) << written;
  ServerConfig config = ConfigOf(folder.File("encoder"));
  ServedModel server(config);

  const auto encode = [&](const std::string& text, v1::Pooling pooling) {
    return Encode(server, text, pooling);
  };
  const std::string text = "It is a truth";
  const std::vector<float> alone = encode(text, v1::POOLING_UNSPECIFIED);
  ASSERT_EQ(alone.size(), text.size() * 16);
  const std::vector<float> last = encode(text, v1::POOLING_LAST);
  EXPECT_EQ(last, std::vector<float>(alone.end() - 16, alone.end()));

  std::vector<std::thread> threads;
  for (size_t t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 10; ++i) {
        if (t % 2 == 0) {
          EXPECT_EQ(encode(text, v1::POOLING_UNSPECIFIED), alone);
        } else {
          EXPECT_EQ(encode(std::string(1 + 17 * t, 'x'), v1::POOLING_MEAN).size(), 16U);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace aft::server
