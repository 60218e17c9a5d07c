// Several texts in one call of Score or Encode over real gRPC, with fake models.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "absl/base/casts.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Lt;
using ::testing::SizeIs;
using ::testing::StartsWith;

constexpr int kCall = 16 << 10;  // what a call is charged beside its texts
constexpr char kMemoryUsed[] = "aft_memory_used_bytes";

constexpr int kMany = 4000;

// What came of one text, but for its times.
struct Answer {
  std::vector<std::string> parts;
  std::string finished;
  bool operator==(const Answer&) const = default;
};

struct ScoreMethod {
  using Request = v1::ScoreRequest;
  using Response = v1::ScoreResponse;
  using Stream = ScoreStream;
  static constexpr char kName[] = "Score";
  static constexpr char kModel[] = "fake";
  static StepGate& Gate(TestServer& server) { return server.control(); }
  static void Add(const Response& event, Answer& answer) {
    for (int i = 0; i < event.chunk().token_ids_size(); ++i) {
      answer.parts.push_back(absl::StrCat(event.chunk().token_ids(i), " ",
                                          event.chunk().logprobs(i).ShortDebugString()));
    }
  }
};

struct EncodeMethod {
  using Request = v1::EncodeRequest;
  using Response = v1::EncodeResponse;
  using Stream = EncodeStream;
  static constexpr char kName[] = "Encode";
  static constexpr char kModel[] = "encoder";
  static StepGate& Gate(TestServer& server) { return server.encoder_control(); }
  static void Add(const Response& event, Answer& answer) {
    for (const float value : event.vectors().values()) {
      answer.parts.push_back(absl::StrCat(absl::bit_cast<uint32_t>(value)));
    }
  }
};

std::string Text(size_t size, size_t which = 0) {
  std::string text(size, 'a');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('a' + (i * 7 + which) % 26);
  return text;
}

template <typename Method>
class TextsTest : public testing::Test {
 protected:
  using Request = typename Method::Request;
  using Stream = typename Method::Stream;

  TextsTest() {
    config_.metrics_address = "127.0.0.1:0";
    config_.drain.grace = std::chrono::hours(1);
  }

  void Start() { server_ = std::make_unique<TestServer>(config_, options_, encoder_options_); }

  static Request Single(const std::string& text) {
    Request request;
    request.set_model(Method::kModel);
    request.set_text(text);
    return request;
  }
  static Request Several(const std::vector<std::string>& texts) {
    Request request;
    request.set_model(Method::kModel);
    for (const std::string& text : texts) request.add_texts()->set_text(text);
    return request;
  }
  static Request Several(size_t count, size_t size) {
    std::vector<std::string> texts;
    for (size_t i = 0; i < count; ++i) texts.push_back(Text(size, i));
    return Several(texts);
  }

  Stream Open(const Request& request, const typename Stream::Prepare& prepare = {}) {
    return Stream(server_->inference(), request, prepare);
  }
  Stream Run(const Request& request) {
    Stream stream = Open(request);
    const grpc::Status status = stream.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stream;
  }
  std::vector<Answer> AnswersOf(const Stream& stream, size_t texts = 1) {
    std::vector<Answer> answers(texts);
    for (const auto& event : stream.events) {
      Answer& answer = answers.at(event.index());
      Method::Add(event, answer);
      if (!event.has_finished()) continue;
      auto finished = event.finished();
      finished.clear_timings();
      if constexpr (requires { finished.clear_batch_rows(); }) finished.clear_batch_rows();
      answer.finished = "finished " + finished.ShortDebugString();
    }
    return answers;
  }
  grpc::Status Refused(const Request& request) {
    Stream stream = Open(request);
    const grpc::Status status = stream.Finish();
    EXPECT_THAT(stream.events, IsEmpty());
    return status;
  }

