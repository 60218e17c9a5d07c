// The real program with a tiny random checkpoint, and the libraries that it puts into one process.
#include "tests/unit/client/process.h"

#include <signal.h>
#include <stdlib.h>

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
#include "model/checkpoint/checkpoint.h"
#include "model/config/tensors.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using client::Process;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

// A folder that holds the checkpoint "tiny" and whatever else a test writes.
class ServerProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteModel({.kind = MixerKind::kAftLocal, .window = 4}, /*max_seq_len=*/0);
    WriteConfig("drain { lame_duck_ms: 0 }");
  }

  void WriteModel(const MixerConfig& mixer, int64_t max_seq_len) const {
    NetworkConfig config;
    config.vocab_size = 256;
    config.d_model = 16;
    config.n_layers = 2;
    config.d_ff = 32;
    config.max_seq_len = max_seq_len;
    config.mixer = mixer;
    TensorMap tensors;
    for (const TensorSpec& spec : ExpectedTensors(config)) {
      tensors[spec.name] = at::randn(spec.shape);
    }
    const absl::Status written = WriteCheckpoint(model_, config, tensors);
    ASSERT_TRUE(written.ok()) << written;
  }

  // Writes the config file that Command passes in addition to its flags.
  void WriteConfig(const std::string& text) const { std::ofstream(config_) << text; }

  std::vector<std::string> Command(std::vector<std::string> more = {}) const {
    std::vector<std::string> command = {AFT_SERVER,
                                        "--config=" + config_,
                                        "--model=" + model_,
                                        "--listen_address=127.0.0.1:0",
                                        "--metrics_address=none",
                                        "--ready_file=" + ready_file_};
    command.insert(command.end(), more.begin(), more.end());
    return command;
  }

  // Waits until the server is ready. Returns its gRPC address.
  std::string WaitReady(Process& process) {
    EXPECT_TRUE(process.WaitForError("event=server.ready")) << process.err();
    std::ifstream file(ready_file_);
    std::string address;
    std::getline(file, address);
    std::getline(file, metrics_address_);
    return address;
  }
  bool PageShows(const std::string& line) const {
    return HttpGet(metrics_address_, "/metrics").find(line) != std::string::npos;
  }

  // Sends requests while standard error is not read, until log lines are dropped. REQUIRES:
  // WaitReady was called, and the server has a metrics page.
  void FillStandardError(const std::shared_ptr<grpc::Channel>& channel) const {
    auto stub = v1::InferenceService::NewStub(channel);
    while (PageShows("aft_log_lines_dropped_total 0\n")) {
      for (int i = 0; i < 500; ++i) {
        GenerateStream stream(*stub, TinyRequest(1), [](grpc::ClientContext& context) {
          context.AddMetadata("x-request-id", std::string(128, 'x'));  // long lines
        });
        ASSERT_TRUE(stream.Finish().ok());
      }
    }
  }

  static v1::GenerateRequest TinyRequest(uint32_t max_tokens) {
    v1::GenerateRequest request = Request("It is a truth", max_tokens);
    request.set_model("tiny");
    return request;
  }

  // Runs a program to its end. It must exit with `code` and write `message` to standard error.
  static void ExpectExit(const std::vector<std::string>& command, int code,
                         const std::string& message) {
    Process process(command);
    EXPECT_EQ(process.Wait(), code) << process.err();
    EXPECT_THAT(process.err(), HasSubstr(message));
  }

  const TempFolder folder_;
  const std::string model_ = folder_.File("tiny");
  const std::string config_ = folder_.File("config.textproto");
  const std::string ready_file_ = folder_.File("ready");
  std::string metrics_address_;  // set by WaitReady
};

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

TEST_F(ServerProcessTest, ABadCommandLineOrConfigGivesOneLineAndADocumentedCode) {
  ExpectExit({AFT_SERVER, "--modle=x"}, 1, "unknown flag --modle; did you mean --model?");
  ExpectExit({AFT_SERVER, "--model=x", "y"}, 1, "unexpected argument y");
  ExpectExit({AFT_SERVER, "--port=1"}, 1, "did you mean --listen_address=127.0.0.1:PORT?");
  ExpectExit({AFT_SERVER}, 2, "give the folder of a checkpoint or --config FILE");
  ExpectExit({AFT_SERVER, "--config=" + folder_.path() + "/none"}, 2, folder_.path() + "/none");
  const std::string config = folder_.path() + "/server.textproto";
  std::ofstream(config) << "models { path: 'tiny' }\nlistenaddress: 'x'\n";
  ExpectExit({AFT_SERVER, "--config=" + config}, 2, "server.textproto:2:14: ");
  std::ofstream(config) << "models { path: 'tiny' slots: -1 }\n";
  ExpectExit({AFT_SERVER, "--config=" + config}, 2,
             config + ": models[0].slots: must be in [1, 65536], got -1");
  // A file or folder that is found to be missing when the server starts.
  const std::string none = folder_.File("none");
  WriteConfig("security { clients_file: '" + none + "' }");
  ExpectExit(Command(), 2, none + ": No such file");
  WriteBytes(folder_.File("key"), std::string(32, 'k'));
  WriteConfig("states { folder: '" + none + "' key_files: '" + folder_.File("key") + "' }");
  ExpectExit(Command(), 2, "states.folder: " + none);
  WriteConfig("");
  WriteBytes(ready_file_, "of a server that was killed");
  ExpectExit(Command({"--listen_address=192.0.2.1:1"}), 3, "listen_address: cannot listen on ");
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
}

