// One long conversation with the real program and the shipped model. It runs over several replicas
// that are killed and started again. It has turns, forks from older states and edits. States move
// by export and import, or lie in a Redis that all replicas share and that is killed too. The
// result must equal one uninterrupted run over the same token ids.
#include <signal.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/engine/sequence_state.h"
#include "tests/chaos/program.h"
#include "tests/integration/server_fixture.h"
#include "tests/property/random_inputs.h"
#include "tests/support/redis_server.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

constexpr size_t kReplicas = 3;

int Turns() {
  const char* const turns = std::getenv("AFT_CONVERSATION_TURNS");
  return turns != nullptr ? std::atoi(turns) : 250;
}

// The conversation up to the end of an answer.
struct Moment {
  std::string id;  // the id of its state
  size_t replica = 0;
  std::vector<TokenId> text;
  // The position in `text` and the log-probability of each generated token, in order.
  std::vector<std::pair<size_t, float>> logprobs;
  bool pending = true;
};

// Where states are stored: in a folder of each replica, or in a Redis that all replicas share.
enum class Rest { kFolders, kRedis };

class ConversationTest : public testing::TestWithParam<Rest> {
 protected:
  void SetUp() override {
    std::ofstream(folder_.File("key")) << std::string(32, 'k');
    if (GetParam() == Rest::kRedis) redis_.emplace();
    for (size_t i = 0; i < kReplicas; ++i) {
      const std::string states = folder_.File(absl::StrCat("states", i));
      const std::string config = folder_.File(absl::StrCat("server", i, ".textproto"));
      std::filesystem::create_directory(states);
      std::ofstream(config) << R"(metrics_address: "127.0.0.1:0"
          models { path: ")" << AFT_MODEL
                            << R"(" slots: 4 }
          states { max_bytes: 1073741824 key_files: ")"
                            << folder_.File("key") << "\" "
                            << (redis_.has_value() ? "redis { timeout_ms: 60000 address: '" +
                                                         redis_->address() + "' }"
                                                   : "folder: '" + states + "'")
                            << R"( }
          drain { lame_duck_ms: 0 grace_ms: 1000 })";
      replicas_[i].program = std::make_unique<Program>(config);
      Start(i);
    }
  }

  struct Replica {
    std::unique_ptr<Program> program;
    std::unique_ptr<v1::InferenceService::Stub> inference;
    std::unique_ptr<v1::StateService::Stub> states;
  };

  void Start(size_t i) {
    Replica& replica = replicas_[i];
    replica.program->Start();
    const auto channel = TestServer::Connect(replica.program->address());
    replica.inference = v1::InferenceService::NewStub(channel);
    replica.states = v1::StateService::NewStub(channel);
  }

  void Restart() {
    if (redis_.has_value() && random_.Below(2) == 0) {
      redis_->Kill();
      redis_->Start();
      // A replica that checked its idle connection meanwhile refuses requests until it is back.
      for (const Replica& replica : replicas_) {
        while (replica.program->Metrics()["aft_states_redis_up"] != 1) std::this_thread::yield();
      }
      return;
    }
    const auto i = static_cast<size_t>(random_.Below(kReplicas));
    replicas_[i].program->Stop(random_.Below(2) == 0 ? SIGTERM : SIGKILL);
    Start(i);
  }

