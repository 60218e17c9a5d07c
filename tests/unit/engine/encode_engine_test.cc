// The engine of an encoder: batches, and how every request ends.

#include "server/engine/encode_engine.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "server/engine/pooling.h"
#include "tests/support/fake_encoder_runner.h"
#include "tests/support/same_bits.h"
#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Batches of at most 4 texts and 64 tokens over a fake encoder and a clock that the test moves. The
// delay is an hour unless a test says otherwise: a batch runs when it is full, or when the test
// moves the clock.
class EncodeEngineTest : public AnyEngineTest<EncodeEngine, RecordingVectorSink> {
 protected:
  EncodeEngineTest() {
    options.model.max_batch_rows = 4;
    options.model.max_batch_tokens = 64;
    options.model.max_batch_delay = hours(1);
  }

  void Start() {
    auto created =
        EncodeEngine::Create(options, std::make_unique<FakeEncoderRunner>(model, control), metrics);
    ASSERT_TRUE(created.ok()) << created.status();
    engine = *std::move(created);
  }
  // Like Start, but no step runs before the test allows it.
  void StartHeld() {
    Start();
    control->Hold();
  }

  void TearDown() override { control->Resume(); }

  EncodingRequest Request(std::vector<TokenId> text) {
    auto request = Arriving<EncodingRequest>();
    request.text = std::move(text);
    return request;
  }
  EncodingRequest Request(size_t tokens) {
    return Request(std::vector<TokenId>(tokens, static_cast<TokenId>(arrived % 200)));
  }

  // REQUIRES: the engine accepts each.
  std::vector<Sink> SubmitAll(const std::vector<EncodingRequest>& texts) {
    std::vector<Sink> sinks;
    for (const EncodingRequest& text : texts) sinks.push_back(Submit(text).sink);
    return sinks;
  }

  // The engine sleeps by the real clock, so it must be woken when the test's clock has moved.
  void Advance(Duration by) {
    clock.Advance(by);
    engine->Cancel(0);  // wakes the engine and cancels nothing
  }

  void ExpectVectors(const Sink& sink, const EncodingRequest& request) {
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.reason, FinishReason::kDone);
    EXPECT_EQ(outcome.usage.prompt_tokens, request.text.size());
    EXPECT_EQ(sink->vectors(), FakeEncoderRunner::Vectors(model, request.text));
  }

  // Expects that a new request is served, whatever happened before.
  void ExpectServes() {
    const EncodingRequest request = Request({5, 6, 7});
    const Sink sink = Submit(request).sink;
    Advance(hours(1));
    ExpectVectors(sink, request);
  }

  // The number of texts in each batch that has run.
  std::vector<size_t> BatchRows() const {
    std::vector<size_t> rows;
    for (const TokenSequences& batch : control->batches()) rows.push_back(batch.size());
    return rows;
  }

  FakeEncoderRunner::Options model;
  std::shared_ptr<FakeEncoderControl> control = std::make_shared<FakeEncoderControl>();
};