  double Metric(const std::string& name) {
    return server_->Metric(absl::StrCat(name, "{model=\"", Method::kModel, "\"}"));
  }
  void WaitFor(const std::string& name, double value) {
    server_->WaitForMetric(absl::StrCat(name, "{model=\"", Method::kModel, "\"}"), value);
  }
  void ExpectCalls(const std::string& code, double count) {
    server_->WaitForMetric(RequestsTotal(code, Method::kName, Method::kModel), count);
  }
  // Nothing of a call is left: no slot, place in the queue or memory.
  void WaitUntilIdle() {
    WaitFor("aft_slots_used", 0);
    WaitFor("aft_requests_waiting", 0);
    server_->WaitForMetric(kMemoryUsed, 0);
    EXPECT_EQ(Metric("aft_requests_running"), 0);
    EXPECT_TRUE(Open(Several(8, 3)).Finish().ok());  // all slots, and all of the queue
    server_->WaitForMetric(kMemoryUsed, 0);
  }
  StepGate& gate() { return Method::Gate(*server_); }

  // Before Start: takes calls of kMany texts, which are a thousand steps.
  void TakeMany() {
    config_.limits.max_texts = kMany;
    config_.limits.max_queued_requests = config_.scheduling.max_client_queued_requests = kMany;
  }
  // The model works on, step by step, until a call has ended so.
  void StepUntilCalls(const std::string& code) {
    const std::string calls = RequestsTotal(code, Method::kName, Method::kModel);
    while (server_->Metric(calls) == 0) gate().AllowSteps(1);
    gate().Resume();
  }

  ServerConfig config_ = [] {
    ServerConfig config = TestConfigWithEncoder();
    config.limits.max_queued_requests = config.scheduling.max_client_queued_requests = 4;
    return config;
  }();
  FakeModelRunner::Options options_;
  FakeEncoderRunner::Options encoder_options_;
  std::unique_ptr<TestServer> server_;
};

using Methods = testing::Types<ScoreMethod, EncodeMethod>;
TYPED_TEST_SUITE(TextsTest, Methods);

TYPED_TEST(TextsTest, EachIsWhatACallOfItsOwnGives) {
  this->Start();
  const std::vector<size_t> sizes = {1, 40, 64, 2, 63, 17, 64, 5};
  typename TypeParam::Request request;
  request.set_model(TypeParam::kModel);
  std::vector<std::string> texts;
  for (size_t i = 0; i < sizes.size(); ++i) {
    texts.push_back(Text(sizes[i], i));
    v1::Text& text = *request.add_texts();
    if (i % 3 == 0) text.set_text(texts[i]);
    if (i % 3 == 1) text.set_raw(texts[i]);
    for (size_t at = 0; i % 3 == 2 && at < sizes[i]; ++at) {
      text.mutable_tokens()->add_ids(static_cast<uint32_t>(texts[i][at]));
    }
  }
  const auto stream = this->Run(request);
  const auto& started = stream.events.front().started();
  EXPECT_EQ(started.model(), TypeParam::kModel);
  EXPECT_EQ(started.tokens(), 256U);
  EXPECT_THAT(std::vector<size_t>(started.text_tokens().begin(), started.text_tokens().end()),
              ElementsAreArray(sizes));
  const std::vector<Answer> answers = this->AnswersOf(stream, sizes.size());
  this->ExpectCalls("OK", 1);
  EXPECT_EQ(this->server_->Metric("aft_client_tokens_total{client=\"other\"}"), 256);
  EXPECT_EQ(this->server_->Metric("aft_client_requests_total{client=\"other\",result=\"ok\"}"), 1);
  EXPECT_EQ(this->server_->Metric(absl::StrCat("aft_request_finished_total{model=\"",
                                               TypeParam::kModel, "\",reason=\"done\"}")),
            8);
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto single = this->Run(this->Single(texts[i]));
    EXPECT_THAT(single.events.front().started().text_tokens(), IsEmpty());
    EXPECT_EQ(answers[i], this->AnswersOf(single)[0]) << i;
  }
  this->WaitUntilIdle();
}

TYPED_TEST(TextsTest, OneInTheListIsACallLikeAnyOther) {
  this->Start();
  const auto stream = this->Run(this->Several(1, 30));
  EXPECT_THAT(stream.events.front().started().text_tokens(), SizeIs(1));
  EXPECT_EQ(this->AnswersOf(stream), this->AnswersOf(this->Run(this->Single(Text(30)))));
}

