// The limits on what one client can use of the server, over real gRPC, with a fake model.
#include <chrono>
#include <deque>
#include <string>
#include <thread>

#include "base/memory.h"
#include "gmock/gmock.h"
#include "grpc/support/time.h"
#include "gtest/gtest.h"
#include "inference/grpc_service.grpc.pb.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::_;
using ::testing::HasSubstr;

TEST(MemoryTest, TheBudgetMayBeFilledToItsLastByte) {
  const v1::GenerateRequest request = Request(std::string(1000, 'x'), 5);
  const auto needed = kCall + 9 * static_cast<int64_t>(request.ByteSizeLong());
  for (const int64_t budget : {needed, needed - 1}) {
    ServerConfig config = TestConfig();
    config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = budget;
    TestServer server(config);
    EXPECT_EQ(GenerateStream(server.inference(), request).Finish().ok(), budget == needed);
  }
}

TEST(MemoryTest, TheDefaultBudgetIsAQuarterOfTheMemory) {
  TestServer server(TestConfigWithMetrics());
  const auto quarter = static_cast<double>(aft::MemoryLimit() / 4);
  EXPECT_NEAR(server.Metric("aft_memory_limit_bytes") / quarter, 1, 1e-5);
}

// When gRPC's own memory quota is full, gRPC cancels calls of any client. The budget of the client
// that sends must be full long before that.
TEST(MemoryTest, AClientThatFillsItsShareIsRefusedAndOtherStreamsContinue) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_memory_bytes = 64 << 20;
  config.limits.max_queued_tokens = 1 << 30;
  config.security.trusted_proxies = {"127.0.0.0/8"};
  TestServer server(config);
  server.control().Hold();
  GenerateStream neighbour(server.inference(), Request("endless", kEndless), From("203.0.113.2"));
  server.control().AllowSteps(1);
  ASSERT_TRUE(neighbour.Next());
  std::deque<GenerateStream> large;
  for (int i = 0; i < 100; ++i) {
    large.emplace_back(server.inference(), Request(std::string(1'000'000, 'x'), 1),
                       From("203.0.113.1"));
  }
  while (server.Metric("aft_memory_refused_total") == 0) std::this_thread::yield();
  // The accepted requests still wait and hold their memory, so another large one is refused too.
  GenerateStream another(server.inference(), Request(std::string(3'000'000, 'x'), 1),
                         From("203.0.113.1"));
  EXPECT_THAT(another.Finish(), StatusIs(absl::StatusCode::kResourceExhausted, _));
  for (GenerateStream& stream : large) stream.context().TryCancel();
  for (GenerateStream& stream : large) stream.Finish().ok();
  server.control().AllowSteps(1);
  EXPECT_TRUE(neighbour.ReadUntil(v1::GenerateResponse::kDelta));
  neighbour.context().TryCancel();
  server.control().Resume();
  EXPECT_EQ(neighbour.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(MemoryTest, TheBytesOfARequestAreFreedOnceItIsParsed) {
  TestServer server(TestConfigWithMetrics());
  server.control().Hold();
  GenerateStream stream(server.inference(), Request(std::string(100'000, 'x'), 5));
  server.WaitForMetric(kMemoryUsed, kCall + 4 * 100'000);
  server.control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric(kMemoryUsed, 0);
}

TEST(MemoryTest, WatchesOfHealthAreChargedToo) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 2 * kCall;
  TestServer server(config);
  std::deque<HealthWatch> watches;
  for (int i = 0; i < 2; ++i) ASSERT_NE(watches.emplace_back(server).Next(), HealthWatch::kEnd);
  HealthWatch refused(server);
  EXPECT_EQ(refused.Next(), HealthWatch::kEnd);
  EXPECT_THAT(refused.Finish(), StatusIs(absl::StatusCode::kResourceExhausted, _));
  EXPECT_EQ(server.Metric("aft_memory_refused_total"), 1);
  for (HealthWatch& watch : watches) {
    watch.Cancel();
    watch.Finish();
  }
  server.WaitForMetric(kMemoryUsed, 0);
}

TEST(MemoryTest, AClientMayUseHalfOfTheBudgetByDefault) {
  ServerConfig config = TestConfig();
  config.limits.max_memory_bytes = 4 * kCall;
  config.security.trusted_proxies = {"127.0.0.0/8"};
  TestServer server(config);
  std::deque<HealthWatch> watches;
  for (const char* client : {"10.0.0.1", "10.0.0.1", "10.0.0.2"}) {
    ASSERT_NE(watches.emplace_back(server, "", From(client)).Next(), HealthWatch::kEnd);
  }
  HealthWatch refused(server, "", From("10.0.0.1"));
  ASSERT_EQ(refused.Next(), HealthWatch::kEnd);
  EXPECT_THAT(refused.Finish(), StatusIs(absl::StatusCode::kResourceExhausted, _));
  for (HealthWatch& watch : watches) {
    watch.Cancel();
    watch.Finish();
  }
}

TEST(MessageTest, ACompressedOneIsRefused) {
  TestServer server;
  for (const auto algorithm : {GRPC_COMPRESS_GZIP, GRPC_COMPRESS_DEFLATE}) {
    GenerateStream stream(
        server.inference(), Request(std::string(1'000'000, 'x'), 1),
        [&](grpc::ClientContext& context) { context.set_compression_algorithm(algorithm); });
    EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::UNIMPLEMENTED);
  }
  ExpectServes(server);
}

TEST(MessageTest, OneSettingLimitsItsSize) {
  ServerConfig config = TestConfig();
  config.limits.max_prompt_bytes = 1000;
  config.limits.max_message_bytes = 2000;
  TestServer server(config);
  const auto status = [&](size_t bytes) {
    v1::GenerateRequest request = Request("", 1);
    request.set_text(std::string(bytes - request.ByteSizeLong() - 1, 'x'));
    EXPECT_EQ(request.ByteSizeLong(), bytes);
    return GenerateStream(server.inference(), request).Finish();
  };
  EXPECT_THAT(status(2000), StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("text: must have at most 1000 bytes")));
  EXPECT_THAT(status(2001), StatusIs(absl::StatusCode::kResourceExhausted, _));
  ExpectServes(server);
}

TEST(MessageTest, MessagesWithTensorsHaveTheirOwnLimit) {
  ServerConfig config = TestConfigWithEncoder();
  config.limits.max_prompt_bytes = 1000;
  config.limits.max_message_bytes = 2000;
  config.limits.max_tensor_message_bytes = 9000;
  TestServer server(config);
  const auto oip =
      inference::GRPCInferenceService::NewStub(TestServer::Connect(server.server().address()));
  // Makes a message of exactly `bytes` bytes. Its tensor has no name.
  const auto infer = [&](size_t bytes) {
    inference::ModelInferRequest request;
    request.set_model_name("encoder");
    request.add_raw_input_contents(std::string(bytes - request.ByteSizeLong() - 3, 'x'));
    EXPECT_EQ(request.ByteSizeLong(), bytes);
    return request;
  };
  for (const size_t bytes : {size_t{9000}, size_t{9001}}) {
    const bool fits = bytes == 9000;
    grpc::ClientContext context;
    inference::ModelInferResponse response;
    EXPECT_THAT(
        oip->ModelInfer(&context, infer(bytes), &response),
        StatusIs(fits ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kResourceExhausted,
                 HasSubstr(fits ? "raw_input_contents" : "larger than max")));
    grpc::ClientContext stream_context;
    const auto stream = oip->ModelStreamInfer(&stream_context);
    stream->Write(infer(bytes));
    stream->WritesDone();
    inference::ModelStreamInferResponse part;
    EXPECT_EQ(stream->Read(&part), fits);
    while (stream->Read(&part)) {
    }
    EXPECT_EQ(stream->Finish().ok(), fits);
  }
  // Other methods keep their own limit, although gRPC accepts larger messages.
  v1::GetRequest get;
  get.set_name(std::string(2001, 'm'));
  grpc::ClientContext get_context;
  v1::GetResponse got;
  EXPECT_THAT(
      server.models().Get(&get_context, get, &got),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limits.max_message_bytes")));
  v1::GenerateRequest generate = Request(std::string(2001, 'x'), 1);
  GenerateStream large(server.inference(), generate);
  EXPECT_THAT(large.Finish(), StatusIs(absl::StatusCode::kResourceExhausted,
                                       HasSubstr("limits.max_message_bytes")));
  EXPECT_EQ(large.TrailingMetadata("grpc-retry-pushback-ms"), "-1");
  ExpectServes(server);
}

TEST(NamesTest, LongOnesAreRefusedAndNotRepeated) {
  TestServer server;
  for (const size_t size : {size_t{129}, size_t{3'000'000}}) {
    const std::string name(size, 'm');
    v1::GenerateRequest request = Request("x", 1);
    request.set_model(name);
    EXPECT_THAT(GenerateStream(server.inference(), request).Finish(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "model: must have at most 128 bytes, got " + std::to_string(size)));
    grpc::ClientContext get_context;
    v1::GetRequest get;
    get.set_name(name);
    v1::GetResponse got;
    EXPECT_THAT(server.models().Get(&get_context, get, &got),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         size == 129 ? "name: must have at most 128 bytes, got 129"
                                     : "request: must have at most 512 bytes, got 3000005"));
  }
  for (const size_t size : {size_t{129}, size_t{400}}) {
    grpc::ClientContext context;
    v1::GetRequest get;
    get.set_name("fake");
    get.set_version(std::string(size, 'v'));
    v1::GetResponse got;
    EXPECT_THAT(server.models().Get(&context, get, &got),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         "version: must have at most 128 bytes, got " + std::to_string(size)));
  }
  v1::GenerateRequest request = Request("x", 1);
  request.set_model(std::string(128, 'm'));
  EXPECT_THAT(GenerateStream(server.inference(), request).Finish(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(request.model())));
}

TEST(NamesTest, LongServiceNamesAreRefusedToo) {
  TestServer server;
  grpc::health::v1::HealthCheckRequest request;
  grpc::health::v1::HealthCheckResponse response;
  for (const size_t size : {size_t{257}, size_t{3'000'000}}) {
    request.set_service(std::string(size, 's'));
    grpc::ClientContext check;
    const auto refused =
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("service: must have at most"));
    EXPECT_THAT(server.health().Check(&check, request, &response), refused);
    HealthWatch watch(server, request.service());
    EXPECT_EQ(watch.Next(), HealthWatch::kEnd);
    EXPECT_THAT(watch.Finish(), refused);
  }
  request.set_service(std::string(256, 's'));
  grpc::ClientContext check;
  EXPECT_THAT(server.health().Check(&check, request, &response),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(request.service())));
}

