// What inference.GRPCInferenceService reports about the server and its models, over real gRPC, with
// fake models.
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/known_clients.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Stub = inference::GRPCInferenceService::Stub;

template <auto kMethod, typename Request, typename Response>
grpc::Status Call(OipServer& server, const Request& request, Response& response) {
  grpc::ClientContext context;
  return (server.oip().*kMethod)(&context, request, &response);
}

bool Live(OipServer& server) {
  inference::ServerLiveResponse response;
  EXPECT_TRUE(Call<&Stub::ServerLive>(server, inference::ServerLiveRequest(), response).ok());
  return response.live();
}
bool Ready(OipServer& server) {
  inference::ServerReadyResponse response;
  EXPECT_TRUE(Call<&Stub::ServerReady>(server, inference::ServerReadyRequest(), response).ok());
  return response.ready();
}
// The health service learns of loaded models a moment after the test.
void WaitUntilReady(OipServer& server) {
  while (!Ready(server)) std::this_thread::yield();
}
bool ModelReady(OipServer& server, const std::string& name, const std::string& version = "") {
  inference::ModelReadyRequest request;
  request.set_name(name);
  request.set_version(version);
  inference::ModelReadyResponse response;
  const grpc::Status status = Call<&Stub::ModelReady>(server, request, response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.ready();
}

TEST(OipModelsTest, ReadinessEqualsHealth) {
  OipServer server;
  EXPECT_TRUE(Live(server));
  WaitUntilReady(server);
  EXPECT_TRUE(ModelReady(server, "fake"));
  EXPECT_TRUE(ModelReady(server, "fake", "1"));
  EXPECT_FALSE(ModelReady(server, "fake", "2"));
  EXPECT_FALSE(ModelReady(server, "other"));
}

TEST(OipModelsTest, BeforeTheModelIsLoadedTheServerIsOnlyLive) {
  const FakeModels fakes;
  fakes.loads->Hold();
  OipServer server(TestConfig(), FakeLoader(fakes));
  EXPECT_TRUE(Live(server));
  EXPECT_FALSE(Ready(server));
  EXPECT_FALSE(ModelReady(server, "fake"));
  inference::RepositoryIndexRequest request;
  inference::RepositoryIndexResponse response;
  ASSERT_TRUE(Call<&Stub::RepositoryIndex>(server, request, response).ok());
  ASSERT_EQ(response.models_size(), 1);
  EXPECT_EQ(response.models(0).state(), "LOADING");
  request.set_ready(true);
  ASSERT_TRUE(Call<&Stub::RepositoryIndex>(server, request, response).ok());
  EXPECT_EQ(response.models_size(), 0);
  inference::ModelMetadataRequest metadata;
  metadata.set_name("fake");
  inference::ModelMetadataResponse described;
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, metadata, described),
              StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_THAT(server.Infer(InferBuilder().Text("text_input", "x").request()).status,
              StatusIs(absl::StatusCode::kUnavailable, _));
  fakes.loads->Resume();
}

TEST(OipModelsTest, TheServerNamesItself) {
  OipServer server;
  inference::ServerMetadataResponse response;
  ASSERT_TRUE(
      Call<&Stub::ServerMetadata>(server, inference::ServerMetadataRequest(), response).ok());
  EXPECT_EQ(response.name(), "aft-serve");
  EXPECT_EQ(response.version(), "test");
  EXPECT_THAT(response.extensions(),
              ElementsAre("classification", "model_configuration", "model_repository", "parameters",
                          "schedule_policy", "statistics"));
}

struct Tensor {
  std::string datatype;
  std::vector<int64_t> shape;
};
bool operator==(const Tensor& a, const Tensor& b) {
  return a.datatype == b.datatype && a.shape == b.shape;
}

template <typename Tensors>
std::map<std::string, Tensor> ByName(const Tensors& tensors) {
  std::map<std::string, Tensor> named;
  for (const auto& tensor : tensors) {
    named[tensor.name()] = {tensor.datatype(), {tensor.shape().begin(), tensor.shape().end()}};
  }
  return named;
}