TYPED_TEST(TextsTest, ABadOneRefusesAllByName) {
  this->config_.limits.max_texts = 6;
  this->config_.limits.max_prompt_bytes = 60;
  this->config_.limits.max_prompt_tokens = 50;
  this->Start();
  const struct {
    const char* request;
    const char* message;
  } cases[] = {
      {"texts { text: 'a' } texts { text: '' }", "texts[1].text: must not be empty"},
      {"texts { text: 'a' } texts {}", "texts[1]: one of text, raw, tokens must be set"},
      {"texts { tokens {} }", "texts[0].tokens.ids: must not be empty"},
      {"texts { raw: 'a' } texts { tokens { ids: [1, 300] } }",
       "texts[1].tokens.ids[1]: must be below 257, the size of the vocabulary, got 300"},
      {"text: 'a' texts { text: 'a' }", "texts: must not be set together with text"},
      {"raw: '' texts { text: 'a' }", "texts: must not be set together with raw"},
      {"tokens {} texts { text: 'a' }", "texts: must not be set together with tokens"},
      {"texts {} texts {} texts {} texts {} texts {} texts {} texts {}",
       "texts: must have at most 6 entries (limits.max_texts), got 7"},
  };
  for (const auto& bad : cases) {
    auto request = FromText<typename TypeParam::Request>(bad.request);
    request.set_model(TypeParam::kModel);
    EXPECT_THAT(this->Refused(request),
                StatusIs(absl::StatusCode::kInvalidArgument, bad.message));
  }
  EXPECT_THAT(this->Refused(this->Several({Text(30), Text(31)})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 60 bytes together, got 61"));
  EXPECT_THAT(this->Refused(this->Several({Text(30), Text(20), Text(1)})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 50 tokens together, more by texts[2]"));
  EXPECT_EQ(this->server_->Metric(absl::StrCat("aft_rejected_total{model=\"", TypeParam::kModel,
                                               "\",reason=\"invalid\"}")),
            10);
  this->server_->WaitForMetric(kMemoryUsed, 0);
  EXPECT_EQ(this->Metric("aft_step_rows_count"), 0);
  this->Run(this->Several({Text(30), Text(20)}));
}

TYPED_TEST(TextsTest, AreTogetherWithinTheClientsPartOfQueuedTokens) {
  this->config_.limits.max_prompt_tokens = this->config_.limits.max_queued_tokens = 100;
  this->Start();
  EXPECT_THAT(this->Refused(this->Several(3, 17)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts: must have at most 50 tokens together, more by texts[2]"));
  this->Run(this->Several(8, 6));
  this->Run(this->Several(1, 51));  // alone it may wait
}

TYPED_TEST(TextsTest, AQueueThatHasRoomForAPartTakesNone) {
  this->Start();
  this->gate().Hold();
  auto running = this->Open(this->Several(3, 10));  // of four slots, or of a batch
  ASSERT_TRUE(running.Next());
  this->gate().WaitUntilBlocked();
  const double held = this->server_->Metric(kMemoryUsed);
  auto refused = this->Open(this->Several(6, 10));
  EXPECT_THAT(refused.Finish(),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  EXPECT_THAT(refused.events, IsEmpty());
  int hint_ms = 0;
  EXPECT_TRUE(absl::SimpleAtoi(refused.TrailingMetadata("grpc-retry-pushback-ms"), &hint_ms));
  EXPECT_GE(hint_ms, 100);
  this->server_->WaitForMetric(kMemoryUsed, held);
  EXPECT_EQ(this->Metric("aft_requests_waiting"), 0);
  auto waiting = this->Open(this->Several(5, 10));  // the fourth slot, and all of the queue
  this->WaitFor("aft_requests_waiting", 5);
  EXPECT_THAT(this->Refused(this->Single("x")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_queued_requests=4")));
  this->gate().Resume();
  EXPECT_TRUE(running.Finish().ok());
  EXPECT_TRUE(waiting.Finish().ok());
  this->ExpectCalls("RESOURCE_EXHAUSTED", 2);
  this->WaitUntilIdle();
  // What never fits is no matter of trying again.
  EXPECT_THAT(this->Refused(this->Several(9, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       StartsWith("texts: must have at most 8 entries")));
}

TYPED_TEST(TextsTest, ShareStepsWithOneAnotherAndWithOtherCalls) {
  this->Start();
  this->gate().Hold();
  auto first = this->Open(this->Single(Text(20)));
  ASSERT_TRUE(first.Next());
  this->gate().WaitUntilBlocked();
  auto three = this->Open(this->Several(3, 16));
  this->WaitFor("aft_requests_waiting", 3);
  auto other = this->Open(this->Single(Text(16)));
  this->WaitFor("aft_requests_waiting", 4);
  this->gate().Resume();
  EXPECT_TRUE(first.Finish().ok());
  EXPECT_TRUE(three.Finish().ok());
  EXPECT_TRUE(other.Finish().ok());
  EXPECT_EQ(this->Metric("aft_step_rows_sum"), 5);
  EXPECT_EQ(this->Metric("aft_step_rows_count"), 2);
}

TYPED_TEST(TextsTest, ACancelHalfWayEndsAll) {
  this->TakeMany();
  this->Start();
  this->gate().Hold();
  auto stream = this->Open(this->Several(kMany, 3));  // four at a time
  this->gate().RunSteps(1);
  ASSERT_TRUE(stream.ReadUntil(TypeParam::Response::kFinished));
  stream.context().TryCancel();
  this->StepUntilCalls("CANCELLED");
  EXPECT_EQ(stream.Finish().error_code(), grpc::CANCELLED);
  // Those that were read count, and the others do not.
  const double tokens = this->server_->Metric("aft_client_tokens_total{client=\"other\"}");
  EXPECT_THAT(tokens, AllOf(Ge(4 * 3), Lt(kMany * 3)));
  this->WaitUntilIdle();
}

TYPED_TEST(TextsTest, TheDeadlineIsThatOfAll) {
  this->TakeMany();
  this->Start();
  this->gate().Hold();
  auto stream = this->Open(this->Several(kMany, 3), [](grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(100));
  });
  EXPECT_EQ(stream.Finish().error_code(), grpc::DEADLINE_EXCEEDED);
  this->StepUntilCalls("DEADLINE_EXCEEDED");
  this->WaitUntilIdle();
}

TYPED_TEST(TextsTest, ADrainLetsACallThatHasBegunFinishAndReleasesOneThatWaits) {
  this->Start();
  this->gate().Hold();
  auto running = this->Open(this->Several(6, 16));  // two of them wait
  ASSERT_TRUE(running.Next());
  this->gate().WaitUntilBlocked();
  this->WaitFor("aft_requests_waiting", 2);
  auto waiting = this->Open(this->Several(2, 16));
  this->WaitFor("aft_requests_waiting", 4);
  std::thread drain([this] { EXPECT_TRUE(this->server_->server().Drain()); });
  this->server_->WaitForMetric(absl::StrCat("aft_model_state{model=\"", TypeParam::kModel,
                                            "\",state=\"draining\"}"),
                               1);
  this->gate().Resume();
  EXPECT_EQ(waiting.Finish().error_code(), grpc::UNAVAILABLE);
  EXPECT_THAT(waiting.events, IsEmpty());
  const grpc::Status status = running.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  drain.join();
}

TYPED_TEST(TextsTest, AModelThatFailsEndsAll) {
  this->config_.health.max_failed_steps = 1;
  this->Start();
  this->gate().Hold();
  auto stream = this->Open(this->Several(8, 16));
  ASSERT_TRUE(stream.Next());
  this->gate().WaitUntilBlocked();
  if constexpr (std::is_same_v<TypeParam, ScoreMethod>) {
    this->server_->control().FailNextCollect(absl::InternalError("a step"));
  } else {
    this->server_->encoder_control().FailNext(absl::InternalError("a step"));
  }
  this->gate().Resume();
  EXPECT_FALSE(stream.Finish().ok());
  this->WaitFor("aft_slots_used", 0);
  this->server_->WaitForMetric(kMemoryUsed, 0);
}

TYPED_TEST(TextsTest, OneThatFailsIsNamedAndEndsTheCall) {
  this->encoder_options_.nan_token = 'Z';
  this->options_.next_token = [](uint64_t hash, int64_t) {
    const uint64_t bad = FakeModelRunner::Consume(FakeModelRunner::kEmptyHash, 'Z', 0);
    return hash == bad ? kNoToken : TokenId{'x'};
  };
  this->Start();
  auto stream = this->Open(this->Several({"abc", "def", "Zzz", "ghi"}));
  const grpc::Status status = stream.Finish();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal,
                               StartsWith("texts[2]: internal error; request id ")));
  this->ExpectCalls("INTERNAL", 1);
  this->WaitUntilIdle();
}

using ScoreTextsTest = TextsTest<ScoreMethod>;

TEST_F(ScoreTextsTest, AllGoOnFromOneStateAndEachLeavesOne) {
  Start();
  v1::GenerateRequest context = aft::server::Request("a context", 4);
  context.set_model("fake");
  context.mutable_store();
  GenerateStream before(server_->inference(), context);
  ASSERT_TRUE(before.Finish().ok());
  ScoreMethod::Request request = Several({"yes", "no", "perhaps"});
  request.mutable_previous()->set_state_id(before.finished.state().id());
  request.mutable_store();
  request.mutable_output()->set_top_logprobs(2);
  const ScoreStream stream = Run(request);
  EXPECT_EQ(server_->Metric("aft_states"), 4);
  size_t stored = 0;
  for (const v1::ScoreResponse& event : stream.events) {
    if (!event.has_finished()) continue;
    const v1::ScoreFinished& finished = event.finished();
    ScoreMethod::Request single = request;
    single.set_text(request.texts(static_cast<int>(event.index())).text());
    single.clear_texts();
    const ScoreStream alone = Run(single);
    const v1::ScoreFinished& expected = alone.events.back().finished();
    EXPECT_EQ(finished.logprob(), expected.logprob());
    EXPECT_EQ(finished.scored_tokens(), single.text().size());  // a pending token came before
    EXPECT_EQ(finished.state().history(), expected.state().history());
    EXPECT_EQ(finished.state().tokens(), before.finished.state().tokens() + single.text().size());
    ++stored;
    // It can be gone on from.
    v1::GenerateRequest next = aft::server::Request("", 2);
    next.set_model("fake");
    next.mutable_previous()->set_state_id(finished.state().id());
    EXPECT_TRUE(GenerateStream(server_->inference(), next).Finish().ok());
  }
  EXPECT_EQ(stored, 3U);
}

TEST_F(ScoreTextsTest, OneThatIsTooLongBehindTheStateIsNamed) {
  options_.max_seq_len = 20;
  Start();
  v1::GenerateRequest context = aft::server::Request("a context", 4);
  context.mutable_store();
  GenerateStream before(server_->inference(), context);
  ASSERT_TRUE(before.Finish().ok());
  ScoreMethod::Request request = Several({"seven b", "eight by"});
  request.mutable_previous()->set_state_id(before.finished.state().id());
  EXPECT_THAT(Refused(request),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "texts[1]: 13 tokens before and 8 exceed the model's max_seq_len=20"));
  server_->WaitForMetric(kMemoryUsed, 0);
  request.mutable_texts()->RemoveLast();
  Run(request);
}

TEST_F(ScoreTextsTest, StatesOfAllHavePlacesBeforeAnyWork) {
  config_.states.max_bytes = 12'000;  // half of it for one client
  Start();
  ScoreMethod::Request request = Several(8, 10);
  request.mutable_store();
  EXPECT_THAT(Refused(request),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("states")));
  EXPECT_EQ(server_->Metric("aft_states"), 0);
  EXPECT_EQ(server_->control().step_count(), 0);
  WaitUntilIdle();
}

TEST_F(ScoreTextsTest, AreNotResumedButAskedForAgain) {
  Start();
  ScoreMethod::Request request = Several(2, 10);
  request.mutable_resume();
  EXPECT_THAT(Refused(request), StatusIs(absl::StatusCode::kInvalidArgument,
                                         StartsWith("resume: must not be set together with texts")));
  request.clear_resume();
  request.set_resumable(true);
  EXPECT_FALSE(Run(request).events.front().started().exact());
}

TEST_F(ScoreTextsTest, ADrainEndsACallWhoseClientAsksElsewhere) {
  Start();
  server_->control().Hold();
  ScoreMethod::Request request = Several(6, 100);
  request.set_resumable(true);
  ScoreStream stream = Open(request);
  ASSERT_TRUE(stream.Next());
  server_->control().WaitUntilBlocked();
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  server_->WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  server_->control().Resume();
  EXPECT_EQ(stream.Finish().error_code(), grpc::UNAVAILABLE);
  drain.join();
}

TEST_F(ScoreTextsTest, EachIsChargedForWhatItHolds) {
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = 5 * kCall;
  Start();
  server_->control().Hold();
  ScoreStream stream = Open(Several(4, 10));
  server_->WaitForMetric(kMemoryUsed, kCall + 3 * 8192 + 4 * 10 * 4);
  EXPECT_THAT(Refused(Several(4, 10)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_memory_bytes")));
  server_->WaitForMetric(kMemoryUsed, kCall + 3 * 8192 + 4 * 10 * 4);
  EXPECT_EQ(Metric("aft_requests_waiting") + Metric("aft_requests_running"), 4);
  server_->control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  server_->WaitForMetric(kMemoryUsed, 0);
}

using EncodeTextsTest = TextsTest<EncodeMethod>;

// The vectors of four texts at a time are 700 KB, and of all 2.8 MB.
TEST_F(EncodeTextsTest, ASlowReaderGetsAllBecauseThereWasRoomForIt) {
  config_.limits.max_queued_requests = config_.scheduling.max_client_queued_requests = 16;
  config_.limits.write_stall = std::chrono::hours(1);
  encoder_options_.width = 700;
  Start();
  const auto stub = server_->StubWithASmallWindow();
  EncodeStream stream(*stub, Several(16, 64));
  server_->WaitForMetric("aft_encoded_tokens_total{model=\"encoder\"}", 16 * 64);
  EXPECT_THAT(server_->Metric(kMemoryUsed), Gt(2'500'000));
  const grpc::Status status = stream.Finish();  // it begins to read
  ASSERT_TRUE(status.ok()) << status.error_message();
  const std::vector<Answer> answers = AnswersOf(stream, 16);
  for (const Answer& answer : answers) EXPECT_THAT(answer.parts, SizeIs(64 * 700));
  server_->WaitForMetric(kMemoryUsed, 0);
}

TEST_F(EncodeTextsTest, TheWholeAnswerIsChargedBeforeAnyWork) {
  encoder_options_.width = 1000;
  constexpr int kTexts = kCall + 3 * 8192 + 4 * 10 * 4;
  constexpr int kVectors = 4 * 10 * 1000 * 4;
  config_.limits.max_memory_bytes = config_.limits.max_client_memory_bytes = kTexts + kVectors;
  Start();
  server_->encoder_control().Hold();
  EncodeStream stream = Open(Several(4, 10));
  server_->WaitForMetric(kMemoryUsed, kTexts + kVectors);
  EXPECT_THAT(Refused(Single("x")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_memory_bytes")));
  server_->encoder_control().Resume();
  EXPECT_TRUE(stream.Finish().ok());
  server_->WaitForMetric(kMemoryUsed, 0);
  EXPECT_THAT(Refused(Several(5, 10)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("texts: they and their answers would take ")));
  EncodeMethod::Request pooled = Several(5, 10);  // one vector each
  pooled.set_pooling(v1::POOLING_MEAN);
  EXPECT_THAT(AnswersOf(Run(pooled), 5)[4].parts, SizeIs(1000));
}

}  // namespace
}  // namespace aft::server
