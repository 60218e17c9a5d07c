// ModelStreamInfer over real gRPC, with a fake language model.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/fixture.h"
#include "tests/integration/raw_call.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/short_memory.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::_;
using ::testing::ElementsAre;
using ::testing::StartsWith;

InferBuilder Ids(const std::string& prompt, int tokens, const std::string& id = "one") {
  const std::vector<TokenId> ids = *FakeTokenizer().Encode(prompt);
  return InferBuilder().Ids({ids.begin(), ids.end()}).Tokens(tokens).Id(id);
}
std::vector<int64_t> ExpectedIds(const std::string& prompt, uint32_t count) {
  const std::vector<TokenId> ids = Expected(Request(prompt, count));
  return {ids.begin(), ids.end()};
}
void EnableEmptyFinal(InferBuilder& builder) {
  builder.Parameter("triton_enable_empty_final_response").set_bool_param(true);
}

// Does the same as TestServer::StubWithASmallWindow, for this service.
std::unique_ptr<inference::GRPCInferenceService::Stub> StubWithASmallWindow(OipServer& server) {
  return inference::GRPCInferenceService::NewStub(
      TestServer::ConnectWithASmallWindow(server.server().address()));
}

TEST(OipStreamTest, EveryTokenIsAResponse) {
  OipServer server(TestConfigWithMetrics());
  for (const bool empty_final : {false, true}) {
    InferStream stream(server.oip());
    InferBuilder builder = Ids("abc", 30);
    if (empty_final) EnableEmptyFinal(builder);
    ASSERT_TRUE(stream.Send(builder.request()));
    const auto responses = stream.ReadAll();
    EXPECT_TRUE(stream.Finish().ok());
    ASSERT_EQ(responses.size(), empty_final ? 31U : 30U);
    std::vector<int64_t> ids;
    for (size_t i = 0; i < responses.size(); ++i) {
      const ModelInferResponse& response = responses[i].infer_response();
      EXPECT_EQ(responses[i].error_message(), "");
      EXPECT_EQ(response.id(), "one");
      EXPECT_EQ(response.model_name(), "fake");
      EXPECT_EQ(response.model_version(), "1");
      EXPECT_EQ(IsFinal(responses[i]), i == 30);
      if (i == 30) {
        EXPECT_EQ(response.outputs_size(), 0);
        EXPECT_EQ(response.raw_output_contents_size(), 0);
        continue;
      }
      const auto token = Numbers<int64_t>(response, "output_ids");
      ASSERT_EQ(token.size(), 1U);
      ids.push_back(token[0]);
    }
    EXPECT_EQ(ids, ExpectedIds("abc", 30));
  }
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "ModelStreamInfer")), 2);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipStreamTest, AnAnswerWithoutTokensHasOnlyAnEmptyLastResponse) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t /*hash*/, int64_t /*count*/) {
    return TokenId{256};
  };  // the end
  OipServer server(TestConfig(), options);
  for (const bool empty_final : {false, true}) {
    InferStream stream(server.oip());
    InferBuilder builder = InferBuilder().Ids({1});
    if (empty_final) EnableEmptyFinal(builder);
    ASSERT_TRUE(stream.Send(builder.request()));
    const auto responses = stream.ReadAll();
    EXPECT_TRUE(stream.Finish().ok());
    ASSERT_EQ(responses.size(), empty_final ? 1U : 0U);
    if (empty_final) {
      EXPECT_EQ(responses[0].infer_response().outputs_size(), 0);
    }
  }
}

// The text of an incomplete character appears with the end, which has no id.
TEST(OipStreamTest, TextWithoutATokenIsNoResponseWithIds) {
  FakeModelRunner::Options options;
  options.next_token = [](uint64_t /*hash*/, int64_t count) {
    return count == 1 ? TokenId{0xC3} : TokenId{256};
  };
  OipServer server(TestConfig(), options);
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(InferBuilder().Ids({1}).request()));
  const auto responses = stream.ReadAll();
  EXPECT_TRUE(stream.Finish().ok());
  ASSERT_EQ(responses.size(), 1U);
  EXPECT_THAT(Numbers<int64_t>(responses[0].infer_response(), "output_ids"), ElementsAre(0xC3));
}

