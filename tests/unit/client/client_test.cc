// Tests the client library against a scripted server on loopback.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "client/lib/call.h"
#include "client/lib/channel.h"
#include "client/lib/generation.h"
#include "client/lib/resumable.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tcp.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<Client> Connect(const std::string& address) {
  ClientOptions options;
  options.address = address;
  return *Client::Create(options);
}

v1::GenerateRequest Prompt(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

// Expects the code and the message of a failed call, and where it failed.
void ExpectFailed(const absl::Status& status, absl::StatusCode code, ErrorOrigin origin,
                  const testing::Matcher<std::string>& message) {
  EXPECT_THAT(status, StatusIs(code, message));
  EXPECT_EQ(GetErrorDetails(status).origin, origin) << status;
}

class ClientTest : public testing::Test {
 protected:
  absl::Status GenerateError(Script script) {
    server_.SetScript(std::move(script));
    return client_->Generate(Prompt("hello")).status();
  }

  FakeServer server_;
  std::unique_ptr<Client> client_ = Connect(server_.address());
};

TEST_F(ClientTest, UnaryCallsReturnTheirResponses) {
  server_.SetScript(StreamScript<v1::CompleteResponse>({"answers { text: 'whole' }"}));
  EXPECT_EQ(client_->Complete(Prompt("hello"))->answers(0).text(), "whole");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), "hello");
  server_.SetScript(StreamScript<v1::TokenizeResponse>({"token_ids: 5"}));
  v1::TokenizeRequest text;
  text.set_text("hello");
  EXPECT_THAT(client_->Tokenize(text)->token_ids(), ElementsAre(5));
  EXPECT_EQ(server_.last<v1::TokenizeRequest>().text(), "hello");
  server_.SetScript(StreamScript<v1::DetokenizeResponse>({"raw: 'he'"}));
  v1::DetokenizeRequest ids;
  ids.add_token_ids(5);
  EXPECT_EQ(client_->Detokenize(ids)->raw(), "he");
  EXPECT_THAT(server_.last<v1::DetokenizeRequest>().token_ids(), ElementsAre(5));
  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "token_ids[0]: no"}));
  ExpectFailed(client_->Complete(Prompt("hello")).status(), absl::StatusCode::kInvalidArgument,
               ErrorOrigin::kServer, HasSubstr("token_ids[0]: no"));
}

TEST_F(ClientTest, AnAnswerMayBeLargerThanGrpcsDefaultLimit) {
  auto answer = std::make_shared<inference::ModelInferResponse>();
  answer->add_raw_output_contents(std::string(size_t{5} << 20, 'x'));
  server_.SetScript({.other_events = {answer}});
  const auto result = client_->Infer(inference::ModelInferRequest());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->raw_output_contents(0), answer->raw_output_contents(0));
}

TEST_F(ClientTest, RefusesARequestIdThatHttpCannotCarry) {
  for (const std::string& id : {std::string("two words"), std::string("line\n"),
                                std::string(129, 'x'), std::string("\xC3\xA4")}) {
    const auto result = client_->Generate(Prompt("x"), {}, {.request_id = id});
    ExpectFailed(result.status(), absl::StatusCode::kInvalidArgument, ErrorOrigin::kCaller,
                 HasSubstr("the request id must be"));
  }
}

TEST_F(ClientTest, SendsTheLongestRequestId) {
  server_.SetScript(TextScript({"a"}));
  const auto result = client_->Generate(Prompt("x"), {}, {.request_id = std::string(128, 'x')});
  EXPECT_EQ(result.status(), absl::OkStatus());
}

constexpr char kTraceparent[] = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST_F(ClientTest, SendsTheTraceThatTheCallIsPartOf) {
  server_.SetScript(TextScript({"a"}));
  ASSERT_TRUE(client_->Generate(Prompt("x"), {}, {.traceparent = kTraceparent}).ok());
  EXPECT_EQ(server_.traceparent(), kTraceparent);
  ASSERT_TRUE(client_->Generate(Prompt("x"), {}, {}).ok());
  EXPECT_EQ(server_.traceparent(), "");
}