// The tensors of a config in the form of metadata.
template <typename Tensors>
std::map<std::string, Tensor> ByNameOfConfig(const Tensors& tensors, bool batch) {
  std::map<std::string, Tensor> named;
  for (const auto& tensor : tensors) {
    std::string type = inference::DataType_Name(tensor.data_type()).substr(5);
    Tensor& added = named[tensor.name()];
    added.datatype = type == "STRING" ? "BYTES" : type;
    if (batch) added.shape.push_back(-1);
    added.shape.insert(added.shape.end(), tensor.dims().begin(), tensor.dims().end());
  }
  return named;
}

TEST(OipModelsTest, MetadataAndConfigAgree) {
  ServerConfig server_config = TestConfigWithEncoder();
  server_config.models[1].max_batch_delay = std::chrono::microseconds(300);
  OipServer server(server_config);
  for (const bool encoder : {false, true}) {
    const std::string name = encoder ? "encoder" : "fake";
    inference::ModelMetadataRequest request;
    request.set_name(name);
    inference::ModelMetadataResponse metadata;
    ASSERT_TRUE(Call<&Stub::ModelMetadata>(server, request, metadata).ok());
    EXPECT_EQ(metadata.name(), name);
    EXPECT_THAT(metadata.versions(), ElementsAre("1"));
    inference::ModelConfigRequest config_request;
    config_request.set_name(name);
    config_request.set_version("1");
    inference::ModelConfigResponse response;
    ASSERT_TRUE(Call<&Stub::ModelConfig>(server, config_request, response).ok());
    const inference::ModelConfig& config = response.config();
    EXPECT_EQ(config.name(), name);
    EXPECT_EQ(config.max_batch_size(), encoder ? 4 : 0);
    EXPECT_EQ(config.model_transaction_policy().decoupled(), !encoder);
    EXPECT_EQ(config.has_dynamic_batching(), encoder);
    EXPECT_EQ(config.dynamic_batching().max_queue_delay_microseconds(), encoder ? 300U : 0U);
    EXPECT_NE(metadata.platform(), "");
    EXPECT_EQ(config.platform(), metadata.platform());
    EXPECT_EQ(config.backend(), metadata.platform());
    EXPECT_EQ(ByNameOfConfig(config.input(), encoder), ByName(metadata.inputs()));
    EXPECT_EQ(ByNameOfConfig(config.output(), encoder), ByName(metadata.outputs()));
    for (const auto& input : config.input()) {
      EXPECT_TRUE(input.optional());
      EXPECT_EQ(input.allow_ragged_batch(), encoder);
    }
    const auto inputs = ByName(metadata.inputs());
    const auto outputs = ByName(metadata.outputs());
    if (encoder) {
      EXPECT_EQ(inputs.at("text_input"), (Tensor{"BYTES", {-1, 1}}));
      EXPECT_EQ(inputs.at("attention_mask"), (Tensor{"INT64", {-1, -1}}));
      EXPECT_EQ(outputs.at("last_hidden_state"), (Tensor{"FP32", {-1, -1, 3}}));
      EXPECT_EQ(outputs.at("embedding"), (Tensor{"FP32", {-1, 3}}));
    } else {
      EXPECT_EQ(inputs.at("text_input"), (Tensor{"BYTES", {1}}));
      EXPECT_EQ(inputs.at("stream"), (Tensor{"BOOL", {1}}));
      EXPECT_EQ(inputs.at("input_ids"), (Tensor{"INT64", {-1}}));
      EXPECT_EQ(inputs.at("sampling_parameters"), (Tensor{"BYTES", {1}}));
      EXPECT_EQ(inputs.at("max_tokens"), (Tensor{"INT32", {1}}));
      EXPECT_EQ(inputs.at("temperature"), (Tensor{"FP32", {1}}));
      EXPECT_EQ(inputs.at("top_k"), (Tensor{"INT32", {1}}));
      EXPECT_EQ(inputs.at("top_p"), (Tensor{"FP32", {1}}));
      EXPECT_EQ(inputs.at("seed"), (Tensor{"UINT64", {1}}));
      EXPECT_EQ(inputs.at("score"), (Tensor{"BOOL", {1}}));
      EXPECT_EQ(outputs.at("text_output"), (Tensor{"BYTES", {1}}));
      EXPECT_EQ(outputs.at("cumulative_logprob"), (Tensor{"FP32", {1}}));
      EXPECT_EQ(outputs.at("logprobs"), (Tensor{"BYTES", {1}}));
      EXPECT_EQ(outputs.at("num_input_tokens"), (Tensor{"UINT32", {1}}));
      EXPECT_EQ(outputs.at("num_output_tokens"), (Tensor{"UINT32", {1}}));
      EXPECT_EQ(outputs.at("token_ids"), (Tensor{"INT64", {-1}}));
      EXPECT_EQ(outputs.at("token_logprobs"), (Tensor{"FP32", {-1}}));
    }
  }
}

