// The number of streams that may be idle is bounded, in total and for each client. These streams
// are Watch, reflection and ModelStreamInfer.
#include <chrono>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using Response = ModelStreamInferResponse;

constexpr char kWatches[] = "aft_open_streams{kind=\"watches\"}";
constexpr char kWatchesGaveWay[] = "aft_streams_gave_way_total{kind=\"watches\"}";
constexpr char kInferStreams[] = "aft_open_streams{kind=\"infer_streams\"}";
constexpr char kInferStreamsGaveWay[] = "aft_streams_gave_way_total{kind=\"infer_streams\"}";

// The server trusts the addresses that its clients name, so each test can have many clients.
ServerConfig Bounded(int watches, int infer_streams) {
  ServerConfig config = TestConfigWithMetrics();
  config.security.trusted_proxies = {"127.0.0.1"};
  config.limits.max_watches = watches;
  config.limits.max_infer_streams = infer_streams;
  return config;
}

InferBuilder Prompt(int tokens) {
  const std::vector<TokenId> ids = *FakeTokenizer().Encode("abc");
  return InferBuilder().Ids({ids.begin(), ids.end()}).Tokens(tokens).Id("one");
}

// A Watch that has received its first answer.
class Watch : public HealthWatch {
 public:
  Watch(TestServer& server, const std::string& address) : HealthWatch(server, "", From(address)) {
    EXPECT_NE(Next(), kEnd);
  }
};

class Reflection {
 public:
  using Service = grpc::reflection::v1::ServerReflection;

  Reflection(TestServer& server, const std::string& address)
      : stub_(Service::NewStub(TestServer::Connect(server.server().address()))) {
    From(address)(context_);
    stream_ = stub_->ServerReflectionInfo(&context_);
  }
  // Sends a request. Returns whether the server answered.
  bool Ask() {
    grpc::reflection::v1::ServerReflectionRequest request;
    grpc::reflection::v1::ServerReflectionResponse response;
    request.set_list_services("");
    return stream_->Write(request) && stream_->Read(&response);
  }
  grpc::Status Finish() { return stream_->Finish(); }

 private:
  const std::unique_ptr<Service::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<grpc::reflection::v1::ServerReflectionRequest,
                                           grpc::reflection::v1::ServerReflectionResponse>>
      stream_;
};

class Stream : public InferStream {
 public:
  Stream(OipServer& server, const std::string& address)
      : InferStream(server.oip(), From(address)) {}

  // Sends a request. Returns whether the server answered.
  bool Ask() {
    Response response;
    return Send(Prompt(1).request()) && Next(response);
  }
};

TEST(OpenStreamsTest, AnAddressHasAShareOfTheWatchesAndItsOldestGivesWay) {
  TestServer server(Bounded(/*watches=*/8, /*infer_streams=*/8));
  Watch other(server, "10.0.0.2");
  std::deque<Watch> many;
  for (int i = 0; i < 10; ++i) many.emplace_back(server, "10.0.0.1");
  EXPECT_EQ(server.Metric(kWatches), 4 + 1);
  EXPECT_EQ(server.Metric(kWatchesGaveWay), 6);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(many[i].Next(), Watch::kEnd);
    EXPECT_THAT(many[i].Finish(), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("limits.max_watches: this stream was idle")));
  }
  EXPECT_TRUE(server.server().Drain());
  many.erase(many.begin(), many.begin() + 6);
  many.emplace_back(std::move(other));
  for (Watch& watch : many) {
    while (watch.Next() != Watch::kEnd) {  // skips the status of the drain
    }
    EXPECT_THAT(watch.Finish(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  }
}

TEST(OpenStreamsTest, AmongManyAddressesTheOneWithMostGivesWay) {
  ServerConfig config = Bounded(/*watches=*/4, /*infer_streams=*/4);
  config.limits.max_client_watches = 3;
  TestServer server(config);
  Watch first(server, "10.0.0.2");
  std::deque<Watch> many;
  for (int i = 0; i < 3; ++i) many.emplace_back(server, "10.0.0.1");
  Watch late(server, "10.0.0.3");
  EXPECT_EQ(many[0].Next(), Watch::kEnd);
  EXPECT_THAT(many[0].Finish(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("idle")));
  EXPECT_EQ(server.Metric(kWatches), 4);
  EXPECT_EQ(server.Metric(kWatchesGaveWay), 1);
}

TEST(OpenStreamsTest, ReflectionIsBoundedWithTheWatches) {
  TestServer server(Bounded(/*watches=*/4, /*infer_streams=*/4));
  Reflection idle(server, "10.0.0.1");
  server.WaitForMetric(kWatches, 1);
  Watch first(server, "10.0.0.1");
  const Watch second(server, "10.0.0.1");
  EXPECT_FALSE(idle.Ask());
  EXPECT_THAT(idle.Finish(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("idle")));
  Reflection asking(server, "10.0.0.1");
  EXPECT_TRUE(asking.Ask());
  EXPECT_EQ(first.Next(), Watch::kEnd);
  EXPECT_THAT(first.Finish(), StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("idle")));
  EXPECT_EQ(server.Metric(kWatches), 2);
}

TEST(OpenStreamsTest, AnInferStreamWithARequestIsNeverEndedForAnother) {
  OipServer server(Bounded(/*watches=*/4, /*infer_streams=*/4));
  server.control().Hold();
  Stream busy(server, "10.0.0.1");
  ASSERT_TRUE(busy.Send(Prompt(10).request()));
  server.control().WaitUntilBlocked();
  Stream idle(server, "10.0.0.1");
  server.WaitForMetric(kInferStreams, 2);
  Stream second(server, "10.0.0.1");
  Response response;
  EXPECT_FALSE(idle.Next(response));
  EXPECT_THAT(idle.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("limits.max_infer_streams: this stream was idle and gave way")));
  EXPECT_EQ(server.Metric(kInferStreamsGaveWay), 1);
  ASSERT_TRUE(second.Send(Prompt(10).request()));
  server.WaitForMetric("aft_memory_used_bytes", 4 * (16 << 10) + 2 * (3 * 4 + 1024));
  Stream refused(server, "10.0.0.1");
  EXPECT_FALSE(refused.Next(response));
  EXPECT_THAT(refused.Finish(), StatusIs(absl::StatusCode::kResourceExhausted,
                                         HasSubstr("limits.max_client_infer_streams")));
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "ModelStreamInfer", "")), 1);
  EXPECT_EQ(server.Metric("aft_client_requests_total{client=\"other\",result=\"failed\"}"), 1);
  server.control().Resume();
  for (Stream* const stream : {&busy, &second}) {
    EXPECT_EQ(stream->ReadAll().size(), 10U);
    EXPECT_TRUE(stream->Finish().ok());
  }
  server.WaitForMetric(kInferStreams, 0);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// The server cancels a stream of reflection that its client does not read, like any other stream.
TEST(OpenStreamsTest, UnreadReflectionIsCancelled) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.write_stall = std::chrono::milliseconds(500);
  TestServer server(config);
  const auto stub =
      Reflection::Service::NewStub(TestServer::ConnectWithASmallWindow(server.server().address()));
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  grpc::reflection::v1::ServerReflectionRequest request;
  request.set_file_containing_symbol("aft.v1.InferenceService");
  while (stream->Write(request)) {  // until the server cancels the stream
  }
  server.WaitForMetric("aft_stuck_calls_total", 1);
  server.WaitForMetric(kWatches, 0);
}

}  // namespace
}  // namespace aft::server