TEST_F(ClientTest, RefusesATraceparentThatServersWouldNotUnderstand) {
  const std::string good = kTraceparent;
  for (const std::string& bad :
       {good + "0", good.substr(1), "00_" + good.substr(3), good.substr(0, 54) + "g",
        good.substr(0, 20) + "A" + good.substr(21), std::string("x\n")}) {
    const auto result = client_->Generate(Prompt("x"), {}, {.traceparent = bad});
    EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(result.status().message()), HasSubstr("traceparent")) << bad;
  }
}

TEST_F(ClientTest, KeepsEveryStatusCodeAndMessageOfTheServer) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status = GenerateError(FailedScript(
        grpc::Status(static_cast<grpc::StatusCode>(code), "stop.max_tokens: too big")));
    EXPECT_EQ(static_cast<int>(status.code()), code) << status;
    EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kServer) << status;
    EXPECT_EQ(GetErrorDetails(status).request_id, "fake-1") << status;
    if (code != grpc::DEADLINE_EXCEEDED) {
      EXPECT_THAT(status.ToString(), HasSubstr("stop.max_tokens: too big"));
    }
  }
}

TEST_F(ClientTest, SaysWhatAStatusOfTheServerMeans) {
  const std::vector<v1::GenerateResponse> nothing;
  const std::vector<v1::GenerateResponse> begun = {StartedEvent(), DeltaEvent(0, "a")};
  const struct {
    grpc::Status status;
    std::vector<v1::GenerateResponse> events;
    std::string sentence;
  } cases[] = {
      {{grpc::NOT_FOUND, "why"}, nothing, "why"},
      {{grpc::RESOURCE_EXHAUSTED, "why"}, nothing, "why; try again later"},
      {{grpc::CANCELLED, "why"}, nothing, "the server cancelled the call: why"},
      {{grpc::CANCELLED, "why"}, begun, "the server cancelled the call after 1 token: why"},
      {{grpc::INTERNAL, "why"}, nothing, "the call failed: why"},
      {{grpc::UNKNOWN, ""},
       begun,
       "the call failed after 1 token: the server gave no reason except UNKNOWN"},
      {{grpc::UNIMPLEMENTED, "why"},
       nothing,
       "why; is " + server_.address() + " an AFT server of this version?"},
      {{grpc::DEADLINE_EXCEEDED, "why"},
       nothing,
       "the deadline of 600 s passed before the answer began; allow more time"},
      {{grpc::DEADLINE_EXCEEDED, "why"},
       begun,
       "the deadline of 600 s passed after 1 token; allow more time or ask for less"},
  };
  for (const auto& [status, events, sentence] : cases) {
    EXPECT_EQ(GenerateError(FailedScript(status, events)).message(), sentence);
  }
  server_.SetScript(FailedScript({grpc::DEADLINE_EXCEEDED, "why"}));
  EXPECT_EQ(client_->Generate(Prompt("x"), {}, {.deadline = milliseconds(0)}).status().message(),
            "the server says that the deadline has passed");
}

// These calls were not asked for a number of tokens.
TEST_F(ClientTest, TheAdviceAfterADeadlineFitsEveryMethod) {
  const grpc::Status late(grpc::DEADLINE_EXCEEDED, "why");
  Script begun = StreamScript<v1::EncodeResponse>({"started { model: 'fake' tokens: 2 width: 2 }"});
  begun.status = late;
  server_.SetScript(begun);
  EXPECT_EQ(client_->Encode(FromText<v1::EncodeRequest>("text: 'x'")).status().message(),
            "the deadline of 600 s passed after 0 tokens; allow more time or ask for less");
  server_.SetScript(FailedScript(late));
  EXPECT_EQ(client_->Tokenize(FromText<v1::TokenizeRequest>("text: 'x'")).status().message(),
            "the deadline of 600 s passed before the answer began; allow more time");
}