TEST(OipModelsTest, UnknownModelsAreNotFound) {
  OipServer server;
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name("other");
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, request, response),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("other")));
  request.set_name("fake");
  request.set_version("7");
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, request, response),
              StatusIs(absl::StatusCode::kNotFound, StartsWith("version: ")));
  request.set_name(std::string(129, 'm'));
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, request, response),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("name: ")));
  request.set_name(std::string(2000, 'm'));
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, request, response),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("request: ")));
  inference::ModelStatisticsRequest statistics;
  statistics.set_name("other");
  inference::ModelStatisticsResponse counted;
  EXPECT_THAT(Call<&Stub::ModelStatistics>(server, statistics, counted),
              StatusIs(absl::StatusCode::kNotFound, _));
}

// The field has another name in each of these requests.
TEST(OipModelsTest, AnErrorNamesTheFieldOfTheModelAsTheRequestDoes) {
  OipServer server(TestConfigWithEncoder());
  const auto invalid = [](const char* error) {
    return StatusIs(absl::StatusCode::kInvalidArgument, StartsWith(error));
  };
  EXPECT_THAT(server.Infer(InferBuilder("").Text("text_input", "x").request()).status,
              invalid("model_name: must be set to one of \"fake\", \"encoder\""));
  inference::ModelMetadataResponse metadata;
  EXPECT_THAT(Call<&Stub::ModelMetadata>(server, inference::ModelMetadataRequest(), metadata),
              invalid("name: must be set to one of "));
  inference::ModelConfigResponse config;
  EXPECT_THAT(Call<&Stub::ModelConfig>(server, inference::ModelConfigRequest(), config),
              invalid("name: must be set to one of "));
  grpc::ClientContext context;
  v1::GetResponse got;
  EXPECT_THAT(server.models().Get(&context, v1::GetRequest(), &got),
              invalid("name: must be set to one of "));
  v1::GenerateRequest generate = Request("x", 1);
  generate.clear_model();
  EXPECT_THAT(GenerateStream(server.inference(), generate).Finish(),
              invalid("model: must be set to one of "));
}

TEST(OipModelsTest, StatisticsCountCallsOfThisProtocol) {
  OipServer server(TestConfigWithEncoder());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        server.Infer(InferBuilder().Text("text_input", "x").Tokens(4).request()).status.ok());
  }
  InferBuilder bad = InferBuilder().Text("text_input", "");
  EXPECT_FALSE(server.Infer(bad.request()).status.ok());
  bad.request().set_model_version("9");  // counts for no version
  EXPECT_THAT(server.Infer(bad.request()).status, StatusIs(absl::StatusCode::kNotFound, _));
  inference::ModelStatisticsResponse response;
  ASSERT_TRUE(
      Call<&Stub::ModelStatistics>(server, inference::ModelStatisticsRequest(), response).ok());
  ASSERT_EQ(response.model_stats_size(), 2);
  const inference::ModelStatistics& fake = response.model_stats(0);
  EXPECT_EQ(fake.name(), "fake");
  EXPECT_EQ(fake.version(), "1");
  EXPECT_EQ(fake.inference_count(), 3U);
  EXPECT_EQ(fake.execution_count(), 12U);  // counts steps
  EXPECT_GT(fake.last_inference(), 1'600'000'000'000U);
  const inference::InferStatistics& stats = fake.inference_stats();
  EXPECT_EQ(stats.success().count(), 3U);
  EXPECT_EQ(stats.fail().count(), 1U);
  EXPECT_EQ(stats.queue().count(), 3U);
  EXPECT_EQ(stats.compute_infer().count(), 3U);
  EXPECT_EQ(stats.compute_input().count(), 3U);
  EXPECT_EQ(stats.compute_output().count(), 3U);
  EXPECT_EQ(stats.success().ns(), stats.queue().ns() + stats.compute_infer().ns());
  EXPECT_GT(stats.compute_infer().ns(), 0U);
  EXPECT_EQ(response.model_stats(1).name(), "encoder");
  EXPECT_EQ(response.model_stats(1).inference_count(), 0U);
  inference::ModelStatisticsRequest one;
  one.set_name("encoder");
  one.set_version("1");
  ASSERT_TRUE(Call<&Stub::ModelStatistics>(server, one, response).ok());
  ASSERT_EQ(response.model_stats_size(), 1);
  EXPECT_EQ(response.model_stats(0).name(), "encoder");
}