  // Moves the moment's state to another replica. It gets another id unless the replicas share it.
  void Move(Moment& moment) {
    if (redis_.has_value() && random_.Below(4) > 0) {
      moment.replica = static_cast<size_t>(random_.Below(kReplicas));
      return;
    }
    v1::StateServiceExportRequest ask;
    ask.set_id(moment.id);
    grpc::ClientContext export_context;
    const auto reader = replicas_[moment.replica].states->Export(&export_context, ask);
    std::string bytes;
    for (v1::StateServiceExportResponse part; reader->Read(&part);) bytes += part.chunk();
    ASSERT_TRUE(reader->Finish().ok());

    moment.replica = static_cast<size_t>(random_.Below(kReplicas));
    grpc::ClientContext import_context;
    v1::StateServiceImportResponse imported;
    const auto writer = replicas_[moment.replica].states->Import(&import_context, &imported);
    v1::StateServiceImportRequest part;
    part.set_bytes(bytes.size());
    for (size_t at = 0; at < bytes.size();) {
      const auto size = static_cast<size_t>(1 + random_.Below(200'000));
      part.set_chunk(bytes.substr(at, size));
      ASSERT_TRUE(writer->Write(part));
      part.Clear();
      at += size;
    }
    const grpc::Status status = writer->Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    moment.id = imported.state().id();
  }

  v1::GenerateRequest RandomTurn(const Moment& moment, std::vector<TokenId>& prompt) {
    v1::GenerateRequest request = Request("", static_cast<uint32_t>(1 + random_.Below(24)),
                                          static_cast<uint64_t>(random_.Below(1000)));
    request.clear_model();
    const bool needs_text = moment.text.empty() || !moment.pending;
    prompt.resize(static_cast<size_t>(random_.Below(12) + (needs_text ? 1 : 0)));
    for (TokenId& token : prompt) token = static_cast<TokenId>(random_.Below(256));
    request.mutable_tokens();
    for (const TokenId token : prompt) {
      request.mutable_tokens()->add_ids(static_cast<uint32_t>(token));
    }
    if (!moment.text.empty()) request.mutable_previous()->set_state_id(moment.id);
    request.mutable_store();
    request.mutable_output()->set_top_logprobs(0);
    v1::SamplingOptions& sampling = *request.mutable_sampling();
    sampling.set_temperature(random_.Below(2) == 0 ? 0.0F : 0.9F);
    if (random_.Below(3) == 0) sampling.set_repetition_penalty(1.2F);
    if (random_.Below(3) == 0) sampling.set_presence_penalty(0.5F);
    if (random_.Below(3) == 0) request.mutable_stop()->add_strings("e");
    return request;
  }

  // Sends a random turn that continues from `before`. `after` is the moment after the answer.
  void Say(const Moment& before, Moment& after) {
    std::vector<TokenId> prompt;
    const v1::GenerateRequest request = RandomTurn(before, prompt);
    GenerateStream stream(*replicas_[before.replica].inference, request);
    const grpc::Status status = stream.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    after = before;
    after.text.insert(after.text.end(), prompt.begin(), prompt.end());
    for (const v1::GenerateResponse& event : stream.events) {
      for (int i = 0; i < event.delta().token_ids_size(); ++i) {
        after.logprobs.emplace_back(after.text.size(), event.delta().logprobs(i).logprob());
        after.text.push_back(static_cast<TokenId>(event.delta().token_ids(i)));
      }
    }
    const v1::State& state = stream.finished.state();
    EXPECT_EQ(state.tokens(), after.text.size());
    EXPECT_EQ(state.history(), HistoryOf(0, after.text));
    after.id = state.id();
    after.pending = state.pending();
  }

  // Another replica reads the moment's whole text at once. It must give each generated token the
  // log-probability that it had in its answer.
  void ExpectAsUninterrupted(const Moment& moment) {
    v1::ScoreRequest request;
    for (const TokenId token : moment.text) {
      request.mutable_tokens()->add_ids(static_cast<uint32_t>(token));
    }
    const auto replica = static_cast<size_t>(random_.Below(kReplicas));
    ScoreStream stream(*replicas_[replica].inference, request);
    const grpc::Status status = stream.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    std::vector<float> logprobs(1);
    for (const v1::ScoreResponse& event : stream.events) {
      for (const v1::TokenLogprobs& token : event.chunk().logprobs()) {
        logprobs.push_back(token.logprob());
      }
    }
    ASSERT_EQ(logprobs.size(), moment.text.size());
    for (const auto& [position, logprob] : moment.logprobs) {
      ASSERT_EQ(logprobs[position], logprob) << "token " << position << " of " << logprobs.size();
    }
  }

  const TempFolder folder_;
  std::optional<RedisServer> redis_;
  TestRandom random_;
  std::array<Replica, kReplicas> replicas_;
};

TEST_P(ConversationTest, EqualsOneUninterruptedRun) {
  std::vector<Moment> moments(1);
  int restarts = 0;
  int forks = 0;
  int moves = 0;
  for (int turn = 0; turn < Turns(); ++turn) {
    size_t from = moments.size() - 1;
    if (random_.Below(5) == 0) {  // repeats an answer, or continues an older text
      from -= std::min(from, static_cast<size_t>(random_.Below(20)));
      ++forks;
    }
    if (random_.Below(25) == 0) {
      ASSERT_NO_FATAL_FAILURE(Restart());
      ++restarts;
    }
    if (!moments[from].text.empty() && random_.Below(4) == 0) {
      ASSERT_NO_FATAL_FAILURE(Move(moments[from]));
      ++moves;
    }
    Moment next;
    ASSERT_NO_FATAL_FAILURE(Say(moments[from], next)) << "turn " << turn;
    moments.push_back(std::move(next));
  }
  ASSERT_NO_FATAL_FAILURE(ExpectAsUninterrupted(moments.back()));
  for (int i = 0; i < 10; ++i) {
    const auto any = static_cast<size_t>(1 + random_.Below(static_cast<int64_t>(Turns())));
    ASSERT_NO_FATAL_FAILURE(ExpectAsUninterrupted(moments[any])) << "moment " << any;
  }
  std::printf("%d turns, %d forks, %d moves, %d restarts; the last text has %zu tokens\n", Turns(),
              forks, moves, restarts, moments.back().text.size());
}

INSTANTIATE_TEST_SUITE_P(Places, ConversationTest, testing::Values(Rest::kFolders, Rest::kRedis));

}  // namespace
}  // namespace aft::server