TEST_F(ClientTest, ReadsUsageTimingsAndRetryHintFromTheTrailers) {
  v1::Usage usage;
  usage.set_generated_tokens(2);
  v1::Timings timings;
  timings.set_total_us(99);
  Script script = FailedScript(grpc::Status(grpc::UNAVAILABLE, "the server is draining"),
                               {StartedEvent(), DeltaEvent(0, "ab")});
  script.trailers = {{"aft-usage-bin", usage.SerializeAsString()},
                     {"aft-timings-bin", timings.SerializeAsString()},
                     {"grpc-retry-pushback-ms", "1500"}};
  const absl::Status status = GenerateError(script);
  ExpectFailed(status, absl::StatusCode::kUnavailable, ErrorOrigin::kServer,
               "the server is draining; try again in 1.5 s");
  const ErrorDetails details = GetErrorDetails(status);
  EXPECT_EQ(details.received_tokens, 2u);
  ASSERT_TRUE(details.usage && details.timings && details.retry_after);
  EXPECT_EQ(details.usage->generated_tokens(), 2u);
  EXPECT_EQ(details.timings->total_us(), 99u);
  EXPECT_EQ(*details.retry_after, milliseconds(1500));
}

TEST_F(ClientTest, SaysNothingOfAnotherTryAfterANegativePushback) {
  for (const grpc::StatusCode code : {grpc::UNAVAILABLE, grpc::RESOURCE_EXHAUSTED}) {
    Script script = FailedScript(grpc::Status(code, "too large"));
    script.trailers = {{"grpc-retry-pushback-ms", "-1"}};
    const absl::Status status = GenerateError(script);
    EXPECT_EQ(status.message(), "too large");
    EXPECT_FALSE(GetErrorDetails(status).may_retry);
    EXPECT_FALSE(GetErrorDetails(status).retry_after.has_value());
  }
  EXPECT_TRUE(GetErrorDetails(GenerateError(FailedScript({grpc::UNAVAILABLE, "full"}))).may_retry);
}

TEST_F(ClientTest, IgnoresInvalidTrailers) {
  Script script = FailedScript(grpc::Status(grpc::RESOURCE_EXHAUSTED, "the queue is full"));
  script.trailers = {{"aft-usage-bin", "\xFF\xFF"}, {"grpc-retry-pushback-ms", "soon"}};
  const absl::Status status = GenerateError(script);
  EXPECT_EQ(status.message(), "the queue is full");
  EXPECT_FALSE(GetErrorDetails(status).usage.has_value());
  EXPECT_FALSE(GetErrorDetails(status).retry_after.has_value());
  EXPECT_FALSE(GetErrorDetails(status).may_retry);  // gRPC makes a negative number of "soon"
}