TEST(LimitsTest, MetadataMayHaveSixteenKilobytes) {
  TestServer server;
  const auto takes = [&server](size_t bytes) {
    // Each call has a connection of its own, because metadata beyond the limit may end it.
    const auto stub = v1::InferenceService::NewStub(TestServer::Connect(server.server().address()));
    GenerateStream stream(*stub, Request("x", 1), [bytes](grpc::ClientContext& context) {
      context.AddMetadata("padding", std::string(bytes, 'x'));
    });
    return stream.Finish().ok();
  };
  EXPECT_TRUE(takes(15 << 10));
  EXPECT_FALSE(takes(16 << 10));
  ExpectServes(server);
}

TEST(LimitsTest, AConnectionHasALimitOfStreams) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_concurrent_streams = 2;
  TestServer server(config);
  server.control().Hold();
  std::deque<GenerateStream> streams;
  for (int i = 0; i < 2; ++i) streams.emplace_back(server.inference(), Request("held", 5));
  server.WaitForMetric(kMemoryUsed, 2 * (kCall + 4 * 4));
  const auto check = [](grpc::health::v1::Health::Stub& stub, std::chrono::milliseconds time) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + time);
    grpc::health::v1::HealthCheckResponse response;
    return stub.Check(&context, {}, &response).error_code();
  };
  // A third call waits in the client. Another connection has its own limit of streams.
  EXPECT_EQ(check(server.health(), std::chrono::milliseconds(200)),
            grpc::StatusCode::DEADLINE_EXCEEDED);
  const auto other =
      grpc::health::v1::Health::NewStub(TestServer::Connect(server.server().address()));
  EXPECT_EQ(check(*other, std::chrono::hours(1)), grpc::StatusCode::OK);
  server.control().Resume();
  for (GenerateStream& stream : streams) EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(check(server.health(), std::chrono::hours(1)), grpc::StatusCode::OK);
}