TEST(OipStreamTest, TheLastResponseHasTheFinishReasonIfRequested) {
  OipServer server;
  GenerateStream native(server.inference(), Request("a prompt", 10));
  ASSERT_TRUE(native.Finish().ok());
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(InferBuilder()
                              .Text("text_input", "a prompt")
                              .Tokens(10)
                              .Flag("stream")
                              .Flag("exclude_input_in_output")
                              .Flag("return_finish_reason")
                              .Flag("return_num_output_tokens")
                              .request()));
  const auto responses = stream.ReadAll();
  std::string text;
  uint32_t tokens = 0;
  for (size_t i = 0; i < responses.size(); ++i) {
    const ModelInferResponse& response = responses[i].infer_response();
    const bool last = i + 1 == responses.size();
    EXPECT_EQ(IsFinal(responses[i]), last);
    text += TextOutput(response, "text_output");
    tokens += Numbers<uint32_t>(response, "num_output_tokens")[0];
    EXPECT_EQ(TextOutput(response, "finish_reason"), last ? "length" : "None");
  }
  EXPECT_EQ(text, native.text);
  EXPECT_EQ(tokens, 10U);
  EXPECT_GE(responses.size(), 11U);
}

TEST(OipStreamTest, WithoutStreamTheWholeTextIsOneFinalResponse) {
  OipServer server;
  InferStream stream(server.oip());
  ASSERT_TRUE(stream.Send(Ids("abc", 10).Flag("stream", false).request()));
  ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "x").Flag("score").request()));
  const auto responses = stream.ReadAll();
  ASSERT_EQ(responses.size(), 2U);
  for (const auto& response : responses) {
    EXPECT_TRUE(IsFinal(response));
    if (response.infer_response().id() == "one") {
      EXPECT_EQ(Numbers<int64_t>(response.infer_response(), "output_ids"), ExpectedIds("abc", 10));
    }
  }
}

TEST(OipStreamTest, RequestsRunConcurrentlyEachInOrder) {
  OipServer server(TestConfigWithMetrics());
  InferStream stream(server.oip());
  std::map<std::string, std::vector<int64_t>> expected;
  server.control().Hold();
  for (int i = 0; i < 12; ++i) {
    const std::string id = absl::StrCat("request ", i);
    const std::string prompt(static_cast<size_t>(i) + 1, 'p');
    InferBuilder builder = Ids(prompt, 10 + i, id);
    EnableEmptyFinal(builder);
    ASSERT_TRUE(stream.Send(builder.request()));
    expected[id] = ExpectedIds(prompt, static_cast<uint32_t>(10 + i));
  }
  // The server has read all of them. The first step may have begun with several.
  while (server.Metric("aft_requests_running") + server.Metric("aft_requests_waiting") < 12) {
    std::this_thread::yield();
  }
  server.control().Resume();
  std::map<std::string, std::vector<int64_t>> got;
  std::set<std::string> finals;
  int switches = 0;
  std::string before;
  for (const auto& response : stream.ReadAll()) {
    const std::string& id = response.infer_response().id();
    EXPECT_EQ(finals.count(id), 0U) << "a response after the last one";
    if (IsFinal(response)) {
      EXPECT_TRUE(finals.insert(id).second);
    } else {
      got[id].push_back(Numbers<int64_t>(response.infer_response(), "output_ids").at(0));
    }
    switches += id != before ? 1 : 0;
    before = id;
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(got, expected);
  EXPECT_EQ(finals.size(), 12U);
  EXPECT_GT(switches, 12);  // more than if they ran one after another
}

TEST(OipStreamTest, AnErrorEndsAStreamThatAsksForIt) {
  OipServer server(TestConfigWithMetrics());
  server.control().Hold();
  InferStream stream(server.oip(), [](grpc::ClientContext& context) {
    context.AddMetadata("triton_grpc_error", "true");
  });
  ASSERT_TRUE(stream.Send(Ids("abc", kEndless).request()));
  server.control().WaitUntilBlocked();
  ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "").request()));
  server.WaitForMetric(RequestsTotal("INVALID_ARGUMENT", "ModelStreamInfer"), 1);
  // The running request may be cancelled a little later than the other one is counted.
  while (server.Metric(RequestsTotal("CANCELLED", "ModelStreamInfer")) == 0) {
    server.control().AllowSteps(1);
  }
  ModelStreamInferResponse response;
  while (stream.Next(response)) EXPECT_EQ(response.error_message(), "");
  EXPECT_THAT(stream.Finish(), StatusIs(absl::StatusCode::kInvalidArgument,
                                        StartsWith("text_input: must not be empty")));
  server.WaitForMetric("aft_slots_used{model=\"fake\"}", 0);
}

