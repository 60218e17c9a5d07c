// Scorings that break, and go on by themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/resume_fixture.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr uint32_t kScores = 6;

float ScoreOf(uint32_t i) { return -0.1F * static_cast<float>(i + 1); }

class ResumeScoreTest : public testing::Test {
 protected:
  // What one server answers. `pending`: the text's first token has a score.
  Script Answer(const v1::ScoreRequest& request) {
    requests_.push_back(request);
    const size_t call = requests_.size() - 1;
    std::optional<Break> planned;
    if (call < breaks_.size()) planned = breaks_[call];
    if (planned && planned->refused) {
      return {.status = planned->status, .trailers = planned->trailers};
    }
    Script script;
    const auto add = [&](const v1::ScoreResponse& event) {
      script.other_events.push_back(std::make_shared<v1::ScoreResponse>(event));
    };
    v1::ScoreResponse started;
    started.mutable_started()->set_tokens(kScores + (pending_ ? 0 : 1));
    started.mutable_started()->set_fingerprint(planned ? planned->fingerprint : kFingerprint);
    started.mutable_started()->set_numerics(absl::StrCat("numerics ", call));
    started.mutable_started()->set_exact(request.has_resume() && (!planned || planned->exact));
    add(started);
    uint32_t next = request.resume().scores();
    const uint32_t end = planned ? std::min(kScores, next + planned->after) : kScores;
    double sum = request.resume().logprob();
    while (next < end) {  // two at a time
      v1::ScoreResponse event;
      event.mutable_chunk()->set_first_index(next + (pending_ ? 0 : 1));
      for (uint32_t i = 0; i < 2 && next < end; ++i, ++next) {
        event.mutable_chunk()->add_token_ids('a' + next);
        event.mutable_chunk()->add_logprobs()->set_logprob(ScoreOf(next));
        sum += ScoreOf(next);
      }
      add(event);
    }
    if (planned) {
      script.status = planned->status;
      script.trailers = planned->trailers;
      return script;
    }
    v1::ScoreResponse finished;
    finished.mutable_finished()->set_scored_tokens(kScores);
    finished.mutable_finished()->set_logprob(sum);
    add(finished);
    return script;
  }

  absl::StatusOr<ScoreResult> Score(std::vector<Break> breaks, const CallOptions& call = {}) {
    breaks_ = std::move(breaks);
    requests_.clear();
    events_.clear();
    server_.SetScores([this](const v1::ScoreRequest& request) { return Answer(request); });
    if (client_ == nullptr) client_ = *Client::Create(options_);
    CallOptions options = call;
    options.on_resumed = [this](const Resumed& one) { resumed_.push_back(one); };
    resumed_.clear();
    return client_->Score(
        Request(), [this](const v1::ScoreResponse& event) { events_.push_back(event); }, options);
  }

  static v1::ScoreRequest Request() {
    return FromText<v1::ScoreRequest>("model: 'm' text: 'hello' output { top_logprobs: 2 }");
  }

  void ExpectWhole(const absl::StatusOr<ScoreResult>& result) {
    ASSERT_TRUE(result.ok()) << result.status();
    double sum = 0;
    ASSERT_THAT(result->logprobs, SizeIs(kScores));
    for (uint32_t i = 0; i < kScores; ++i) {
      EXPECT_EQ(result->token_ids[i], 'a' + i);
      EXPECT_EQ(result->logprobs[i].logprob(), ScoreOf(i));
      sum += ScoreOf(i);
    }
    EXPECT_EQ(result->finished.logprob(), sum);  // to the last bit
    EXPECT_EQ(result->started.numerics(), "numerics 0");
    EXPECT_EQ(result->resumes, resumed_.size());
    EXPECT_GT(result->time_to_first_token.count(), 0);
    int started = 0;
    uint32_t next = pending_ ? 0 : 1;
    for (const v1::ScoreResponse& event : events_) {
      if (event.has_started()) ++started;
      if (!event.has_chunk()) continue;
      EXPECT_EQ(event.chunk().first_index(), next);
      next += static_cast<uint32_t>(event.chunk().token_ids_size());
    }
    EXPECT_EQ(started, 1);
  }

  FakeServer server_;
  ClientOptions options_ = {.address = server_.address()};
  std::unique_ptr<Client> client_;
  bool pending_ = false;
  std::vector<Break> breaks_;
  std::vector<v1::ScoreRequest> requests_;
  std::vector<v1::ScoreResponse> events_;
  std::vector<Resumed> resumed_;
};