TEST_F(ServerProcessTest, PrintsVersionHelpAndEffectiveConfig) {
  Process version({AFT_SERVER, "--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.out(), HasSubstr("aft-server 0."));
  EXPECT_THAT(version.out(), HasSubstr("LibTorch 2.11"));
  Process help({AFT_SERVER, "--help"});
  EXPECT_EQ(help.Wait(), 0);
  EXPECT_THAT(help.out(), HasSubstr("Exit codes"));
  EXPECT_THAT(help.out(), HasSubstr("--ready_file"));
  Process flags(Command({"--print_config", "--slots=300", "--threads=1", "--log_level=debug"}));
  EXPECT_EQ(flags.Wait(), 0);
  EXPECT_THAT(flags.out(), HasSubstr("slots: 300\n"));
  EXPECT_THAT(flags.out(), HasSubstr("max_step_tokens: 301\n"));
  EXPECT_THAT(flags.out(), HasSubstr("intra_op_threads: 1\n"));
  EXPECT_THAT(flags.out(), HasSubstr("level: \"debug\""));
  Process security(Command({"--print_config", "--tls_cert_file=c", "--tls_key_file=k",
                            "--tls_client_ca_file=a", "--http_address=127.0.0.1:9"}));
  EXPECT_EQ(security.Wait(), 0);
  for (const char* field : {" cert_file: \"c\"", " key_file: \"k\"", " client_ca_file: \"a\"",
                            "\nhttp_address: \"127.0.0.1:9\""}) {
    EXPECT_THAT(security.out(), HasSubstr(field));
  }
  ExpectExit(Command({"--slots=0"}), 2, "models[0].slots: must be in [1, 65536], got 0");
  ExpectExit(Command({"--tls_cert_file=x"}), 2, "security.tls");
  ExpectExit(Command({"--tls_cert_file", "", "--tls_key_file", ""}), 1,
             "--tls_cert_file: must not be empty");
  ExpectExit(Command({"--weight_format=int4"}), 2, "models[0].weight_format: ");
  Process config(Command({"--print_config", "--weight_format=int8"}));
  EXPECT_EQ(config.Wait(), 0);
  EXPECT_THAT(config.out(), HasSubstr("weight_format: \"int8\""));
  EXPECT_THAT(config.out(), HasSubstr("name: \"tiny\""));
  EXPECT_THAT(config.out(), HasSubstr("listen_address: \"127.0.0.1:0\""));
  // The flags also override the fields of the config's own models and of its repository.
  WriteConfig("models { path: 'tiny' weight_format: 'bf16' }");
  Process own({AFT_SERVER, "--config=" + config_, "--print_config", "--weight_format=int8"});
  EXPECT_EQ(own.Wait(), 0);
  EXPECT_THAT(own.out(), HasSubstr("weight_format: \"int8\""));
  WriteConfig("repository { folder: 'models' }");
  Process repository({AFT_SERVER, "--config=" + config_, "--print_config", "--slots=300"});
  EXPECT_EQ(repository.Wait(), 0);
  EXPECT_THAT(repository.out(),
              AllOf(HasSubstr("slots: 300\n"), HasSubstr("max_step_tokens: 301\n")));
}

TEST_F(ServerProcessTest, AReadyFileThatCannotBeWrittenIsNamedAfterTheDrain) {
  const std::string path = folder_.File("none/ready");
  Process process(Command({"--ready_file=" + path}));
  EXPECT_EQ(process.Wait(), 3);
  EXPECT_THAT(process.err(), HasSubstr("event=server.stopped\naft-server: cannot write " + path));
}

TEST_F(ServerProcessTest, TheEnvironmentLimitsTheInstructionSet) {
  ExpectExit({"/usr/bin/env", "AFT_INSTRUCTION_SET=AVX1", AFT_SERVER, "--version"}, 1,
             "AFT_INSTRUCTION_SET: must be AVX-512, AVX2 or SSE4, got AVX1");
  std::vector<std::string> command = Command();
  command.insert(command.begin(), {"/usr/bin/env", "AFT_INSTRUCTION_SET=SSE4"});
  Process process(command);
  WaitReady(process);
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait(), 0) << process.err();
  // A build for AVX2 alone has only portable kernels besides.
  EXPECT_THAT(process.err(),
              AnyOf(HasSubstr("device=\"cpu (SSE4, "), HasSubstr("cpu (portable, ")));
}

TEST_F(ServerProcessTest, APortInUseIsNamed) {
  SilentPort taken;
  ExpectExit(
      Command({"--listen_address=" + taken.address()}), 3,
      "listen_address: cannot listen on " + taken.address() +
          ": Address already in use; choose another address with --listen_address HOST:PORT");
}

TEST_F(ServerProcessTest, ACorruptCheckpointIsNamedAndNotServed) {
  const std::string weights = model_ + "/model.safetensors";
  std::filesystem::resize_file(weights, std::filesystem::file_size(weights) - 4);
  ExpectExit(Command(), 4, weights);
  std::filesystem::remove(weights);
  ExpectExit(Command(), 4, weights);
  std::ofstream(model_ + "/config.json") << "{}";
  ExpectExit(Command(), 4, model_ + "/config.json");
  EXPECT_FALSE(std::filesystem::exists(ready_file_));
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