TEST_F(EncodeEngineTest, RefusesABatchThatTheRunnerCannotTake) {
  const auto create = [&](int64_t rows, int64_t tokens) {
    EngineOptions tried;
    tried.model.max_batch_rows = rows;
    tried.model.max_batch_tokens = tokens;
    return EncodeEngine::Create(tried, std::make_unique<FakeEncoderRunner>(model, control), metrics)
        .status();
  };
  EXPECT_EQ(create(5, 64).message(), "batch.max_rows: must be in [1, 4], got 5");
  EXPECT_EQ(create(4, 65).message(), "batch.max_tokens: must be in [1, 64], got 65");
  EXPECT_EQ(create(0, 64).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(create(4, 64).ok());
  EXPECT_TRUE(create(1, 1).ok());
}

TEST_F(EncodeEngineTest, AFullBatchRunsAtOnceInOneStep) {
  StartHeld();
  const std::vector<EncodingRequest> texts = {Request(1), Request(2), Request(3), Request(4)};
  const std::vector<Sink> sinks = SubmitAll(texts);
  control->WaitUntilBlocked();
  clock.Advance(milliseconds(5));
  control->Resume();
  for (size_t i = 0; i < 4; ++i) {
    ExpectVectors(sinks[i], texts[i]);
    EXPECT_EQ(sinks[i]->Wait().batch_rows, 4U);
  }
  EXPECT_THAT(BatchRows(), ElementsAre(4));
  EXPECT_EQ(metrics.encoded_tokens.Value(), 1 + 2 + 3 + 4);
  EXPECT_DOUBLE_EQ(SumOf(metrics.step_seconds), 5e-3);
  EXPECT_EQ(metrics.finished(Ending::kDone).Value(), 4);
}

TEST_F(EncodeEngineTest, ALoneTextRunsAfterTheDelay) {
  Start();
  const EncodingRequest request = Request(3);
  const Sink sink = Submit(request).sink;
  Advance(hours(1) - milliseconds(1));
  EXPECT_FALSE(sink->finished());
  Advance(milliseconds(1));
  ExpectVectors(sink, request);
  EXPECT_EQ(sink->Wait().timings.queue, hours(1));
  EXPECT_EQ(sink->Wait().batch_rows, 1U);
}

TEST_F(EncodeEngineTest, TheThreadWakesByItselfWhenTheDelayIsOver) {
  options.model.max_batch_delay = milliseconds(1);
  options.clock = EngineOptions().clock;  // the real one
  Start();
  EncodingRequest request = Request(3);
  request.arrival = std::chrono::steady_clock::now();
  const Sink sink = Submit(request).sink;
  ExpectVectors(sink, request);
}

TEST_F(EncodeEngineTest, TextsThatArriveDuringAStepAreTheNextBatch) {
  StartHeld();
  const std::vector<EncodingRequest> first = {Request(2), Request(2), Request(2), Request(2)};
  const std::vector<Sink> first_sinks = SubmitAll(first);
  control->WaitUntilBlocked();
  const std::vector<EncodingRequest> next = {Request(3), Request(4), Request(5),
                                             Request(6), Request(7), Request(8)};
  const std::vector<Sink> next_sinks = SubmitAll(next);
  control->Resume();
  Advance(hours(1));
  for (size_t i = 0; i < first.size(); ++i) ExpectVectors(first_sinks[i], first[i]);
  for (size_t i = 0; i < next.size(); ++i) ExpectVectors(next_sinks[i], next[i]);
  EXPECT_THAT(BatchRows(), ElementsAre(4, 4, 2));
}

// A text costs four tokens. Divided by the weight this is 4 for one client and 1.6 for the other.
TEST_F(EncodeEngineTest, ClientsHaveBatchesByTheirWeights) {
  options.model.max_batch_rows = 1;
  options.model.max_batch_delay = seconds(0);
  StartHeld();
  Client heavy;
  heavy.name = "heavy";
  heavy.weight = 2.5;
  const auto client = std::make_shared<const Client>(heavy);
  std::vector<Sink> sinks = {Submit(Request(std::vector<TokenId>{1})).sink};
  control->WaitUntilBlocked();
  for (TokenId i = 0; i < 4; ++i) {
    sinks.push_back(Submit(Request(std::vector<TokenId>(4, 10 + i))).sink);
    EncodingRequest request = Request(std::vector<TokenId>(4, 20 + i));
    request.client = client;
    sinks.push_back(Submit(std::move(request)).sink);
  }
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  std::vector<TokenId> order;
  for (const TokenSequences& batch : control->batches()) order.push_back(batch.at(0).at(0));
  EXPECT_THAT(order, ElementsAre(1, 10, 20, 21, 22, 11, 23, 12, 13));
}

TEST_F(EncodeEngineTest, ABatchTextThatHasWaitedGoesBeforeALaterUrgentOne) {
  options.model.max_batch_rows = 1;
  options.model.max_batch_delay = seconds(0);
  options.scheduling.age = seconds(1);
  StartHeld();
  std::vector<EncodingRequest> texts = {Request(1), Request(std::vector<TokenId>{200})};
  texts[1].service_class = ServiceClass::kBatch;
  std::vector<Sink> sinks = SubmitAll(texts);
  control->WaitUntilBlocked();
  clock.Advance(seconds(2));
  EncodingRequest urgent = Request(std::vector<TokenId>{201});
  urgent.service_class = ServiceClass::kInteractive;
  sinks.push_back(Submit(urgent).sink);
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_EQ(control->batches().at(1).at(0).at(0), 200);
}

TEST_F(EncodeEngineTest, ADeadlineThatCannotBeMetIsRefusedOnceItIsKnown) {
  options.model.max_batch_rows = 1;
  options.model.max_batch_delay = seconds(0);
  StartHeld();
  const Sink first = Submit(Request(10)).sink;
  control->WaitUntilBlocked();
  clock.Advance(seconds(10));  // so a token takes a second
  control->Resume();
  EXPECT_TRUE(first->Wait().status.ok());
  control->Hold();
  const Sink running = Submit(Request(1)).sink;  // an idle engine refuses nothing
  control->WaitUntilBlocked();
  EncodingRequest late = Request(60);
  late.deadline = clock.Now() + seconds(29);  // the estimate counts half of the 60 s
  EXPECT_THAT(Refused(late), StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("the deadline cannot be met")));
  EXPECT_EQ(metrics.rejected(Rejection::kDeadline).Value(), 1);
  control->Resume();
  EXPECT_TRUE(running->Wait().status.ok());
}

