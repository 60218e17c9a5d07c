// The load of a replica as a router reads it: from gauges on the metrics page and ModelService.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

v1::ModelLoad Load(TestServer& server, const std::string& model) {
  grpc::ClientContext context;
  v1::GetRequest request;
  v1::GetResponse response;
  request.set_name(model);
  EXPECT_TRUE(server.models().Get(&context, request, &response).ok());
  EXPECT_TRUE(response.model().has_load());
  return response.model().load();
}

void ExpectLoad(TestServer& server, const std::string& model, uint32_t running, uint32_t waiting,
                double utilization) {
  const v1::ModelLoad load = Load(server, model);
  EXPECT_EQ(load.requests_running(), running);
  EXPECT_EQ(load.requests_waiting(), waiting);
  EXPECT_EQ(load.utilization(), utilization);
}

void ExpectGauges(TestServer& server, const std::string& model, double running, double waiting,
                  double ratio) {
  const std::string labels = "{model=\"" + model + "\"}";
  EXPECT_EQ(server.Metric("aft_requests_running" + labels), running);
  EXPECT_EQ(server.Metric("aft_requests_waiting" + labels), waiting);
  EXPECT_EQ(server.Metric("aft_slots_used_ratio" + labels), ratio);
}

TEST(LoadReportTest, ReportsHowBusyALanguageModelIs) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 2;
  TestServer server(config);
  ASSERT_TRUE(server.server().WaitReady().ok());
  ExpectLoad(server, "fake", 0, 0, 0);
  ExpectGauges(server, "fake", 0, 0, 0);
  server.control().Hold();
  GenerateStream first(server.inference(), Request("one", 20));
  server.control().WaitUntilBlocked();
  ExpectLoad(server, "fake", 1, 0, 0.5);
  server.control().RunSteps(1);  // gauges are updated one step later
  ExpectGauges(server, "fake", 1, 0, 0.5);
  // Requests that arrive during the step wait for the next one, which has a place for one of them.
  GenerateStream second(server.inference(), Request("two", 20));
  GenerateStream third(server.inference(), Request("three", 20));
  server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 2);
  ExpectGauges(server, "fake", 1, 2, 0.5);
  ExpectLoad(server, "fake", 2, 1, 1);
  server.control().RunSteps(2);
  ExpectGauges(server, "fake", 2, 1, 1);
  ExpectLoad(server, "fake", 2, 1, 1);
  server.control().Resume();
  for (GenerateStream* stream : {&first, &second, &third}) EXPECT_TRUE(stream->Finish().ok());
  server.WaitForMetric("aft_slots_used{model=\"fake\"}", 0);
  server.WaitForMetric("aft_requests_running{model=\"fake\"}", 0);
  ExpectLoad(server, "fake", 0, 0, 0);
  ExpectGauges(server, "fake", 0, 0, 0);
}

TEST(LoadReportTest, ARequestBeyondTheStrictQuotaOfItsClientWaits) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 4;
  config.scheduling.strict_quotas = true;
  config.scheduling.max_client_slots = 1;
  TestServer server(config);
  ASSERT_TRUE(server.server().WaitReady().ok());
  server.control().Hold();
  GenerateStream first(server.inference(), Request("one", 20));
  server.control().WaitUntilBlocked();
  GenerateStream second(server.inference(), Request("two", 20));
  server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 1);
  ExpectLoad(server, "fake", 1, 1, 0.25);
  server.control().Resume();
  for (GenerateStream* stream : {&first, &second}) EXPECT_TRUE(stream->Finish().ok());
}

TEST(LoadReportTest, ReportsHowFullAnEncodersBatchIs) {
  TestServer server(TestConfigWithEncoder());  // batches of 4
  ASSERT_TRUE(server.server().WaitReady().ok());
  server.encoder_control().Hold();
  v1::EncodeRequest request;
  request.set_model("encoder");
  request.set_text("text");
  EncodeStream first(server.inference(), request);
  server.encoder_control().WaitUntilBlocked();
  EncodeStream second(server.inference(), request);
  server.WaitForMetric("aft_requests_waiting{model=\"encoder\"}", 1);
  ExpectGauges(server, "encoder", 1, 1, 0.25);
  ExpectLoad(server, "encoder", 2, 0, 0.5);
  ExpectGauges(server, "fake", 0, 0, 0);
  server.encoder_control().Resume();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(second.Finish().ok());
  server.WaitForMetric("aft_slots_used{model=\"encoder\"}", 0);
  server.WaitForMetric("aft_requests_running{model=\"encoder\"}", 0);
  ExpectLoad(server, "encoder", 0, 0, 0);
  ExpectGauges(server, "encoder", 0, 0, 0);
}

TEST(LoadReportTest, HasNoLoadOfAMissingModel) {
  TestServer server(TestConfig(), [](const LoadOptions&) -> absl::StatusOr<LoadedModel> {
    return absl::NotFoundError("no such checkpoint");
  });
  EXPECT_FALSE(server.server().WaitReady().ok());
  grpc::ClientContext context;
  v1::ListResponse list;
  ASSERT_TRUE(server.models().List(&context, {}, &list).ok());
  ASSERT_EQ(list.models_size(), 1);
  EXPECT_FALSE(list.models(0).has_load());
}

}  // namespace
}  // namespace aft::server