TEST(OipStreamTest, ARequestThatDoesNotParseIsAnErrorToo) {
  OipServer server;
  InferStream stream(server.oip());
  InferBuilder builder = Ids("abc", 3, "many fields");
  for (int i = 0; i < 2000; ++i) builder.Output("text_output");
  for (const std::string id : {"many fields", "two\nlines", "gr\u00f6\u00dfe"}) {
    ModelStreamInferResponse response;
    ASSERT_TRUE(stream.Send(builder.Id(id).request()));
    ASSERT_TRUE(stream.Next(response));
    EXPECT_THAT(response.error_message(), StartsWith("request: is no inference."));
    EXPECT_EQ(response.infer_response().id(), id);
  }
  EXPECT_TRUE(stream.ReadAll().empty());
  EXPECT_TRUE(stream.Finish().ok());
}

// Its bytes are read before they are known to be UTF-8. A client could not parse such an answer.
TEST(OipStreamTest, AnIdThatIsNotUtf8IsNotRepeated) {
  OipServer server;
  const auto channel = TestServer::Connect(server.server().address());
  RawCall call(*channel, "/inference.GRPCInferenceService/ModelStreamInfer",
               "\x0a\x04"
               "fake\x1a\x01\xff");
  std::string answer;
  ASSERT_TRUE(call.Next(answer));
  ModelStreamInferResponse response;
  ASSERT_TRUE(response.ParseFromString(answer));
  EXPECT_THAT(response.error_message(), StartsWith("request: is no inference."));
  EXPECT_EQ(response.infer_response().id(), "");
  EXPECT_TRUE(call.Finish().ok());
}

