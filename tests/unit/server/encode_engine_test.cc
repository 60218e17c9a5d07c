// The engine of an encoder: batches, and how every request ends.

#include "server/engine/encode_engine.h"

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/engine/pooling.h"
#include "tests/support/fake_encoder_runner.h"
#include "tests/support/manual_clock.h"
#include "tests/support/recording_sink.h"

namespace aft::server {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// Batches of at most 4 texts and 64 tokens over a fake encoder and a clock that the test moves. The
// delay is an hour unless a test says otherwise: a batch runs when it is full, or when the test
// moves the clock.
class EncodeEngineTest : public testing::Test {
 protected:
  using Sink = std::shared_ptr<RecordingVectorSink>;

  void Start() {
    options_.model.name = "fake";
    options_.clock = [this] { return clock_.Now(); };
    auto created = EncodeEngine::Create(
        options_, std::make_unique<FakeEncoderRunner>(model_, control_), metrics_);
    ASSERT_TRUE(created.ok()) << created.status();
    engine_ = *std::move(created);
  }

  void TearDown() override { control_->Resume(); }

  EncodingRequest Request(std::vector<TokenId> text) {
    EncodingRequest request;
    request.id = "request-" + std::to_string(++requests_);
    request.text = std::move(text);
    request.arrival = clock_.Now();
    return request;
  }
  EncodingRequest Request(size_t tokens) {
    return Request(std::vector<TokenId>(tokens, static_cast<TokenId>(requests_ % 200)));
  }

  struct Accepted {
    RequestHandle handle;
    Sink sink;
  };
  // REQUIRES: the engine accepts it.
  Accepted Submit(EncodingRequest request) {
    auto sink = std::make_shared<RecordingVectorSink>();
    const auto handle = engine_->Encode(std::move(request), sink);
    AFT_CHECK(handle.ok());
    return {*handle, std::move(sink)};
  }
  absl::Status Refused(EncodingRequest request) {
    const auto sink = std::make_shared<RecordingVectorSink>();
    const auto handle = engine_->Encode(std::move(request), sink);
    EXPECT_FALSE(sink->finished());
    return handle.status();
  }

  // The engine sleeps by the real clock: after the test's has moved, it must look again.
  void Advance(Duration by) {
    clock_.Advance(by);
    engine_->Cancel(0);  // of nothing
  }

  void ExpectVectors(const Sink& sink, const EncodingRequest& request) {
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(outcome.reason, FinishReason::kDone);
    EXPECT_EQ(outcome.usage.prompt_tokens, request.text.size());
    EXPECT_EQ(sink->vectors(), FakeEncoderRunner::Vectors(model_, request.text));
  }

  // A new request is served right: whatever happened before did no lasting harm.
  void ExpectServes() {
    const EncodingRequest request = Request({5, 6, 7});
    const Sink sink = Submit(request).sink;
    Advance(hours(1));
    ExpectVectors(sink, request);
  }

  // Texts of each batch that has run.
  std::vector<size_t> BatchRows() const {
    std::vector<size_t> rows;
    for (const TokenSequences& batch : control_->batches()) rows.push_back(batch.size());
    return rows;
  }

  FakeEncoderRunner::Options model_;
  EngineOptions options_ = [] {
    EngineOptions options;
    options.model.max_batch_rows = 4;
    options.model.max_batch_tokens = 64;
    options.model.max_batch_delay = hours(1);
    return options;
  }();
  ManualClock clock_;
  prometheus::Registry registry_;
  ModelMetrics metrics_{registry_, "fake"};
  std::shared_ptr<FakeEncoderControl> control_ = std::make_shared<FakeEncoderControl>();
  std::unique_ptr<EncodeEngine> engine_;

