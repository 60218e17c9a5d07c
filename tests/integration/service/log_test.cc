// The log line of each call, over real gRPC with a fake model.
#include <chrono>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"

namespace aft::server {
namespace {

using ::testing::SizeIs;
using ::testing::StartsWith;

class RequestLogTest : public testing::Test {
 protected:
  TestServer server_;
  const CapturedLog log_;
};

TEST_F(RequestLogTest, TheLineNamesTheReasonOfTheEnd) {
  v1::GenerateRequest request = Request("hello", 100);
  request.mutable_stop()->add_token_ids(static_cast<uint32_t>(Expected(request)[1]));
  EXPECT_TRUE(GenerateStream(server_.inference(), request).Finish().ok());
  const std::vector<LogLine> lines = log_.Lines("request.done");
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["code"], "OK");
  EXPECT_EQ(lines[0]["reason"], "stop");
}

// A proxy may add a header of its own instead of adding to that of the client.
TEST(ProxyLogTest, SeveralForwardedHeadersAreOneList) {
  ServerConfig config = TestConfigWithMetrics();
  config.security.trusted_proxies = {"127.0.0.0/8"};
  TestServer server(config);
  const CapturedLog log;
  for (const auto& [first, second] :
       {std::pair("6.6.6.6", "9.9.9.9"), std::pair("9.9.9.9", "127.0.0.5")}) {
    const TestServer::Prepare both = [first = first,
                                      second = second](grpc::ClientContext& context) {
      for (const char* address : {first, second}) context.AddMetadata("x-forwarded-for", address);
    };
    EXPECT_TRUE(GenerateStream(server.inference(), Request("x", 1), both).Finish().ok());
  }
  const std::vector<LogLine> lines = log.Lines("request.done");
  ASSERT_THAT(lines, SizeIs(2));
  for (const LogLine& line : lines) EXPECT_EQ(line["client"], "9.9.9.9");
}

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

TEST_F(RequestLogTest, EveryServiceContinuesTheTrace) {
  const auto expect = [](const grpc::ClientContext& context, bool ok) {
    const auto& metadata =
        ok ? context.GetServerInitialMetadata() : context.GetServerTrailingMetadata();
    const auto found = metadata.find("traceparent");
    ASSERT_NE(found, metadata.end());
    EXPECT_THAT(std::string(found->second.data(), found->second.size()),
                StartsWith(absl::StrCat("00-", kTrace)));
  };
  const auto call = [&expect](auto& stub, auto method, const auto& request, auto response) {
    grpc::ClientContext context;
    context.AddMetadata("traceparent", absl::StrCat("00-", kTrace, "-", kParent, "-01"));
    expect(context, ((stub.*method)(&context, request, &response)).ok());
  };
  call(server_.models(), &v1::ModelService::Stub::List, v1::ListRequest(), v1::ListResponse());
  call(server_.models(), &v1::ModelService::Stub::Get, v1::GetRequest(), v1::GetResponse());
  call(server_.states(), &v1::StateService::Stub::Get, v1::StateServiceGetRequest(),
       v1::StateServiceGetResponse());
  const auto oip =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server_.server().address()));
  using Oip = inference::GRPCInferenceService::Stub;
  call(*oip, &Oip::ServerLive, inference::ServerLiveRequest(), inference::ServerLiveResponse());
  call(*oip, &Oip::ModelMetadata, inference::ModelMetadataRequest(),
       inference::ModelMetadataResponse());
  call(*oip, &Oip::RepositoryModelLoad, inference::RepositoryModelLoadRequest(),
       inference::RepositoryModelLoadResponse());
  const std::vector<LogLine> lines = log_.Lines();
  EXPECT_THAT(lines, SizeIs(2));  // the other methods write no line
  for (const LogLine& line : lines) EXPECT_EQ(line["trace_id"], kTrace);
}

TEST_F(RequestLogTest, TheTimesEqualTheClientsTimings) {
  GenerateStream stream(server_.inference(), Request("hello", 3));
  EXPECT_TRUE(stream.Finish().ok());
  const std::vector<LogLine> lines = log_.Lines("request.done");
  ASSERT_THAT(lines, SizeIs(1));
  const auto expect = [&](const std::string& field, uint64_t told) {
    const auto expected = static_cast<double>(told);
    EXPECT_NEAR(1000 * lines[0].Number(field), expected, 1 + 1e-5 * expected);
  };
  const v1::Timings& timings = stream.finished.timings();
  expect("queue_ms", timings.queue_us());
  expect("ttft_ms", timings.first_token_us());
  EXPECT_GT(timings.total_us(), 0U);
  // The log's total includes the time until the line was written.
  EXPECT_GE(1000 * lines[0].Number("total_ms") * (1 + 1e-5) + 1,
            static_cast<double>(timings.total_us()));
}

// Refused calls cannot fill the log, but metrics count all of them. At any speed of the server,
// each refusal has its own line or is counted in a line about refusals without one.
TEST(RefusalLogTest, ManyRefusalsGetAtMostTwentyLinesASecond) {
  TestServer server(TestConfigWithMetrics());
  const CapturedLog log;
  v1::GenerateRequest request = Request("x", 1);
  request.set_model("nothing");
  constexpr int kRefusals = 400;
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < kRefusals; ++i) {
    EXPECT_EQ(GenerateStream(server.inference(), request).Finish().error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  // Asks until one more refusal gets a line. That line also counts all refusals before it.
  int refusals = kRefusals;
  for (; !absl::StrContains(log.Text(), " id=last "); ++refusals) {
    GenerateStream(server.inference(), request, [](grpc::ClientContext& context) {
      context.AddMetadata("x-request-id", "last");
    }).Finish();
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
  const auto lines = static_cast<double>(log.Lines("request.done").size());
  EXPECT_GE(lines, 20);
  EXPECT_LE(lines, 20 * (std::floor(time.count()) + 1));
  double left_out = 0;
  for (const LogLine& line : log.Lines("request.left_out")) left_out += line.Number("refused");
  EXPECT_EQ(lines + left_out, refusals) << log.Text();
  EXPECT_EQ(server.Metric(RequestsTotal("NOT_FOUND", "Generate", "")), refusals);
}

}  // namespace
}  // namespace aft::server
