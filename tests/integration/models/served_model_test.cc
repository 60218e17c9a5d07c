// Real models in a server, over real gRPC.
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "model/api/load.h"
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

}  // namespace
}  // namespace aft::server