TEST_F(EncodeEngineTest, PoolsAndNormalizes) {
  Start();
  std::vector<Sink> sinks;
  EncodingRequest request = Request({10, 20});
  for (const Pooling pooling : {Pooling::kMean, Pooling::kFirst, Pooling::kLast}) {
    request.pooling = pooling;
    sinks.push_back(Submit(request).sink);
  }
  request.normalize = true;
  sinks.push_back(Submit(request).sink);
  for (const Sink& sink : sinks) EXPECT_TRUE(sink->Wait().status.ok());
  EXPECT_THAT(sinks[0]->vectors(), ElementsAre(2015.25F, 2015.0F, 2014.75F));
  EXPECT_THAT(sinks[1]->vectors(), ElementsAre(2010.0F, 2009.75F, 2009.5F));
  EXPECT_THAT(sinks[2]->vectors(), ElementsAre(2020.5F, 2020.25F, 2020.0F));
  double squares = 0;
  for (const float value : sinks[3]->vectors()) squares += double{value} * double{value};
  EXPECT_NEAR(squares, 1, 1e-6);
}

TEST_F(EncodeEngineTest, RefusesTextsThatWouldBreakTheBatch) {
  Start();
  for (const std::vector<TokenId>& text : {std::vector<TokenId>{}, {1, 257}, {-1}}) {
    EXPECT_EQ(Refused(Request(text)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(Refused(Request(65)).message()), HasSubstr("at most 64 tokens, got 65"));
  EXPECT_THAT(control->batches(), SizeIs(0));
}

TEST_F(EncodeEngineTest, RefusesVectorsThatWouldBreakTheBatch) {
  const auto vectors = [&](size_t numbers, size_t mask = 0, int64_t columns = 0) {
    EncodingRequest request = Request(std::vector<TokenId>());
    request.vectors.resize(numbers);
    request.mask.resize(mask);
    request.image_width = columns;
    return request;
  };
  const auto refused = [&](const EncodingRequest& request, const char* why) {
    const absl::Status status = Refused(request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
  };
  model.max_seq_len = 40;
  Start();
  EncodingRequest both = vectors(3);
  both.text = {1};
  refused(both, "vectors: must be 3 numbers a token, and no text");
  refused(vectors(4), "vectors: must be 3 numbers a token");
  refused(vectors(123), "vectors: must be of at most 40 tokens, got 41");
  refused(vectors(6, 3), "a mask of 3 for 2 tokens");
  refused(vectors(6, 0, 2), "image_width: the model does not accept 2 tokens in rows of 2");
  model.max_image_width = 4;
  Start();
  refused(vectors(6), "image_width: the model does not accept 2 tokens in rows of 0");
  refused(vectors(6, 0, -1), "image_width: the model does not accept 2 tokens in rows of -1");
  refused(vectors(15, 0, 5), "image_width: the model does not accept 5 tokens in rows of 5");
  refused(vectors(15, 0, 4), "image_width: the model does not accept 5 tokens in rows of 4");
  EncodingRequest ids = Request(std::vector<TokenId>{1, 2, 3});
  refused(ids, "image_width: the model does not accept 3 tokens in rows of 0");
  ids.image_width = 2;
  refused(ids, "image_width: the model does not accept 3 tokens in rows of 2");
  EXPECT_THAT(control->batches(), SizeIs(0));
  const Sink sink = Submit(vectors(12, 4, 4)).sink;
  Advance(hours(1));
  EXPECT_TRUE(sink->Wait().status.ok());
  ids.image_width = 3;
  const Sink image = Submit(ids).sink;
  Advance(hours(1));
  EXPECT_TRUE(image->Wait().status.ok());
  EXPECT_TRUE(SameBits(image->vectors(), FakeEncoderRunner::Vectors(model, ids)));
}

TEST_F(EncodeEngineTest, RefusesMoreKeysThanABatchOrASequenceHolds) {
  model.forms = {.sources = true, .free_lengths = true};
  const auto request = [this](size_t keys) {
    EncodingRequest made = Request(std::vector<TokenId>());
    made.vectors.resize(2 * 3);
    made.keys.resize(keys * 3);
    made.values.resize(keys * 3);
    return made;
  };
  Start();
  EXPECT_THAT(std::string(Refused(request(63)).message()),
              HasSubstr("keys: must be at most 64, and with the queries 64"));
  const Sink most = Submit(request(62)).sink;
  Advance(hours(1));
  EXPECT_TRUE(most->Wait().status.ok());
  model.max_seq_len = 40;
  Start();
  EXPECT_THAT(std::string(Refused(request(41)).message()), HasSubstr("keys: must be at most 40"));
}

TEST_F(EncodeEngineTest, VectorsCountAsTokensAndNeedNotBeFinite) {
  StartHeld();
  EncodingRequest request = Request(std::vector<TokenId>());
  request.vectors = {NAN, 1, 2, 3, 4, 5};
  const Sink sink = Submit(request).sink;
  const std::vector<Sink> texts = SubmitAll({Request(3), Request(4), Request(5)});
  control->WaitUntilBlocked();
  clock.Advance(milliseconds(5));
  control->Resume();
  EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(sink->Wait().usage.prompt_tokens, 2U);
  EXPECT_TRUE(SameBits(sink->vectors(), FakeEncoderRunner::Vectors(model, request)));
  for (const Sink& text : texts) EXPECT_TRUE(text->Wait().status.ok());
  EXPECT_EQ(metrics.encoded_tokens.Value(), 2 + 3 + 4 + 5);
  ASSERT_EQ(metrics.batches.Get().size(), 1U);
  EXPECT_EQ(metrics.batches.Get().at(4).batches, 1U);
  EXPECT_EQ(metrics.batches.Get().at(4).time, milliseconds(5));
}

TEST_F(EncodeEngineTest, ACancelledTextLeavesTheBatchBeforeItRuns) {
  Start();
  const Accepted leaver = Submit(Request(1));
  const EncodingRequest request = Request(2);
  const Sink stayer = Submit(request).sink;
  engine->Cancel(leaver.handle);
  EXPECT_EQ(leaver.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(leaver.sink->vectors().empty());
  Advance(hours(1));
  ExpectVectors(stayer, request);
  EXPECT_THAT(control->batches(), ElementsAre(TokenSequences{request.text}));
  engine->Cancel(leaver.handle);  // again is harmless
  ExpectServes();
}

TEST_F(EncodeEngineTest, DrainingEndsWaitingTextsAtOnce) {
  Start();
  const Sink sink = Submit(Request(3)).sink;
  engine->BeginDrain();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Refused(Request(1)).code(), absl::StatusCode::kUnavailable);
  engine->Shutdown(TimePoint::max());  // returns, because nothing runs
  EXPECT_TRUE(control->batches().empty());
}

TEST_F(EncodeEngineTest, FailedBatchesInARowFailTheModel) {
  options.model.max_batch_delay = seconds(0);
  options.health.max_failed_steps = 2;
  Start();
  for (const auto code : {absl::StatusCode::kInternal, absl::StatusCode::kUnavailable}) {
    control->FailNext(absl::InternalError("broken"));
    EXPECT_EQ(Submit(Request(1)).sink->Wait().status.code(), code);
  }
  EXPECT_EQ(Refused(Request(1)).code(), absl::StatusCode::kUnavailable);
}

TEST_F(EncodeEngineTest, ABatchThatDoesNotEndFailsTheModelAndItsVectorsAreDropped) {
  options.model.max_batch_delay = seconds(0);
  options.health.step_timeout = milliseconds(200);
  StartHeld();
  const Sink running = Submit(Request(1)).sink;
  control->WaitUntilBlocked();
  const Sink waiting = Submit(Request(1)).sink;
  clock.Advance(options.health.step_timeout + milliseconds(1));
  engine->CheckProgress();
  for (const Sink& sink : {running, waiting}) {
    EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  }
  control->Resume();
  engine->Shutdown(TimePoint::max());
  EXPECT_TRUE(running->vectors().empty());
}

TEST_F(EncodeEngineTest, ShutdownEndsTheRemainingTextsAtItsDeadline) {
  StartHeld();
  const std::vector<Sink> sinks = SubmitAll(std::vector<EncodingRequest>(6, Request(1)));
  control->WaitUntilBlocked();
  std::thread shutdown([&] { engine->Shutdown(clock.Now()); });
  control->AllowSteps(1);
  shutdown.join();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(sinks[i]->Wait().status.code(),
              i < 4 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable)
        << i;
  }
}

TEST_F(EncodeEngineTest, AFailedStepEndsItsOwnBatchAndNothingElse) {
  StartHeld();
  std::vector<EncodingRequest> texts;
  for (int i = 0; i < 8; ++i) texts.push_back(Request(2));
  const std::vector<Sink> sinks = SubmitAll(texts);
  control->WaitUntilBlocked();
  control->FailNext(absl::InternalError("secret detail"));
  control->Resume();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_THAT(sinks[i]->Wait().status,
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr(texts[i].id), Not(HasSubstr("secret")))));
    EXPECT_TRUE(sinks[i]->vectors().empty());
    EXPECT_EQ(sinks[i]->Wait().computed_tokens, 2U);  // as in a language model
  }
  for (size_t i = 4; i < 8; ++i) ExpectVectors(sinks[i], texts[i]);
  ExpectServes();
}