TEST_F(ClientTest, UsesTheClientsDeadlineUnlessTheCallHasItsOwn) {
  server_.SetScript(StalledScript());
  ClientOptions options;
  options.address = server_.address();
  options.deadline = milliseconds(30);
  const auto client = *Client::Create(options);
  EXPECT_EQ(client->ListModels().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(client->Health("", {.deadline = milliseconds(40)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("0.04 s")));
}

TEST_F(ClientTest, EndsCallsThatBeginAfterTheCancelAtOnce) {
  server_.SetScript(StalledScript());
  CancelToken cancel;
  cancel.Cancel();
  EXPECT_EQ(client_->Generate(Prompt("x"), {}, {.cancel = &cancel}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(client_->ListModels({.cancel = &cancel}).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(ClientTest, OneTokenCancelsManyCalls) {
  server_.SetScript(StalledScript());
  CancelToken cancel;
  constexpr int kCalls = 8;
  std::vector<absl::Status> statuses(kCalls);
  std::vector<std::thread> callers;
  for (absl::Status& status : statuses) {
    callers.emplace_back(
        [&] { status = client_->Generate(Prompt("x"), {}, {.cancel = &cancel}).status(); });
  }
  server_.WaitForRequests(kCalls);
  cancel.Cancel();
  for (std::thread& caller : callers) caller.join();
  for (const absl::Status& status : statuses) {
    ExpectFailed(status, absl::StatusCode::kCancelled, ErrorOrigin::kCaller,
                 HasSubstr("cancelled"));
  }
  server_.WaitForCancellations(kCalls);
}

TEST_F(ClientTest, ACancellationEndsAnEncodeThatRuns) {
  server_.SetScript(StalledScript());
  CancelToken cancel;
  absl::Status status;
  std::thread caller([&] {
    status =
        client_->Encode(FromText<v1::EncodeRequest>("text: 'x'"), {}, {.cancel = &cancel}).status();
  });
  server_.WaitForRequests(1);
  cancel.Cancel();
  caller.join();
  ExpectFailed(status, absl::StatusCode::kCancelled, ErrorOrigin::kCaller, HasSubstr("cancelled"));
  server_.WaitForCancellations(1);
}

TEST_F(ClientTest, AnExceptionOfTheCallbackEndsAGeneration) {
  server_.SetScript(EndlessScript());
  for (const int n : {1, 2}) {
    v1::GenerateRequest request = Prompt("x");
    request.set_n(static_cast<uint32_t>(n));
    const auto generate = [&] {
      return client_->Generate(request, [](const v1::GenerateResponse& event) {
        if (event.has_delta()) throw std::runtime_error("the application's own error");
      });
    };
    EXPECT_THROW(static_cast<void>(generate()), std::runtime_error);
    server_.WaitForCancellations(n);  // one for each generation so far
  }
}

TEST_F(ClientTest, ReportsAConnectionThatBreaksMidStream) {
  TcpGate gate(server_.port());
  const auto client = Connect(gate.address());
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "abc")}));
  const auto result = client->Generate(Prompt("x"), [&](const v1::GenerateResponse& event) {
    if (event.has_delta()) gate.Cut();
  });
  ExpectFailed(
      result.status(), absl::StatusCode::kUnavailable, ErrorOrigin::kConnectionLost,
      HasSubstr(absl::StrCat("the connection to ", gate.address(), " broke after 3 tokens")));
}

TEST_F(ClientTest, ListsAndGetsModels) {
  server_.SetModels({FromText<v1::Model>("name: 'austen' state: MODEL_STATE_READY")});
  const auto list = client_->ListModels();
  ASSERT_TRUE(list.ok()) << list.status();
  ASSERT_EQ(list->models_size(), 1);
  EXPECT_EQ(list->models(0).name(), "austen");
  EXPECT_EQ(client_->GetModel("austen")->state(), v1::MODEL_STATE_READY);
  EXPECT_THAT(client_->GetModel("eliot"),
              StatusIs(absl::StatusCode::kNotFound, "no model \"eliot\""));
}

TEST_F(ClientTest, ReportsHealth) {
  EXPECT_EQ(*client_->Health(), grpc::health::v1::HealthCheckResponse::SERVING);
  EXPECT_EQ(*client_->Health("down"), grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(client_->Health("unknown").status().code(), absl::StatusCode::kNotFound);
}

void ExpectUnreachable(const absl::Status& status, const testing::Matcher<std::string>& message) {
  ExpectFailed(status, absl::StatusCode::kUnavailable, ErrorOrigin::kUnreachable, message);
}

TEST(ClientUnreachableTest, SaysThatTheConnectionWasRefused) {
  const ClosedPort port;
  ExpectUnreachable(Connect(port.address())->Generate(Prompt("x")).status(),
                    absl::StrCat("cannot reach ", port.address(),
                                 ": connection refused; is the server running?"));
}

TEST(ClientUnreachableTest, SaysThatNoAnswerComesWithinTheConnectTimeout) {
  const SilentPort port;
  ClientOptions options;
  options.address = port.address();
  options.connect_timeout = milliseconds(100);
  ExpectUnreachable((*Client::Create(options))->Health().status(),
                    HasSubstr("no answer in gRPC's protocol; check host, port and whether"));
}

TEST(ClientUnreachableTest, SaysThatNoAnswerComesWithinTheDeadline) {
  const SilentPort port;
  EXPECT_THAT(Connect(port.address())->Health("", {.deadline = milliseconds(50)}),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       absl::StrCat("no answer from ", port.address(), " within 0.05 s")));
}

TEST(ClientUnreachableTest, SaysThatThereIsNoSuchSocket) {
  ExpectUnreachable(Connect("unix:no/such/socket")->Health().status(),
                    HasSubstr("there is no such socket"));
}

TEST(ClientUnreachableTest, SaysThatTheHostDoesNotResolve) {
  // A label may have 63 characters, so the resolver refuses this one without asking the network.
  ExpectUnreachable(Connect(std::string(64, 'x') + ":8500")->Health().status(),
                    HasSubstr("does not resolve"));
}

TEST(ClientOptionsTest, RefusesAMalformedAddress) {
  ClientOptions options;
  options.address = "localhost";
  EXPECT_THAT(Client::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("the port is missing")));
}

TEST(ClientOptionsTest, TheChannelReconnectsSoonUnlessTheOptionsSayOtherwise) {
  ClientOptions options;
  options.connect_timeout = milliseconds(700);
  const auto value = [&](absl::string_view key) {
    const grpc::ChannelArguments made = MakeChannelArgs(options);
    int found = -1;
    const grpc_channel_args args = made.c_channel_args();
    for (size_t i = 0; i < args.num_args; ++i) {
      if (args.args[i].key == key) found = args.args[i].value.integer;
    }
    return found;
  };
  EXPECT_EQ(value(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS), 700);
  EXPECT_EQ(value(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS), 100);
  EXPECT_EQ(value(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS), 1000);
  EXPECT_EQ(value(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS), 1000);
  EXPECT_EQ(value(GRPC_ARG_KEEPALIVE_TIME_MS), 20'000);
  EXPECT_EQ(value(GRPC_ARG_KEEPALIVE_TIMEOUT_MS), 10'000);
  EXPECT_EQ(value(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA), 0);
  EXPECT_EQ(value(GRPC_ARG_PER_RPC_RETRY_BUFFER_SIZE), 16 << 20);
  EXPECT_EQ(value(GRPC_ARG_ENABLE_HTTP_PROXY), 0);  // the address is of this machine
  options.address = "aft.example:8500";
  EXPECT_EQ(value(GRPC_ARG_ENABLE_HTTP_PROXY), -1);
  options.channel_args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 9);
  EXPECT_EQ(value(GRPC_ARG_KEEPALIVE_TIME_MS), 9);
  options.channel_args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 10);
  EXPECT_EQ(value(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS), 10);
  options.channel_args.SetMaxReceiveMessageSize(11);
  EXPECT_EQ(value(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH), 11);
}

TEST(GenerationTest, TheDeadlineIsThatOfAllCallsTogether) {
  const ClientOptions options;
  auto wall = std::chrono::system_clock::now();
  auto steady = std::chrono::steady_clock::now();
  Generation all(options, {}, FromText<v1::GenerateRequest>("n: 2"),
                 {.wall = [&] { return wall; }, .steady = [&] { return steady; }});
  Call first, next, of_one;
  ASSERT_TRUE(all.Prepare(first).ok());
  wall += std::chrono::minutes(1);
  steady += std::chrono::minutes(1);
  Generation one(all, /*sequence=*/1);
  ASSERT_TRUE(all.Prepare(next).ok() && one.Prepare(of_one).ok());
  EXPECT_EQ(next.context.deadline(), first.context.deadline());
  EXPECT_EQ(of_one.context.deadline(), first.context.deadline());
}

TEST(ClientOptionsTest, RefusedCallsOfTheseMethodsAreSentAgain) {
  const std::string config = MakeServiceConfig({});
  for (const char* const name :
       {R"({"service": "aft.v1.InferenceService"})", R"({"service": "aft.v1.ModelService"})",
        R"({"service": "aft.v1.StateService", "method": "Export"})",
        R"({"service": "aft.v1.StateService", "method": "Get"})",
        R"({"service": "aft.v1.StateService", "method": "List"})",
        R"({"service": "inference.GRPCInferenceService", "method": "ModelInfer"})",
        R"({"service": "inference.GRPCInferenceService", "method": "ModelMetadata"})",
        R"({"service": "inference.GRPCInferenceService", "method": "ModelStatistics"})",
        R"({"service": "inference.GRPCInferenceService", "method": "RepositoryIndex"})",
        "retryPolicy"}) {
    EXPECT_THAT(config, HasSubstr(name));
  }
  EXPECT_THAT(config, testing::Not(HasSubstr("Import")));  // messages would get lost
  EXPECT_THAT(config, testing::Not(HasSubstr("Delete")));  // a repeated one is NOT_FOUND
}

TEST(BackOffTest, DoublesUpToFiveSecondsAndIsShortenedByChance) {
  EXPECT_EQ(BackOff(0, 0), milliseconds(0));
  EXPECT_EQ(BackOff(1, 0), milliseconds(100));
  EXPECT_EQ(BackOff(2, 0), milliseconds(200));
  EXPECT_EQ(BackOff(3, 0.5), milliseconds(300));
  for (int tries = 7; tries < 100; ++tries) EXPECT_EQ(BackOff(tries, 0), milliseconds(5000));
}

}  // namespace
}  // namespace aft::client