 private:
  size_t requests_ = 0;
};

TEST_F(EncodeEngineTest, RefusesABatchThatTheRunnerCannotTake) {
  const auto create = [&](int64_t rows, int64_t tokens) {
    EngineOptions options;
    options.model.max_batch_rows = rows;
    options.model.max_batch_tokens = tokens;
    return EncodeEngine::Create(options, std::make_unique<FakeEncoderRunner>(model_, control_),
                                metrics_)
        .status();
  };
  EXPECT_EQ(create(5, 64).message(), "batch.max_rows: must be in [1, 4], got 5");
  EXPECT_EQ(create(4, 65).message(), "batch.max_tokens: must be in [1, 64], got 65");
  EXPECT_EQ(create(0, 64).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(create(4, 64).ok());
  EXPECT_TRUE(create(1, 1).ok());
}

TEST_F(EncodeEngineTest, AFullBatchRunsAtOnceInOneStep) {
  Start();
  control_->Hold();
  std::vector<EncodingRequest> requests;
  std::vector<Sink> sinks;
  for (size_t i = 1; i <= 4; ++i) {
    requests.push_back(Request(i));
    sinks.push_back(Submit(requests.back()).sink);
  }
  control_->WaitUntilBlocked();
  clock_.Advance(milliseconds(5));
  control_->Resume();
  for (size_t i = 0; i < 4; ++i) {
    ExpectVectors(sinks[i], requests[i]);
    EXPECT_EQ(sinks[i]->Wait().batch_rows, 4U);
  }
  EXPECT_THAT(BatchRows(), ElementsAre(4));
  EXPECT_EQ(metrics_.encoded_tokens.Value(), 1 + 2 + 3 + 4);
  EXPECT_DOUBLE_EQ(metrics_.step_seconds.Collect().histogram.sample_sum, 5e-3);
  EXPECT_DOUBLE_EQ(metrics_.e2e_seconds.Collect().histogram.sample_sum, 4 * 5e-3);
  EXPECT_EQ(metrics_.finished(Ending::kDone).Value(), 4);
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
  options_.model.max_batch_delay = milliseconds(1);
  options_.clock = nullptr;
  options_.model.name = "fake";
  options_.clock = EngineOptions().clock;  // the real one
  auto created = EncodeEngine::Create(
      options_, std::make_unique<FakeEncoderRunner>(model_, control_), metrics_);
  ASSERT_TRUE(created.ok());
  engine_ = *std::move(created);
  EncodingRequest request = Request(3);
  request.arrival = std::chrono::steady_clock::now();
  const Sink sink = Submit(request).sink;
  ExpectVectors(sink, request);
}

TEST_F(EncodeEngineTest, WhatArrivesDuringAStepIsTheNextBatch) {
  Start();
  control_->Hold();
  std::vector<EncodingRequest> requests;
  std::vector<Sink> sinks;
  for (size_t i = 0; i < 4; ++i) {
    requests.push_back(Request(2));
    sinks.push_back(Submit(requests.back()).sink);
  }
  control_->WaitUntilBlocked();
  for (size_t i = 0; i < 6; ++i) {
    requests.push_back(Request(3 + i));
    sinks.push_back(Submit(requests.back()).sink);
  }
  control_->Resume();
  Advance(hours(1));
  for (size_t i = 0; i < requests.size(); ++i) ExpectVectors(sinks[i], requests[i]);
  EXPECT_THAT(BatchRows(), ElementsAre(4, 4, 2));
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

TEST_F(EncodeEngineTest, RefusesWhatWouldBreakTheBatch) {
  Start();
  for (const std::vector<TokenId>& text : {std::vector<TokenId>{}, {1, 257}, {-1}}) {
    EXPECT_EQ(Refused(Request(text)).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(Refused(Request(65)).message()), HasSubstr("at most 64 tokens, got 65"));
  EXPECT_THAT(control_->batches(), SizeIs(0));
}

TEST_F(EncodeEngineTest, RefusesMoreRequestsThanMayWait) {
  options_.limits.max_queued_requests = 2;
  Start();
  control_->Hold();
  std::vector<Sink> sinks;
  for (int i = 0; i < 6; ++i) sinks.push_back(Submit(Request(1)).sink);
  const absl::Status status = Refused(Request(1));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("max_queued_requests=2"));
  control_->Resume();
  Advance(hours(1));
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  ExpectServes();
}

TEST_F(EncodeEngineTest, ACancelledTextLeavesTheBatchBeforeItRuns) {
  Start();
  const Accepted leaver = Submit(Request(1));
  const EncodingRequest request = Request(2);
  const Sink stayer = Submit(request).sink;
  engine_->Cancel(leaver.handle);
  EXPECT_EQ(leaver.sink->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(leaver.sink->vectors().empty());
  Advance(hours(1));
  ExpectVectors(stayer, request);
  EXPECT_THAT(control_->batches(), ElementsAre(TokenSequences{request.text}));
  engine_->Cancel(leaver.handle);  // again is harmless
  ExpectServes();
}

TEST_F(EncodeEngineTest, ADeadlineEndsATextThatWaits) {
  Start();
  EncodingRequest request = Request(1);
  request.deadline = clock_.Now() + seconds(1);
  const Sink sink = Submit(request).sink;
  Advance(seconds(1));
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(control_->batches(), SizeIs(0));
  ExpectServes();
}

TEST_F(EncodeEngineTest, DrainingRunsWhatWaitsAtOnce) {
  Start();
  const EncodingRequest request = Request(3);
  const Sink sink = Submit(request).sink;
  engine_->BeginDrain();
  ExpectVectors(sink, request);  // though its delay is not over
  EXPECT_EQ(Refused(Request(1)).code(), absl::StatusCode::kUnavailable);
  engine_->Shutdown(TimePoint::max());  // nothing runs: returns
}

TEST_F(EncodeEngineTest, ShutdownEndsWhatIsLeftAtItsDeadline) {
  Start();
  control_->Hold();
  std::vector<Sink> sinks;
  for (int i = 0; i < 6; ++i) sinks.push_back(Submit(Request(1)).sink);
  control_->WaitUntilBlocked();
  std::thread shutdown([&] { engine_->Shutdown(clock_.Now()); });
  control_->AllowSteps(1);
  shutdown.join();
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(sinks[i]->Wait().status.code(),
              i < 4 ? absl::StatusCode::kOk : absl::StatusCode::kUnavailable)
        << i;
  }
}

TEST_F(EncodeEngineTest, DestructionEndsEveryRequest) {
  Start();
  const Sink sink = Submit(Request(1)).sink;
  engine_.reset();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
}

TEST_F(EncodeEngineTest, AFailedStepEndsItsOwnBatchAndNothingElse) {
  Start();
  control_->Hold();
  std::vector<EncodingRequest> requests;
  std::vector<Sink> sinks;
  for (int i = 0; i < 8; ++i) {
    requests.push_back(Request(2));
    sinks.push_back(Submit(requests.back()).sink);
  }
  control_->WaitUntilBlocked();
  control_->FailNext(absl::InternalError("secret detail"));
  control_->Resume();
  for (size_t i = 0; i < 4; ++i) {
    const Outcome outcome = sinks[i]->Wait();
    EXPECT_EQ(outcome.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(outcome.status.message()), HasSubstr(requests[i].id));
    EXPECT_THAT(std::string(outcome.status.message()), ::testing::Not(HasSubstr("secret")));
    EXPECT_TRUE(sinks[i]->vectors().empty());
  }
  for (size_t i = 4; i < 8; ++i) ExpectVectors(sinks[i], requests[i]);
  ExpectServes();
}

TEST_F(EncodeEngineTest, VectorsThatAreNotFiniteEndTheirOwnTextOnly) {
  model_.nan_token = 99;
  Start();
  const Sink bad = Submit(Request({1, 99, 2})).sink;
  const EncodingRequest request = Request({1, 2});
  const Sink good = Submit(request).sink;
  Advance(hours(1));
  EXPECT_EQ(bad->Wait().status.code(), absl::StatusCode::kInternal);
  ExpectVectors(good, request);
}

TEST_F(EncodeEngineTest, EveryTextOfManyThreadsEndsOnceWithItsOwnVectors) {
  constexpr unsigned kSeed = 5;
  options_.model.max_batch_delay = milliseconds(0);
  options_.limits.max_queued_requests = 1000;
  Start();
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      std::mt19937 random(kSeed + t);
      for (int i = 0; i < 50; ++i) {
        EncodingRequest request;
        request.id = "many";
        request.text.assign(1 + random() % 64, static_cast<TokenId>(random() % 257));
        request.arrival = clock_.Now();
        const bool cancel = random() % 4 == 0;
        const auto sink = std::make_shared<RecordingVectorSink>();
        const auto handle = engine_->Encode(request, sink);
        AFT_CHECK(handle.ok());
        if (cancel) engine_->Cancel(*handle);
        const Outcome outcome = sink->Wait();  // the sink checks that it comes once
        if (outcome.status.ok()) {
          EXPECT_EQ(sink->vectors(), FakeEncoderRunner::Vectors(model_, request.text));
        } else {
          EXPECT_TRUE(cancel);
          EXPECT_EQ(outcome.status.code(), absl::StatusCode::kCancelled);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const EngineLoad load = engine_->load();
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
