#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/known_clients.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/fake_loader.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {

using Prepare = GenerateStream::Prepare;

// A request whose answer is stored. It continues from the state `previous`, if there is one.
inline v1::GenerateRequest Turn(const std::string& prompt, uint32_t max_tokens,
                                const std::string& previous = "") {
  v1::GenerateRequest request = Request(prompt, max_tokens);
  request.mutable_store();
  if (!previous.empty()) request.mutable_previous()->set_state_id(previous);
  return request;
}

// The request of a client that resumes a stream after these tokens.
inline v1::GenerateRequest Resumed(v1::GenerateRequest request, const v1::Started& started,
                                   absl::Span<const TokenId> tokens) {
  request.mutable_sampling()->set_seed(started.seed());
  v1::Resume& resume = *request.mutable_resume();
  resume.set_fingerprint(started.fingerprint());
  resume.set_numerics(started.numerics());
  resume.set_resume_id(started.resume_id());
  for (const TokenId id : tokens) resume.add_token_ids(static_cast<uint32_t>(id));
  return request;
}

// The request of a client that resumes a stream from all that it received.
inline v1::GenerateRequest Resumed(const v1::GenerateRequest& request,
                                   const GenerateStream& stream) {
  v1::GenerateRequest resumed = Resumed(request, stream.started, stream.tokens);
  for (const v1::GenerateResponse& event : stream.events) {
    resumed.mutable_resume()->mutable_state()->append(event.hand_over().chunk());
  }
  return resumed;
}

// A server with a fake model, and calls of StateService.
class StateTest : public testing::Test {
 protected:
  StateTest() { config_.limits.max_queued_requests = 10; }

  void Start() { server_ = std::make_unique<TestServer>(config_, options_); }

  // Begins an import of which only the first part comes. Returns when the server holds that part.
  auto BeginImport(grpc::ClientContext& context, v1::StateServiceImportResponse& response) {
    auto writer = server_->states().Import(&context, &response);
    v1::StateServiceImportRequest first;
    first.set_bytes(1000);
    first.set_chunk("the rest never comes");
    EXPECT_TRUE(writer->Write(first));
    server_->WaitForMetric("aft_memory_used_bytes",
                           kCall + 1000 + 3 * static_cast<double>(first.ByteSizeLong()));
    return writer;
  }

  // The server has two versions of the model "m": version 1 has options_, and version 2 `newest`.
  void StartWithTwoVersions(const FakeModelRunner::Options& newest) {
    config_.models.clear();
    config_.repository.folder = folder_.File("models");
    config_.repository.latest_versions = 2;
    config_.repository.settings.slots = 4;
    config_.repository.settings.max_step_tokens = 64;
    for (const char* version : {"1", "2"}) {
      std::filesystem::create_directories(folder_.File("models/m/") + version);
    }
    server_ = std::make_unique<TestServer>(
        config_, [old = options_, newest](const LoadOptions& load) -> absl::StatusOr<LoadedModel> {
          FakeModels fakes;
          fakes.options = load.checkpoint_dir.ends_with("/2") ? newest : old;
          return fakes.Load(load);
        });
    ASSERT_TRUE(server_->server().WaitReady().ok());
  }

  GenerateStream Run(const v1::GenerateRequest& request, const Prepare& prepare = {}) {
    GenerateStream stream(server_->inference(), request, prepare);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream;
  }
  grpc::Status Refused(const v1::GenerateRequest& request, const Prepare& prepare = {}) {
    GenerateStream stream(server_->inference(), request, prepare);
    const grpc::Status status = stream.Finish();
    EXPECT_THAT(stream.events, ::testing::IsEmpty());
    return status;
  }

  // The next server knows the clients "a" and "b". Each name is also the client's token.
  void KnowClients() {
    WriteBytes(folder_.File("clients.textproto"), ClientEntry("a", "a") + ClientEntry("b", "b"));
    config_.security.clients_file = folder_.File("clients.textproto");
  }
  static Prepare As(const std::string& token) {
    return [token](grpc::ClientContext& context) {
      context.AddMetadata("authorization", "Bearer " + token);
    };
  }

  template <auto kMethod, typename Request, typename Response>
  grpc::Status Ask(const Request& request, Response& response, const Prepare& prepare = {}) {
    grpc::ClientContext context;
    if (prepare) prepare(context);
    return (server_->states().*kMethod)(&context, request, &response);
  }
  grpc::Status Get(const std::string& id, v1::StateServiceGetResponse& response,
                   const Prepare& prepare = {}) {
    v1::StateServiceGetRequest request;
    request.set_id(id);
    return Ask<&v1::StateService::Stub::Get>(request, response, prepare);
  }
  grpc::Status Get(const std::string& id, const Prepare& prepare = {}) {
    v1::StateServiceGetResponse response;
    return Get(id, response, prepare);
  }
  grpc::Status Delete(const std::string& id, const Prepare& prepare = {}) {
    v1::StateServiceDeleteRequest request;
    request.set_id(id);
    v1::StateServiceDeleteResponse response;
    return Ask<&v1::StateService::Stub::Delete>(request, response, prepare);
  }
  grpc::Status List(v1::StateServiceListResponse& response, const Prepare& prepare = {},
                    const std::string& after = "") {
    v1::StateServiceListRequest request;
    request.set_after_id(after);
    return Ask<&v1::StateService::Stub::List>(request, response, prepare);
  }

  TempFolder folder_;
  ServerConfig config_ = TestConfigWithMetrics();
  FakeModelRunner::Options options_;
  std::unique_ptr<TestServer> server_;
};

}  // namespace aft::server
