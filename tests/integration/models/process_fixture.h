#pragma once

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "ATen/core/Tensor.h"
#include "ATen/ops/randn.h"
#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/checkpoint/checkpoint.h"
#include "model/config/tensors.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {

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
  std::string WaitReady(client::Process& process) {
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
    client::Process process(command);
    EXPECT_EQ(process.Wait(), code) << process.err();
    EXPECT_THAT(process.err(), testing::HasSubstr(message));
  }

  const TempFolder folder_;
  const std::string model_ = folder_.File("tiny");
  const std::string config_ = folder_.File("config.textproto");
  const std::string ready_file_ = folder_.File("ready");
  std::string metrics_address_;  // set by WaitReady
};

}  // namespace aft::server
