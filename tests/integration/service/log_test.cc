// The line that the log has of each call, over real gRPC with a fake model.
#include "server/observability/log.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class RequestLogTest : public testing::Test {
 protected:
  RequestLogTest() {
    EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
    testing::internal::CaptureStderr();
  }
  ~RequestLogTest() override { testing::internal::GetCapturedStderr(); }

  template <typename Stream, typename Request>
  Stream Open(const Request& request) {
    return Stream(server_.inference(), request,
                  [](grpc::ClientContext& context) { context.AddMetadata("x-request-id", "r-1"); });
  }

  // What the log says of the only call since the last, from its level on.
  template <typename Stream>
  std::string LogOf(Stream&& stream) {
    stream.Finish();
    EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
    const std::string text = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    constexpr char kEvent[] = " event=request.done ";
    const size_t event = text.find(kEvent);
    if (event == std::string::npos || text.rfind(kEvent) != event) {
      ADD_FAILURE() << "not one line: " << text;
      return "";
    }
    const size_t level = text.rfind("level=", event);
    return text.substr(level, text.find('\n', event) - level);
  }

  TestServer server_;
};

TEST_F(RequestLogTest, TheReasonIsWhyItEnded) {
  v1::GenerateRequest request = Request("hello", 100);
  request.mutable_stop()->add_token_ids(static_cast<uint32_t>(Expected(request)[1]));
  EXPECT_THAT(LogOf(Open<GenerateStream>(request)), HasSubstr(" code=OK reason=stop "));
}

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

class TraceTest : public RequestLogTest {
 protected:
  static void Prepare(grpc::ClientContext& context) {
    context.AddMetadata("traceparent", absl::StrCat("00-", kTrace, "-", kParent, "-01"));
  }
  // The value of a field of a line, up to a space.
  static std::string Field(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == std::string::npos) return "absent";
    const size_t begin = at + name.size() + 2;
    return line.substr(begin, line.find(' ', begin) - begin);
  }
};

TEST_F(TraceTest, EveryServiceGoesOnWithTheTrace) {
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
    Prepare(context);
    expect(context, ((stub.*method)(&context, request, &response)).ok());
  };
  call(server_.models(), &v1::ModelService::Stub::List, v1::ListRequest(), v1::ListResponse());
  call(server_.models(), &v1::ModelService::Stub::Get, v1::GetRequest(), v1::GetResponse());
  call(server_.states(), &v1::StateService::Stub::Get, v1::StateServiceGetRequest(),
       v1::StateServiceGetResponse());
  const auto kserve =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server_.server().address()));
  using Kserve = inference::GRPCInferenceService::Stub;
  call(*kserve, &Kserve::ServerLive, inference::ServerLiveRequest(),
       inference::ServerLiveResponse());
  call(*kserve, &Kserve::ModelMetadata, inference::ModelMetadataRequest(),
       inference::ModelMetadataResponse());
  call(*kserve, &Kserve::RepositoryModelLoad, inference::RepositoryModelLoadRequest(),
       inference::RepositoryModelLoadResponse());
  EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
  const std::string text = testing::internal::GetCapturedStderr();
  testing::internal::CaptureStderr();
  std::vector<std::string> lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  EXPECT_EQ(lines.size(), 2);  // of models and of what is asked without an id there is none
  for (const std::string& line : lines) EXPECT_EQ(Field(line, "trace_id"), kTrace) << line;
}

TEST_F(RequestLogTest, TimesAreThoseThatTheClientGets) {
  auto stream = Open<GenerateStream>(Request("hello", 3));
  const std::string line = LogOf(stream);
  const auto microseconds = [&line](const std::string& field) {
    const size_t begin = line.find(" " + field + "=") + field.size() + 2;
    double milliseconds = -1;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(begin, line.find(' ', begin) - begin), &milliseconds));
    return 1000 * milliseconds;
  };
  const auto expect = [&](const std::string& field, uint64_t told) {
    const auto expected = static_cast<double>(told);
    EXPECT_NEAR(microseconds(field), expected, 1 + 1e-5 * expected) << line;
  };
  const v1::Timings& timings = stream.finished.timings();
  expect("queue_ms", timings.queue_us());
  expect("ttft_ms", timings.first_token_us());
  EXPECT_GT(timings.total_us(), 0U);
  // Until the line was written.
  EXPECT_GE(microseconds("total_ms") * (1 + 1e-5) + 1, static_cast<double>(timings.total_us()));
}

// Who is refused cannot fill the log; metrics have all of them. Whatever the server's speed, each
// refusal has a line or is counted by one.
TEST(RefusalLogTest, RefusalsInMassesHaveTwentyLinesASecond) {
  TestServer server(TestConfigWithMetrics());
  EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
  testing::internal::CaptureStderr();
  v1::GenerateRequest request = Request("x", 1);
  request.set_model("nothing");
  constexpr int kRefusals = 400;
  for (int i = 0; i < kRefusals; ++i) {
    EXPECT_EQ(GenerateStream(server.inference(), request).Finish().error_code(),
              grpc::StatusCode::NOT_FOUND);
  }
  // Until the next one that has a line, which tells of all before it.
  std::string text;
  int refusals = kRefusals;
  for (; !absl::StrContains(text, " id=last "); ++refusals) {
    GenerateStream(server.inference(), request, [](grpc::ClientContext& context) {
      context.AddMetadata("x-request-id", "last");
    }).Finish();
    EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
    text += testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
  }
  testing::internal::GetCapturedStderr();
  int lines = 0;
  int left_out = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    lines += absl::StrContains(line, "event=request.done") ? 1 : 0;
    const std::vector<std::string> parts = absl::StrSplit(line, "event=request.left_out refused=");
    int count = 0;
    if (parts.size() == 2 && absl::SimpleAtoi(parts[1], &count)) left_out += count;
  }
  EXPECT_GT(left_out, 0);
  EXPECT_EQ(lines + left_out, refusals) << text;
  EXPECT_EQ(server.Metric(RequestsTotal("NOT_FOUND", "Generate", "")), refusals);
}

}  // namespace
}  // namespace aft::server