TEST(OipModelsTest, TheRepositoryListsTheConfig) {
  OipServer server(TestConfigWithEncoder());
  inference::RepositoryIndexRequest request;
  inference::RepositoryIndexResponse response;
  request.set_ready(true);
  ASSERT_TRUE(Call<&Stub::RepositoryIndex>(server, request, response).ok());
  ASSERT_EQ(response.models_size(), 2);
  EXPECT_EQ(response.models(0).name(), "fake");
  EXPECT_EQ(response.models(0).version(), "1");
  EXPECT_EQ(response.models(0).state(), "READY");
  EXPECT_EQ(response.models(0).reason(), "");
  request.set_repository_name("some");
  EXPECT_THAT(Call<&Stub::RepositoryIndex>(server, request, response),
              StatusIs(absl::StatusCode::kUnimplemented, StartsWith("repository_name: ")));
}

class OipIdentityTest : public testing::Test {
 protected:
  OipIdentityTest() {
    ServerConfig config = TestConfigWithEncoder();
    config.security.clients_file = folder_.File("clients.textproto");
    WriteBytes(config.security.clients_file, ClientEntry("one", "token", "models: 'fake'"));
    server_ = std::make_unique<OipServer>(config);
  }
  static void Authorize(grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer token");
  }

  const TempFolder folder_;
  std::unique_ptr<OipServer> server_;
};

TEST_F(OipIdentityTest, OnlyHealthNeedsNoToken) {
  EXPECT_TRUE(Live(*server_));
  WaitUntilReady(*server_);
  const auto unknown = StatusIs(absl::StatusCode::kUnauthenticated, StartsWith("authorization: "));
  inference::ModelReadyResponse ready;
  EXPECT_THAT(Call<&Stub::ModelReady>(*server_, inference::ModelReadyRequest(), ready), unknown);
  inference::ServerMetadataResponse metadata;
  EXPECT_THAT(Call<&Stub::ServerMetadata>(*server_, inference::ServerMetadataRequest(), metadata),
              unknown);
  inference::RepositoryModelLoadResponse loaded;
  EXPECT_THAT(
      Call<&Stub::RepositoryModelLoad>(*server_, inference::RepositoryModelLoadRequest(), loaded),
      unknown);
}

TEST_F(OipIdentityTest, AClientSeesAndUsesItsOwnModels) {
  grpc::ClientContext index;
  Authorize(index);
  inference::RepositoryIndexResponse models;
  ASSERT_TRUE(
      server_->oip().RepositoryIndex(&index, inference::RepositoryIndexRequest(), &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "fake");
  grpc::ClientContext all;
  Authorize(all);
  inference::ModelStatisticsResponse statistics;
  ASSERT_TRUE(
      server_->oip().ModelStatistics(&all, inference::ModelStatisticsRequest(), &statistics).ok());
  EXPECT_EQ(statistics.model_stats_size(), 1);
  InferStream stream(server_->oip(), Authorize);
  ASSERT_TRUE(stream.Send(InferBuilder("encoder").Text("text_input", "x").request()));
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream.Next(response));
  EXPECT_THAT(response.error_message(), HasSubstr("may not use model \"encoder\""));
  ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "x").Tokens(1).request()));
  EXPECT_EQ(stream.ReadAll().size(), 1U);
}

}  // namespace
}  // namespace aft::server