// Clients that give no ids find the request of an answer by its place, as with Triton.
TEST(OipStreamTest, RequestsToAnEncoderAreAnsweredInTheirOrder) {
  OipServer server(TestConfigWithEncoder());
  InferStream stream(server.oip());
  server.encoder_control().Hold();
  const auto send = [&](const std::string& id, const std::string& text) {
    return stream.Send(
        InferBuilder("encoder").Text("text_input", text).Output("embedding").Id(id).request());
  };
  ASSERT_TRUE(send("first", "x"));
  server.encoder_control().WaitUntilBlocked();
  ASSERT_TRUE(send("second", ""));
  ASSERT_TRUE(send("third", "y"));
  server.WaitForMetric("aft_rejected_total{model=\"encoder\",reason=\"invalid\"}", 1);
  // A language model is decoupled. Its requests wait for no others.
  ASSERT_TRUE(stream.Send(Ids("abc", 1, "token").request()));
  ModelStreamInferResponse response;
  ASSERT_TRUE(stream.Next(response));
  EXPECT_EQ(response.infer_response().id(), "token");
  server.encoder_control().Resume();
  std::vector<std::string> ids;
  for (const auto& one : stream.ReadAll()) ids.push_back(one.infer_response().id());
  EXPECT_THAT(ids, ElementsAre("first", "second", "third"));
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// The answer is larger than anything that the request allocates before it. Another thread makes it.
TEST(OipStreamTest, ARequestWithoutMemoryForItsAnswerFailsAlone) {
  constexpr size_t kWidth = 1 << 15;
  FakeEncoderRunner::Options options;
  options.width = kWidth;
  OipServer server(TestConfigWithEncoder(), {}, options);
  InferStream stream(server.oip());
  InferBuilder request("encoder");
  request.Text("text_input", "x").Output("last_hidden_state").Id("large");
  ModelStreamInferResponse response;
  {
    const ShortMemory none(kWidth * sizeof(float) + 1);
    ASSERT_TRUE(stream.Send(request.request()));
    ASSERT_TRUE(stream.Next(response));
  }
  EXPECT_THAT(response.error_message(), StartsWith("memory: "));
  EXPECT_EQ(response.infer_response().id(), "large");
  EXPECT_EQ(response.infer_response().outputs_size(), 0);
  EXPECT_TRUE(IsFinal(response));
  EXPECT_EQ(server.Metric(RequestsTotal("RESOURCE_EXHAUSTED", "ModelStreamInfer", "encoder")), 1);
  EXPECT_EQ(server.Metric(RequestsTotal("OK", "ModelStreamInfer", "encoder")), 0);
  ASSERT_TRUE(stream.Send(request.request()));
  const auto others = stream.ReadAll();
  ASSERT_EQ(others.size(), 1U);
  EXPECT_EQ(Numbers<float>(others[0].infer_response(), "last_hidden_state").size(), kWidth);
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

TEST(OipStreamTest, ACancelledStreamFreesTheSlotsOfItsRequests) {
  OipServer server(TestConfigWithMetrics());
  server.control().Hold();
  InferStream stream(server.oip());
  for (int i = 0; i < 8; ++i) {  // four of them wait
    ASSERT_TRUE(stream.Send(Ids("abc", kEndless, absl::StrCat(i)).request()));
  }
  server.control().RunSteps(10);
  ModelStreamInferResponse response;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(stream.Next(response));
  stream.context().TryCancel();
  while (stream.Next(response)) {
  }
  EXPECT_EQ(stream.Finish().error_code(), grpc::StatusCode::CANCELLED);
  while (server.Metric("aft_slots_used{model=\"fake\"}") != 0) {
    server.control().AllowSteps(1);  // the cancellation may arrive at any step
  }
  server.control().Resume();
  server.WaitForMetric("aft_slots_used{model=\"fake\"}", 0);
  server.WaitForMetric("aft_memory_used_bytes", 0);
  ExpectServes(server);
}

// The client sends more requests than one client may have in the queue. If the server read them
// faster than it answers, it would have to refuse some.
TEST(OipStreamTest, ReadsNoMoreThanItAnswers) {
  ServerConfig config = TestConfigWithMetrics();
  config.scheduling.max_client_queued_requests = 128;
  OipServer server(config);
  server.control().Hold();
  InferStream stream(server.oip());
  constexpr int kRequests = 600;
  const auto send = [&](int i) {
    return stream.Send(Ids("abc", 2, absl::StrCat(i)).Flag("stream", false).request());
  };
  ASSERT_TRUE(send(0));
  server.control().WaitUntilBlocked();
  std::thread writer([&] {
    for (int i = 1; i < kRequests; ++i) EXPECT_TRUE(send(i));
    stream.HalfClose();
  });
  server.WaitForMetric("aft_requests_waiting{model=\"fake\"}", 127);  // one more is in the step
  server.control().Resume();
  std::set<std::string> ids;
  ModelStreamInferResponse response;
  while (stream.Next(response)) {
    EXPECT_EQ(response.error_message(), "");
    EXPECT_TRUE(ids.insert(response.infer_response().id()).second);
  }
  writer.join();
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(ids.size(), size_t{kRequests});
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// Refusals count as unanswered too. The client reads none of them, so the server stops reading when
// the limit is reached.
TEST(OipStreamTest, UnreadErrorsAreBounded) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.write_stall = std::chrono::milliseconds(500);
  OipServer server(config);
  const auto stub = StubWithASmallWindow(server);
  InferStream stream(*stub);
  const ModelInferRequest bad =
      InferBuilder().Id(std::string(256, 'i')).Text("text_input", "").request();
  int sent = 0;
  while (stream.Send(bad)) ++sent;  // until the server cancels the stream
  ModelStreamInferResponse response;
  int errors = 0;
  while (stream.Next(response)) ++errors;
  EXPECT_NE(stream.Finish().error_code(), grpc::StatusCode::OK);
  EXPECT_LE(errors, sent);
  server.WaitForMetric("aft_stuck_calls_total", 1);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// An answer is also charged while it is written and no longer in the queue of answers.
TEST(OipStreamTest, AnAnswerIsChargedUntilItIsRead) {
  ServerConfig config = TestConfigWithEncoder();
  config.limits.write_stall = std::chrono::hours(1);
  constexpr int kWide = 100'000;
  FakeEncoderRunner::Options options;
  options.width = kWide;
  OipServer server(config, {}, options);
  const auto stub = StubWithASmallWindow(server);
  InferStream stream(*stub);
  InferBuilder request("encoder");
  request.Text("text_input", "x").Output("last_hidden_state");
  for (int i = 1; i <= 2; ++i) {
    ASSERT_TRUE(stream.Send(request.request()));
    server.WaitForMetric("aft_request_finished_total{model=\"encoder\"}", i);
  }
  // The server holds each answer three times: as kept, copied and serialised.
  EXPECT_GE(server.Metric("aft_memory_used_bytes"), 2 * 3 * sizeof(float) * kWide);
  EXPECT_EQ(stream.ReadAll().size(), 2U);
  EXPECT_TRUE(stream.Finish().ok());
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// A client that reads slowly gets several tokens in one response, and misses none.
TEST(OipStreamTest, ASlowReaderGetsEveryToken) {
  OipServer server(TestConfigWithMetrics());
  constexpr uint32_t kTokens = 8'000;
  const std::string expected = RunToEnd(server, Request("abc", kTokens)).text;
  const auto stub = StubWithASmallWindow(server);  // full long before the last token
  InferStream stream(*stub);
  ASSERT_TRUE(stream.Send(Ids("abc", kTokens).request()));
  ASSERT_TRUE(stream.Send(InferBuilder().Text("text_input", "abc").Tokens(kTokens).request()));
  server.WaitForMetric("aft_request_finished_total", 3);  // before the client reads
  std::string text;
  std::vector<int64_t> ids;
  size_t largest = 0;
  for (const auto& response : stream.ReadAll()) {
    EXPECT_EQ(response.error_message(), "");
    if (response.infer_response().id().empty()) {
      text += TextOutput(response.infer_response(), "text_output");
      continue;
    }
    const auto some = Numbers<int64_t>(response.infer_response(), "output_ids");
    EXPECT_THAT(ShapeOf(response.infer_response(), "output_ids"), ElementsAre(some.size()));
    largest = std::max(largest, some.size());
    ids.insert(ids.end(), some.begin(), some.end());
  }
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(ids, ExpectedIds("abc", kTokens));
  EXPECT_EQ(text, expected);
  EXPECT_GT(largest, 1U);
  server.WaitForMetric("aft_memory_used_bytes", 0);
}

// Tokens that joined a waiting response count as unread until that response leaves, and no longer.
TEST(OipStreamTest, AReaderMayFallBehindAgainAndAgain) {
  ServerConfig config = TestConfigWithMetrics();
  config.limits.max_stream_buffer_bytes = 50'000;
  OipServer server(config);
  const auto stub = StubWithASmallWindow(server);
  server.control().Hold();
  InferStream stream(*stub);
  ASSERT_TRUE(stream.Send(Ids("abc", 8'100).request()));
  server.control().WaitUntilBlocked();
  size_t read = 0;
  const auto take = [&read](const ModelStreamInferResponse& response) {
    EXPECT_EQ(response.error_message(), "");
    read += Numbers<int64_t>(response.infer_response(), "output_ids").size();
  };
  ModelStreamInferResponse response;
  for (size_t steps = 2'000; steps <= 8'000; steps += 2'000) {
    server.control().RunSteps(2'000);
    while (read + 200 < steps && stream.Next(response)) take(response);
  }
  server.control().Resume();
  for (const auto& rest : stream.ReadAll()) take(rest);
  EXPECT_TRUE(stream.Finish().ok());
  EXPECT_EQ(read, 8'100U);
}

TEST(OipStreamTest, ADrainEndsIdleStreamsAndLetsOthersAnswer) {
  ServerConfig config = TestConfigWithMetrics();
  config.drain.grace = std::chrono::hours(1);
  OipServer server(config);
  server.control().Hold();
  InferStream idle(server.oip());
  InferStream busy(server.oip());
  ASSERT_TRUE(busy.Send(Ids("abc", 10).request()));
  server.control().WaitUntilBlocked();
  server.WaitForMetric("aft_memory_used_bytes", 3 * (16 << 10) + 3 * 4 + 1024);
  std::thread drain([&server] { EXPECT_TRUE(server.server().Drain()); });
  ModelStreamInferResponse response;
  EXPECT_FALSE(idle.Next(response));
  EXPECT_THAT(idle.Finish(), StatusIs(absl::StatusCode::kUnavailable, _));
  server.control().Resume();
  int tokens = 0;
  while (busy.Next(response)) ++tokens;
  EXPECT_EQ(tokens, 10);
  EXPECT_THAT(busy.Finish(), StatusIs(absl::StatusCode::kUnavailable, _));
  drain.join();
}

}  // namespace
}  // namespace aft::server
