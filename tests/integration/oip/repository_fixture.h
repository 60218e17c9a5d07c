#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/known_clients.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/temp_files.h"

namespace aft::server {
// A server whose repository has the model "m". The fingerprint of a version is its number. A
// version with a file "bad", "cut" or "large" does not load.
class OipRepositoryTest : public testing::Test {
 protected:
  OipRepositoryTest() : config_(TestConfigWithMetrics()) {
    config_.models.clear();
    config_.repository.folder = folder_.path();
    config_.repository.control = "anyone";
    config_.repository.settings.slots = 4;
    config_.repository.settings.max_step_tokens = 64;
    AddVersion("m/1");
  }

  void AddVersion(const std::string& path) {
    std::filesystem::create_directories(folder_.File(path));
  }

  // The server knows two clients: the admin "a" with the token "admin" and these further fields,
  // and "b" with the token "token".
  void KnowClients(const std::string& fields_of_a = "") {
    config_.security.clients_file = folder_.File("clients.textproto");
    WriteBytes(config_.security.clients_file,
               ClientEntry("a", "admin", "admin: true " + fields_of_a) + ClientEntry("b", "token"));
  }

  void Start() {
    const ModelLoader loader = [this](const LoadOptions& load) -> absl::StatusOr<LoadedModel> {
      const std::filesystem::path path = load.checkpoint_dir;
      if (std::filesystem::exists(path / "bad")) return absl::DataLossError("weights: are bad");
      if (std::filesystem::exists(path / "large")) {
        return absl::ResourceExhaustedError("not enough memory");
      }
      if (std::filesystem::exists(path / "cut")) {
        return absl::DataLossError(absl::StrCat((path / "weights").string(), ": is cut"));
      }
      FakeModels fakes = fakes_;
      fakes.options.fingerprint = std::stoul(path.filename().string());
      ++alive_;
      // Its deleter runs when the runner is destroyed.
      const std::shared_ptr<void> witness(nullptr, [this](void* /*nothing*/) { --alive_; });
      fakes.options.not_finite = [witness](uint64_t, uint64_t) { return false; };
      return fakes.Load(load);
    };
    server_ = std::make_unique<OipServer>(config_, loader, fakes_);
    ASSERT_TRUE(server_->server().WaitReady().ok());
  }
  inference::GRPCInferenceService::Stub& oip() { return server_->oip(); }

  template <typename Request>
  static Request Order(const std::string& model) {
    Request request;
    request.set_model_name(model);
    return request;
  }
  grpc::Status Load(const inference::RepositoryModelLoadRequest& request,
                    const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    inference::RepositoryModelLoadResponse response;
    return oip().RepositoryModelLoad(&context, request, &response);
  }
  grpc::Status Load(const std::string& model = "m", const std::string& token = "") {
    return Load(Order<inference::RepositoryModelLoadRequest>(model), token);
  }
  grpc::Status Unload(const inference::RepositoryModelUnloadRequest& request,
                      const std::string& token = "") {
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    inference::RepositoryModelUnloadResponse response;
    return oip().RepositoryModelUnload(&context, request, &response);
  }
  grpc::Status Unload(const std::string& model = "m") {
    return Unload(Order<inference::RepositoryModelUnloadRequest>(model));
  }
  // Entries such as "m 2 READY reason".
  std::vector<std::string> Index(bool ready = false, const std::string& token = "") {
    inference::RepositoryIndexRequest request;
    request.set_ready(ready);
    inference::RepositoryIndexResponse response;
    grpc::ClientContext context;
    if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
    EXPECT_TRUE(oip().RepositoryIndex(&context, request, &response).ok());
    std::vector<std::string> models;
    for (const auto& model : response.models()) {
      models.push_back(absl::StrCat(model.name(), " ", model.version(), " ", model.state(), " ",
                                    model.reason()));
    }
    return models;
  }
  bool Ready(const std::string& version) {
    inference::ModelReadyRequest request;
    request.set_name("m");
    request.set_version(version);
    inference::ModelReadyResponse response;
    grpc::ClientContext context;
    EXPECT_TRUE(oip().ModelReady(&context, request, &response).ok());
    return response.ready();
  }
  // Returns the version that answered, or the error.
  std::string Infer(const std::string& version = "") {
    ModelInferRequest request = InferBuilder("m").Text("text_input", "x").Tokens(2).request();
    request.set_model_version(version);
    const OipServer::Answer answer = server_->Infer(request);
    return answer.status.ok() ? answer.response.model_version() : answer.status.error_message();
  }
  v1::GenerateRequest Native(const std::string& version = "") {
    v1::GenerateRequest request = Request("x", 2);
    request.set_model("m");
    request.set_model_version(version);
    return request;
  }
  GenerateStream Run(const v1::GenerateRequest& request) { return RunToEnd(*server_, request); }
  const TempFolder folder_;
  const FakeModels fakes_;
  ServerConfig config_;
  std::atomic<int> alive_{0};  // the number of loaded models
  std::unique_ptr<OipServer> server_;
};

}  // namespace aft::server
