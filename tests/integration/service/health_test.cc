#include <chrono>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "google/protobuf/message.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "server/config/checks.h"
#include "tests/integration/known_clients.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using grpc::health::v1::HealthCheckResponse;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAreArray;

const char* const kServices[] = {"",
                                 "aft.v1.InferenceService",
                                 "aft.v1.ModelService",
                                 "aft.v1.StateService",
                                 "grpc.health.v1.Health",
                                 "inference.GRPCInferenceService",
                                 "aft.v1.InferenceService/fake"};

TEST(HealthTest, IsNotServingUntilTheModelIsLoaded) {
  const FakeModels fakes;
  fakes.loads->Hold();
  TestServer server(TestConfig(), FakeLoader(fakes));
  for (const char* service : kServices) {
    EXPECT_EQ(server.Health(service), HealthCheckResponse::NOT_SERVING) << service;
  }
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
  HealthWatch watch(server);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  GenerateStream stream(server.inference(), Request("too early", 1));
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);

  fakes.loads->Resume();
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  for (const char* service : kServices) {
    EXPECT_EQ(server.Health(service), HealthCheckResponse::SERVING) << service;
  }
  watch.Cancel();
  ExpectServes(server);
}

TEST(HealthTest, WatchReportsDrainingBeforeRunningStreamsEnd) {
  ServerConfig config = TestConfig();
  config.drain.lame_duck = std::chrono::hours(1);
  config.drain.grace = std::chrono::hours(1);
  TestServer server(config);
  HealthWatch watch(server);
  ASSERT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  server.control().Hold();
  GenerateStream stream(server.inference(), Request("held", 10));
  ASSERT_TRUE(stream.Next());

  std::thread drain([&server] { server.server().Drain(); });
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  for (const char* service : kServices) {
    EXPECT_EQ(server.Health(service), HealthCheckResponse::NOT_SERVING) << service;
  }
  EXPECT_EQ(server.Health("liveness"), HealthCheckResponse::SERVING);
  server.server().RequestDrain(/*lame_duck=*/false);
  server.control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(watch.Next(), HealthWatch::kEnd);
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST(HealthTest, AWatchOfAnUnknownServiceReportsItAndStaysOpen) {
  TestServer server;
  HealthWatch watch(server, "unknown");
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVICE_UNKNOWN);
  watch.Cancel();
  EXPECT_EQ(watch.Next(), HealthWatch::kEnd);
  EXPECT_EQ(watch.Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectServes(server);
}

// Returns the services in the answer of List that have this status.
std::vector<std::string> Listed(TestServer& server, HealthCheckResponse::ServingStatus status,
                                const std::string& token = "") {
  grpc::ClientContext context;
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
  grpc::health::v1::HealthListResponse response;
  EXPECT_TRUE(server.health().List(&context, {}, &response).ok());
  std::vector<std::string> services;
  for (const auto& [service, told] : response.statuses()) {
    if (told.status() == status) services.push_back(service);
  }
  return services;
}

TEST(HealthTest, ListTellsTheStatusOfAllServices) {
  const FakeModels fakes;
  fakes.loads->Hold();
  TestServer server(TestConfigWithMetrics(), FakeLoader(fakes));
  EXPECT_THAT(Listed(server, HealthCheckResponse::SERVING), ElementsAre("liveness"));
  EXPECT_THAT(Listed(server, HealthCheckResponse::NOT_SERVING),
              UnorderedElementsAreArray(kServices));
  HealthWatch watch(server);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::NOT_SERVING);
  fakes.loads->Resume();
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  EXPECT_THAT(Listed(server, HealthCheckResponse::NOT_SERVING), IsEmpty());
  EXPECT_THAT(Listed(server, HealthCheckResponse::SERVING), SizeIs(std::size(kServices) + 1));
  watch.Cancel();
  watch.Finish();
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(HealthTest, ListNamesAModelOnlyToClientsThatMayUseIt) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  WriteBytes(path,
             ClientEntry("a", "a", "models: 'fake'") + ClientEntry("b", "b", "models: 'other'"));
  ServerConfig config = TestConfig();
  config.security.clients_file = path;
  TestServer server(config);
  const std::string model = "aft.v1.InferenceService/fake";
  EXPECT_THAT(Listed(server, HealthCheckResponse::SERVING, "a"), Contains(model));
  for (const char* const token : {"b", "unknown", ""}) {
    const auto services = Listed(server, HealthCheckResponse::SERVING, token);
    EXPECT_THAT(services, AllOf(Contains("liveness"), Not(Contains(model)))) << token;
  }
}

TEST(HealthTest, ARequestMayHaveAFieldThatOnlyNewerClientsKnow) {
  TestServer server;
  grpc::health::v1::HealthCheckRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddLengthDelimited(
      100, std::string(kMaxServiceNameBytes + 200, 'x'));
  HealthCheckResponse response;
  grpc::ClientContext context;
  EXPECT_TRUE(server.health().Check(&context, request, &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
}

// The health service does not authenticate, so a watch is charged to its address even when the
// server knows clients. A client whose name equals this address is a different client.
TEST(HealthTest, AWatchIsNotChargedToAClientNamedLikeItsAddress) {
  const TempFolder folder;
  const std::string path = folder.File("clients.textproto");
  WriteBytes(path, ClientEntry("127.0.0.1", "a", "max_memory_bytes: 20000"));  // for one call
  ServerConfig config = TestConfigWithMetrics();
  config.security.clients_file = path;
  TestServer server(config);
  server.control().Hold();
  GenerateStream call(server.inference(), Request("held", 5), [](grpc::ClientContext& context) {
    context.AddMetadata("authorization", "Bearer a");
  });
  server.control().WaitUntilBlocked();
  server.WaitForMetric("aft_memory_used_bytes", (16 << 10) + 4 * 4);
  HealthWatch watch(server);
  EXPECT_EQ(watch.Next(), HealthCheckResponse::SERVING);
  server.control().Resume();
  EXPECT_TRUE(call.Finish().ok());
  watch.Cancel();
  watch.Finish();
}

}  // namespace
}  // namespace aft::server