// A timeout of 570 years does not fit into nanoseconds.
TEST(LimitsTest, ATimeoutBeyondTheClocksRangeIsIgnored) {
  ServerConfig config = TestConfig();
  config.limits.max_request = std::chrono::milliseconds(30);
  TestServer server(config);
  GenerateStream stream(
      server.inference(), Request("endless", kEndless), [](grpc::ClientContext& context) {
        context.set_deadline(gpr_time_add(gpr_now(GPR_CLOCK_REALTIME),
                                          gpr_time_from_hours(5'000'000, GPR_TIMESPAN)));
      });
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                        "it took longer than limits.max_request_ms=30"));
}

TEST(LimitsTest, AClientThatKeepsUpMayReadMoreThanItsBufferHolds) {
  ServerConfig config = TestConfig();
  config.limits.max_stream_buffer_bytes = 256;
  TestServer server(config);
  server.control().Hold();
  const v1::GenerateRequest request = Request("long", 500);
  GenerateStream stream(server.inference(), request);
  for (int i = 0; i < 500; ++i) {
    server.control().AllowSteps(1);
    ASSERT_TRUE(stream.ReadUntil(v1::GenerateResponse::kDelta)) << i;
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(stream.tokens, Expected(request));
}

// gRPC's client retries a refusal only if it consists of trailers alone. It waits for the time that
// the refusal names.
TEST(RefusalTest, IsRetriedByGrpc) {
  ServerConfig config = TestConfigWithMetrics();
  config.models[0].slots = 1;
  config.limits.max_queued_requests = 1;
  TestServer server(config);
  server.control().Hold();
  GenerateStream running(server.inference(), Request("held", 5));
  server.control().WaitUntilBlocked();
  GenerateStream waiting(server.inference(), Request("held", 5));
  server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 1);
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(R"({"methodConfig": [{"name": [{}], "retryPolicy": {
      "maxAttempts": 4, "initialBackoff": "60s", "maxBackoff": "60s", "backoffMultiplier": 1,
      "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]})");
  const auto stub =
      v1::InferenceService::NewStub(TestServer::Connect(server.server().address(), arguments));
  GenerateStream refused(*stub, Request("retried", 5));
  EXPECT_EQ(refused.Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "Generate")), 4);
  EXPECT_EQ(server.Metric("aft_rejected_total{model=\"fake\",reason=\"queued_requests\"}"), 4);
  server.control().Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(waiting.Finish().ok());
}