TEST_F(EncodeEngineTest, VectorsThatAreNotFiniteEndTheirOwnTextOnly) {
  model.nan_token = 99;
  Start();
  const Sink bad = Submit(Request({1, 99, 2})).sink;
  const EncodingRequest request = Request({1, 2});
  const Sink good = Submit(request).sink;
  Advance(hours(1));
  EXPECT_EQ(bad->Wait().status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(bad->Wait().computed_tokens, 3U);
  ExpectVectors(good, request);
}

TEST_F(EncodeEngineTest, EveryTextOfManyThreadsEndsOnceWithItsOwnVectors) {
  constexpr unsigned kSeed = 5;
  options.model.max_batch_delay = milliseconds(0);
  options.limits.max_queued_requests = 1000;
  Start();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(kSeed + t);
      for (int i = 0; i < 50; ++i) {
        EncodingRequest request;
        request.id = "many";
        request.text.assign(1 + random() % 64, static_cast<TokenId>(random() % 257));
        request.arrival = clock.Now();
        const bool cancel = random() % 4 == 0;
        const auto sink = std::make_shared<RecordingVectorSink>();
        const auto handle = engine->EncodeTexts({request}, {sink});
        AFT_CHECK(handle.ok());
        if (cancel) engine->Cancel(*handle);
        const Outcome outcome = sink->Wait();  // the sink checks that the outcome comes once
        if (outcome.status.ok()) {
          EXPECT_EQ(sink->vectors(), FakeEncoderRunner::Vectors(model, request.text));
        } else {
          EXPECT_TRUE(cancel);
          EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const EngineLoad load = engine->load();
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.waiting, 0);
}

TEST(PoolingTest, AVectorOfLengthZeroStaysAsItIs) {
  EXPECT_THAT(Pool({0, 0, 3, 4}, 2, Pooling::kNone, /*normalize=*/true),
              ElementsAre(0, 0, 0.6F, 0.8F));
}

TEST(PoolingTest, NormalizesWithoutOverflow) {
  const std::vector<float> unit = Pool({3e30F, 4e30F}, 2, Pooling::kNone, /*normalize=*/true);
  EXPECT_FLOAT_EQ(unit[0], 0.6F);
  EXPECT_FLOAT_EQ(unit[1], 0.8F);
}

}  // namespace
}  // namespace aft::server