TEST_F(ResumeScoreTest, TheApplicationSeesOneStreamWhereverItBreaks) {
  for (const bool pending : {false, true}) {
    pending_ = pending;
    for (const grpc::StatusCode code :
         {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::INTERNAL, grpc::UNKNOWN}) {
      for (uint32_t at = 0; at <= kScores; ++at) {
        SCOPED_TRACE(absl::StrCat("code ", code, " after ", at));
        ExpectWhole(Score({{.after = at, .status = {code, "broken"}}}));
        ASSERT_THAT(resumed_, SizeIs(1));
        EXPECT_EQ(resumed_[0].tokens, at);
        EXPECT_TRUE(resumed_[0].exact);
        EXPECT_THAT(resumed_[0].cause.message(), HasSubstr("broken"));
      }
    }
  }
}

TEST_F(ResumeScoreTest, EachServerGetsTheRequestAndHowFarItIs) {
  ExpectWhole(Score({{.after = 3}, {.after = 1}}));
  ASSERT_THAT(requests_, SizeIs(3));
  const uint32_t had[] = {0, 3, 4};
  for (size_t i = 0; i < 3; ++i) {
    v1::ScoreRequest request = requests_[i];
    EXPECT_TRUE(request.resumable());
    EXPECT_EQ(request.has_resume(), i > 0);
    if (i > 0) {
      EXPECT_EQ(request.resume().scores(), had[i]);
      double sum = 0;
      for (uint32_t k = 0; k < had[i]; ++k) sum += ScoreOf(k);
      EXPECT_EQ(request.resume().logprob(), sum);
      EXPECT_EQ(request.resume().fingerprint(), kFingerprint);
      EXPECT_EQ(request.resume().numerics(), absl::StrCat("numerics ", i - 1));
    }
    request.clear_resume();
    request.clear_resumable();
    ExpectText(request, Request().ShortDebugString());
  }
  EXPECT_THAT(server_.request_ids(), ElementsAre("", "fake-1", "fake-1"));
}

TEST_F(ResumeScoreTest, WhoComputesOtherwiseIsTold) {
  const auto result = Score({{.after = 2}, {.after = 2, .exact = false}, {.after = 1}});
  ExpectWhole(result);
  EXPECT_FALSE(result->exact);
  std::vector<bool> exact;
  for (const Resumed& one : resumed_) exact.push_back(one.exact);
  EXPECT_THAT(exact, ElementsAre(false, false, false));
  EXPECT_TRUE(Score({{.after = 2}})->exact);
}

TEST_F(ResumeScoreTest, TheLimitsAreThoseOfGenerations) {
  options_.max_attempts = 1;
  options_.max_resumes = 5;
  ExpectWhole(Score(std::vector<Break>(kScores, {.after = 1})));
  EXPECT_THAT(
      Score({{.after = 1}, {}, {}, {}, {}, {}}).status(),
      StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the stream had to go on because")));
  EXPECT_THAT(requests_, SizeIs(4));
  EXPECT_THAT(Score({{.after = 2, .status = {grpc::INVALID_ARGUMENT, "why"}}}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("why")));
  EXPECT_THAT(requests_, SizeIs(1));
  EXPECT_EQ(Score({{.after = 2, .fingerprint = 0}}).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_THAT(requests_, SizeIs(1));
  EXPECT_THAT(Score({{.after = 2}, {.after = 1, .fingerprint = 5}}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another model")));
}

TEST_F(ResumeScoreTest, WhoWantsNoneGetsNone) {
  options_.max_resumes = 0;
  EXPECT_EQ(Score({{.after = 2}}).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_THAT(requests_, SizeIs(1));
  EXPECT_FALSE(requests_[0].resumable());
}

TEST_F(ResumeScoreTest, ACancellationEndsThePause) {
  CancelToken cancel;
  std::thread canceller([&] {
    server_.WaitForRequests(1);
    cancel.Cancel();
  });
  const auto result = Score({{.after = 3, .trailers = {{"grpc-retry-pushback-ms", "3600000"}}}},
                            {.deadline = std::chrono::milliseconds(0), .cancel = &cancel});
  canceller.join();
  EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
  EXPECT_THAT(requests_, SizeIs(1));
}

}  // namespace
}  // namespace aft::client