TEST(DecodeTest, HealthAndOtherRequestsDoNotWaitForATokenizer) {
  const auto gate = std::make_shared<LoadGate>();
  TestServer server(TestConfig(), FakeModels{.before_encoding = [gate](absl::string_view text) {
                      if (text == "held") gate->Enter();
                    }});
  gate->Hold();
  std::deque<GenerateStream> held;
  for (int i = 0; i < 32; ++i) {  // more than gRPC has threads
    held.emplace_back(server.inference(), Request("held", 3));
  }
  gate->WaitUntilBlocked();
  EXPECT_NE(server.Health(), grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN);
  // A call that its client cancels meanwhile ends at once, and the server never reads its text.
  GenerateStream left(server.inference(), Request("left", 3));
  left.context().TryCancel();
  EXPECT_EQ(left.Finish().error_code(), grpc::StatusCode::CANCELLED);
  gate->Resume();
  for (GenerateStream& stream : held) EXPECT_TRUE(stream.Finish().ok());
  ExpectServes(server);
}

// Otherwise one client could fill gRPC's memory with messages that wait for a decode thread.
TEST(DecodeTest, MessagesOfStatesAreChargedBeforeTheyWait) {
  ServerConfig config = TestConfig();
  config.limits.max_memory_bytes = config.limits.max_client_memory_bytes = 200'000;
  const auto gate = std::make_shared<LoadGate>();
  TestServer server(config, FakeModels{.before_encoding = [gate](absl::string_view text) {
                      if (text == "held") gate->Enter();
                    }});
  gate->Hold();
  std::deque<GenerateStream> held;
  for (int i = 0; i < 2; ++i) held.emplace_back(server.inference(), Request("held", 3));
  gate->WaitUntilBlocked();

  grpc::ClientContext export_context;
  v1::StateServiceExportRequest exported;
  exported.set_id(std::string(300'000, 'x'));
  v1::StateServiceExportResponse chunk;
  const auto reader = server.states().Export(&export_context, exported);
  EXPECT_FALSE(reader->Read(&chunk));
  EXPECT_THAT(reader->Finish(), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("request")));

  grpc::ClientContext import_context;
  v1::StateServiceImportResponse imported;
  const auto writer = server.states().Import(&import_context, &imported);
  v1::StateServiceImportRequest request;
  request.set_chunk(exported.id());
  writer->Write(request);
  EXPECT_THAT(writer->Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                         HasSubstr("more than max_client_memory_bytes")));
  gate->Resume();
  for (GenerateStream& stream : held) EXPECT_TRUE(stream.Finish().ok());
}

}  // namespace
}  // namespace aft::server
