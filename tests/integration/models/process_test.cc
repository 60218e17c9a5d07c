// The real program with a tiny random checkpoint, and the libraries that it puts into one process.
#include "tests/unit/client/process.h"

#include <signal.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/mm.h"
#include "ATen/ops/randn.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/load.h"
#include "tests/integration/models/process_fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/tcp.h"

namespace aft::server {
namespace {

using client::Process;
using ::testing::HasSubstr;

TEST_F(ServerProcessTest, ServesAndExitsWithZeroAfterSigterm) {
  Process process(Command());
  auto stub = v1::InferenceService::NewStub(TestServer::Connect(WaitReady(process)));
  std::vector<TokenId> first;
  for (int i = 0; i < 2; ++i) {
    GenerateStream stream(*stub, TinyRequest(50));
    const grpc::Status status = stream.Finish();
    ASSERT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(stream.tokens.size(), 50);
    if (i == 0) first = stream.tokens;
    EXPECT_EQ(stream.tokens, first);
  }
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
  // The log begins with the settings that differ from the defaults.
  EXPECT_THAT(process.err(), HasSubstr("\nlisten_address: \"127.0.0.1:0\"\n"));
  EXPECT_THAT(process.err(), Not(HasSubstr("default_max_tokens")));
  EXPECT_THAT(process.err(), HasSubstr("request.done"));
  EXPECT_THAT(process.err(), HasSubstr("server.stopped"));
  EXPECT_EQ(process.out(), "");
}

TEST_F(ServerProcessTest, SigtermLetsARunningStreamFinish) {
  WriteConfig("drain { lame_duck_ms: 0 grace_ms: 3600000 }");  // a slow machine needs long
  Process process(Command());
  auto stub = v1::InferenceService::NewStub(TestServer::Connect(WaitReady(process)));
  GenerateStream stream(*stub, TinyRequest(5000));
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  process.Signal(SIGTERM);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(stream.tokens.size(), 5000);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST_F(ServerProcessTest, SighupReadsConfigAndRepositoryAgain) {
  const std::string drain = "drain { lame_duck_ms: 0 } ";
  const std::string repository = "repository { folder: 'models' } ";
  const std::string versions = folder_.File("models/m");
  const auto add = [&](const std::string& version) {
    std::filesystem::create_directories(versions);
    std::filesystem::copy(model_, versions + "/" + version);
    const std::string sums = "cd " + versions + "/" + version + " && sha256sum * > SHA256SUMS";
    ASSERT_EQ(client::RunToEnd({"sh", "-c", sums}).code, 0);
  };
  add("1");
  WriteConfig(drain + repository);
  Process process(Command({"--metrics_address=127.0.0.1:0"}));
  auto stub = v1::InferenceService::NewStub(TestServer::Connect(WaitReady(process)));
  const auto serving = [&] {
    v1::GenerateRequest request = TinyRequest(1);
    request.set_model("m");
    GenerateStream stream(*stub, request);
    EXPECT_TRUE(stream.Finish().ok());
    return stream.started.model_version();
  };
  EXPECT_EQ(serving(), "1");

  add("2");
  process.Signal(SIGHUP);
  ASSERT_TRUE(process.WaitForError("event=config.reloaded")) << process.err();
  ASSERT_TRUE(process.WaitForError("event=model.unloaded model=m version=1")) << process.err();
  EXPECT_EQ(serving(), "2");

  WriteConfig(drain + repository + "limits { max_queued_requests: 7 }");
  process.Signal(SIGHUP);
  ASSERT_TRUE(process.WaitForError("limits.max_queued_requests: 256 -> 7")) << process.err();
  WriteConfig(drain + "repository { fold");
  process.Signal(SIGHUP);
  ASSERT_TRUE(process.WaitForError("config.textproto:1:")) << process.err();
  EXPECT_THAT(HttpGet(metrics_address_, "/metrics"), HasSubstr("{file=\"config\"} 1\n"));

  // The server must not serve a version whose file does not match its checksum.
  add("3");
  std::ofstream(versions + "/3/config.json", std::ios::app) << " ";
  WriteConfig(drain + repository);
  process.Signal(SIGHUP);
  ASSERT_TRUE(process.WaitForError("/3/config.json: its SHA-256 is")) << process.err();
  EXPECT_EQ(serving(), "2");
  while (!PageShows("{file=\"config\"} 0\n")) continue;
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST_F(ServerProcessTest, AReloadThatBlocksTakesNoSignalAway) {
  Process process(Command());
  WaitReady(process);
  std::filesystem::remove(config_);
  {
    const client::EndlessFile first(config_);
    process.Signal(SIGHUP);
    ASSERT_TRUE(first.WaitForReader(process)) << process.err();
    process.Signal(SIGHUP);
    first.Write("drain { lame_duck_ms: 0 }");
  }
  ASSERT_TRUE(process.WaitForError("event=config.reloaded")) << process.err();
  const client::EndlessFile second(config_);
  ASSERT_TRUE(second.WaitForReader(process)) << process.err();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST_F(ServerProcessTest, ASignalBeforeTheServerListensEndsIt) {
  std::filesystem::remove(config_);
  const client::EndlessFile config(config_);
  Process process(Command());
  ASSERT_TRUE(config.WaitForReader(process)) << process.err();
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 128 + SIGTERM) << process.err();
}

TEST_F(ServerProcessTest, AProgramThatEndsWithoutReadingIsNotWaitedFor) {
  const client::EndlessFile file(folder_.File("pipe"));
  Process program({"true"});
  EXPECT_FALSE(file.WaitForReader(program));
}

TEST_F(ServerProcessTest, RaisesItsLimitOfFileDescriptorsAndWarnsIfThatIsTooLow) {
  std::vector<std::string> command =
      Command({"--metrics_address=127.0.0.1:0", "--http_address=127.0.0.1:0"});
  command.insert(command.begin(),
                 {"sh", "-c", "ulimit -S -n 100 && ulimit -H -n 2000 && exec \"$@\"", "sh"});
  Process process(command);
  WaitReady(process);
  EXPECT_THAT(process.err(), HasSubstr("server.few_file_descriptors limit=2000 needed=4928"));
  EXPECT_THAT(HttpGet(metrics_address_, "/metrics"), HasSubstr("process_max_fds 2000\n"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0) << process.err();
}

TEST_F(ServerProcessTest, ALameDuckIsNotServingButServesAndASecondSignalEndsItAtOnce) {
  WriteConfig("drain { lame_duck_ms: 3600000 grace_ms: 1000 }");
  Process process(Command());
  const auto channel = TestServer::Connect(WaitReady(process));
  auto stub = v1::InferenceService::NewStub(channel);
  GenerateStream stream(*stub, TinyRequest(kEndless));
  ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta));
  auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
  auto watch = health->Watch(&context, {});
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  process.Signal(SIGTERM);
  ASSERT_TRUE(watch->Read(&response));  // the server drains
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_TRUE(GenerateStream(*stub, TinyRequest(5)).Finish().ok());  // it still serves
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 128 + SIGINT);
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
  EXPECT_THAT(process.err(), HasSubstr("event=signal.shutdown signal=15 hard_limit_ms=3616000"));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  watch->Finish();
}

TEST_F(ServerProcessTest, SigintHasNoLameDuck) {
  WriteConfig("drain { lame_duck_ms: 3600000 }");
  Process process(Command());
  WaitReady(process);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0) << process.err();
  EXPECT_THAT(process.err(), HasSubstr("event=server.draining lame_duck_ms=0"));
}

TEST_F(ServerProcessTest, ABlockedStandardErrorDelaysNothing) {
  Process process(Command({"--metrics_address=127.0.0.1:0"}));
  const auto channel = TestServer::Connect(WaitReady(process));
  FillStandardError(channel);
  auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  ASSERT_TRUE(health->Check(&context, {}, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.WaitUnread(), 0);
}

TEST_F(ServerProcessTest, ABlockedStandardErrorDoesNotDelayASecondSignal) {
  WriteConfig("drain { lame_duck_ms: 3600000 }");
  Process process(Command({"--metrics_address=127.0.0.1:0"}));
  FillStandardError(TestServer::Connect(WaitReady(process)));
  process.Signal(SIGTERM);
  while (!PageShows("aft_draining 1\n")) continue;
  process.Signal(SIGINT);
  EXPECT_EQ(process.WaitUnread(), 128 + SIGINT);
}

// One step reads 200,000 tokens with an attention whose cost grows with their square. The prefix
// cache would split it into many steps, one for each of its intervals.
TEST_F(ServerProcessTest, AStuckModelFailsLoudlyAndTheProcessStillEnds) {
  WriteModel({.kind = MixerKind::kDotProduct}, /*max_seq_len=*/1 << 18);
  WriteConfig(
      "models { path: 'tiny' slots: 1 max_step_tokens: 524288 intra_op_threads: 1 "
      "prefix_cache_bytes: 0 } "
      "health { step_timeout_ms: 1000 liveness_grace_ms: 0 } drain { lame_duck_ms: 0 }");
  Process process({AFT_SERVER, "--config=" + config_, "--listen_address=127.0.0.1:0",
                   "--metrics_address=none", "--ready_file=" + ready_file_});
  const auto channel = TestServer::Connect(WaitReady(process));
  auto stub = v1::InferenceService::NewStub(channel);
  v1::GenerateRequest request = TinyRequest(1);
  request.set_text(std::string(200'000, 'x'));
  const grpc::Status status = GenerateStream(*stub, request).Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(status.error_message(), "model \"tiny\" has failed");
  auto health = grpc::health::v1::Health::NewStub(channel);
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckRequest liveness;
  grpc::health::v1::HealthCheckResponse response;
  liveness.set_service("liveness");
  ASSERT_TRUE(health->Check(&context, liveness, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 5);
  EXPECT_THAT(process.err(), HasSubstr("event=model.failed model=tiny"));
  EXPECT_THAT(process.err(), HasSubstr("aft-server: a model that has failed is stuck"));
}

// With gRPC, protobuf and LibTorch in one process, matrix products are right while streams run.
TEST_F(ServerProcessTest, GrpcProtobufAndLibTorchCoexist) {
  ServerConfig config = TestConfig();
  config.models[0].name = "tiny";
  config.models[0].checkpoint_dir = model_;
  TestServer server(config, LoadModel);
  ASSERT_TRUE(server.server().WaitReady().ok());
  std::atomic<bool> done = false;
  std::vector<std::thread> clients;
  std::atomic<int> streams = 0;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] {
      do {
        GenerateStream stream(server.inference(), TinyRequest(100));
        EXPECT_TRUE(stream.Finish().ok());
        EXPECT_EQ(stream.tokens.size(), 100);
        ++streams;
      } while (!done);
    });
  }
  constexpr int64_t kSize = 70;
  do {
    const at::Tensor a = at::randn({kSize, kSize});
    const at::Tensor b = at::randn({kSize, kSize});
    const at::Tensor product = at::mm(a, b);
    const float* x = a.const_data_ptr<float>();
    const float* y = b.const_data_ptr<float>();
    const float* z = product.const_data_ptr<float>();
    for (int64_t i = 0; i < kSize; ++i) {
      for (int64_t j = 0; j < kSize; ++j) {
        double sum = 0;
        for (int64_t k = 0; k < kSize; ++k) sum += double{x[i * kSize + k]} * y[k * kSize + j];
        ASSERT_NEAR(z[i * kSize + j], sum, 1e-3);
      }
    }
  } while (streams < 20);
  done = true;
  for (std::thread& thread : clients) thread.join();
}

}  // namespace
}  // namespace aft::server
