// Generations that break: how often they go on, where, and when they do not.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "client/lib/resumable.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/resume_fixture.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_P(ResumeTest, TheLimitCountsTriesWithoutAToken) {
  options_.max_resumes = 2;
  // Each of them brings one.
  const Seen whole = Generate(std::vector<Break>(6, {.after = 1}));
  ExpectWhole(whole);
  EXPECT_EQ(whole.resumed.size(), 6u);

  const Seen given_up = Generate({{.after = 1}, {.after = 0}, {.after = 0}, {.after = 1}});
  EXPECT_EQ(given_up.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(given_up.text(), "a");
  EXPECT_EQ(model_->requests().size(), 3u);
  ASSERT_EQ(given_up.resuming.size(), 2u);
  for (int i = 0; i < 2; ++i) {
    const Resuming& resuming = given_up.resuming[static_cast<size_t>(i)];
    EXPECT_EQ(resuming.attempt, i + 1);
    EXPECT_EQ(resuming.attempts, 2);
    EXPECT_EQ(resuming.pause > milliseconds(0), i > 0);
    EXPECT_EQ(resuming.cause.code(), absl::StatusCode::kUnavailable);
  }
}

TEST_P(ResumeTest, ARequestThatBringsServersDownIsNotCarriedToAllOfThem) {
  const Seen seen = Generate({{.after = 2}, {.after = 1}, {}, {}, {}, {}});
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.text(), "abc");
  EXPECT_EQ(model_->requests().size(), 5u);
  ExpectWhole(Generate({{.after = 2}, {}, {}, {.after = 1}, {}, {}}));
}

TEST_P(ResumeTest, WhoWantsNoneGetsNone) {
  options_.max_resumes = 0;
  const Seen seen = Generate({{.after = 3, .hand_over = {"state"}}});
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.text(), "abc");
  EXPECT_THAT(seen.resuming, IsEmpty());
  EXPECT_THAT(seen.resumed, IsEmpty());
  ASSERT_EQ(model_->requests().size(), 1u);
  EXPECT_FALSE(model_->requests()[0].resumable());
}

TEST_P(ResumeTest, WhoGoesOnByItselfGetsWhatIsHandedOver) {
  options_.max_resumes = 0;
  model_ = std::make_unique<Model>(std::vector<Break>{{.after = 3, .hand_over = {"state"}}});
  model_->Attach(server_);
  v1::GenerateRequest request = Request();
  request.set_resumable(true);
  const Seen seen = Generate(request);
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.events.back().hand_over().chunk(), "state");
  EXPECT_TRUE(model_->requests()[0].resumable());
}

TEST_P(ResumeTest, AServerThatCannotResumeIsNotAskedTo) {
  const Seen seen = Generate({{.after = 3, .fingerprint = 0}});
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(model_->requests().size(), 1u);
}

TEST_P(ResumeTest, NoOtherModelGoesOn) {
  const Seen seen = Generate({{.after = 3}, {.after = 3, .fingerprint = 0xF2}});
  EXPECT_THAT(seen.status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("another model")));
  EXPECT_EQ(seen.text(), "abc");
}

TEST_P(ResumeTest, WhatIsRepeatedOrLeftOutIsAnError) {
  for (const uint32_t first : {0u, 2u, 4u}) {
    int call = 0;
    server_.SetAnswer([&](const v1::GenerateRequest&) {
      v1::GenerateResponse started = StartedEvent(7, kFingerprint);
      if (call++ == 0) {
        return FailedScript({grpc::UNAVAILABLE, "gone"}, {started, DeltaEvent(0, "abc")});
      }
      return StalledScript({started, DeltaEvent(first, "x")});
    });
    const Seen seen = Generate(Request());
    EXPECT_EQ(seen.status.code(), absl::StatusCode::kDataLoss) << seen.status;
    EXPECT_EQ(seen.text(), "abc");
  }
  int call = 0;
  server_.SetAnswer([&](const v1::GenerateRequest&) {
    v1::GenerateResponse started = StartedEvent(7, kFingerprint);
    if (call++ == 0) return FailedScript({grpc::UNAVAILABLE, "gone"}, {started});
    return StalledScript({DeltaEvent(0, "a")});
  });
  EXPECT_THAT(Generate(Request()).status,
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("without Started")));
}

TEST_P(ResumeTest, WhoComputesOtherwiseIsTold) {
  const Seen seen =
      Generate({{.after = 2}, {.after = 2}, {.after = 2, .exact = false}, {.after = 1}});
  ExpectWhole(seen);
  std::vector<bool> exact;
  for (const Resumed& resumed : seen.resumed) exact.push_back(resumed.exact);
  EXPECT_THAT(exact, ElementsAre(true, false, false, false));
}

TEST_P(ResumeTest, TheApplicationIsToldWhatGoingOnTook) {
  options_.max_attempts = 1;  // gRPC's own would not be counted
  const Break refused = {.trailers = {{"grpc-retry-pushback-ms", "150"}}, .refused = true};
  const Seen seen = Generate({{.after = 2}, {.after = 2}, refused, refused});
  ExpectWhole(seen);
  ASSERT_EQ(seen.resumed.size(), 2u);
  EXPECT_EQ(seen.resumed[0].tries, 1);
  EXPECT_EQ(seen.resumed[1].tries, 3);
  EXPECT_GE(seen.resumed[1].until_sent, milliseconds(300));
  EXPECT_GE(seen.resumed[1].until_started, milliseconds(0));
}

TEST_P(ResumeTest, TextThatOnlyLooksLikeWhatHasComeStays) {
  const auto text = [](uint32_t first, const std::string& rest) {
    v1::GenerateResponse event;
    event.mutable_delta()->set_first_index(first);
    event.mutable_delta()->set_text(rest);
    return event;
  };
  const v1::GenerateResponse started = StartedEvent(7, kFingerprint);
  const grpc::Status gone(grpc::UNAVAILABLE, "gone");
  const struct {
    std::vector<v1::GenerateResponse> before, after;
    std::string all;
  } cases[] = {
      {{started, text(0, "q")}, {started, DeltaEvent(0, "z"), FinishedEvent(1)}, "qz"},
      {{started, text(0, "q")},
       {started, text(0, "q"), DeltaEvent(0, "q"), FinishedEvent(1)},
       "qq"},
      {{started, text(0, "q"), DeltaEvent(0, "a")},
       {started, DeltaEvent(1, "q"), FinishedEvent(2)},
       "qaq"},
  };
  for (const auto& [before, after, all] : cases) {
    server_.SetAnswer([&, calls = 0](const v1::GenerateRequest&) mutable {
      return ++calls == 1 ? FailedScript(gone, before) : Script{.events = after};
    });
    const Seen seen = Generate(Request());
    EXPECT_TRUE(seen.status.ok()) << seen.status;
    EXPECT_EQ(seen.text(), all);
  }
}

// At an end by a token that is no part of the output, text that was held back comes by itself.
TEST_P(ResumeTest, TextBehindTheLastTokenComesOnce) {
  for (const bool delivered : {false, true}) {
    int call = 0;
    server_.SetAnswer([&](const v1::GenerateRequest& request) {
      v1::GenerateResponse started = StartedEvent(7, kFingerprint);
      v1::GenerateResponse rest;
      rest.mutable_delta()->set_first_index(2);
      rest.mutable_delta()->set_text("rest");
      Script script = FailedScript({grpc::UNAVAILABLE, "gone"}, {started});
      if (request.resume().token_ids().empty()) script.events.push_back(DeltaEvent(0, "ab"));
      if (delivered || call > 0) script.events.push_back(rest);
      if (call++ == 2) {
        script.events.push_back(FinishedEvent(2));
        script.status = {};
      }
      return script;
    });
    const Seen seen = Generate(Request());
    EXPECT_TRUE(seen.status.ok()) << seen.status;
    EXPECT_EQ(seen.text(), "abrest");
    EXPECT_EQ(seen.events.size(), 4u);
  }
}

TEST_P(ResumeTest, AnApplicationMayGoOnWithAStreamOfItsOwn) {
  model_ = std::make_unique<Model>(std::vector<Break>{{.after = 2, .exact = false}});
  model_->Attach(server_);
  v1::GenerateRequest request = Request();
  for (const char token : {'a', 'b', 'c'}) {
    request.mutable_resume()->add_token_ids(static_cast<uint32_t>(token));
  }
  request.mutable_resume()->set_fingerprint(kFingerprint);
  const Seen seen = Generate(request);
  EXPECT_TRUE(seen.status.ok()) << seen.status;
  EXPECT_EQ(seen.text(), "defgh");
  ASSERT_EQ(seen.resumed.size(), 1u);
  EXPECT_FALSE(seen.resumed[0].exact);
  EXPECT_EQ(model_->requests()[1].resume().token_ids_size(), 5);
}

TEST_P(ResumeTest, ItGoesOnAtAnotherServer) {
  FakeServer other;
  model_ = std::make_unique<Model>();
  model_->Attach(server_);
  // Says three tokens and no more.
  const auto silent = [](const v1::GenerateRequest&) {
    v1::GenerateResponse started = StartedEvent(7, kFingerprint);
    started.mutable_started()->set_numerics("numerics 0");
    return StalledScript({started, DeltaEvent(0, "a"), DeltaEvent(1, "b"), DeltaEvent(2, "c")});
  };
  other.SetAnswer(silent);
  TcpGate gate(other.port());
  options_.address = absl::StrCat("ipv4:", gate.address(), ",", server_.address());
  after_event_ = [&](const Seen& seen) {
    if (other.requests() > 0 && seen.events.size() == 4) gate.Cut();
  };
  // Calls take turns: one of two comes to the silent server, whose connection then breaks.
  size_t resumed = 0;
  while (other.requests() == 0) {
    const Seen seen = Generate(Request());
    EXPECT_TRUE(seen.status.ok()) << seen.status;
    EXPECT_EQ(seen.text(), kText);
    resumed = seen.resumed.size();
  }
  EXPECT_EQ(resumed, 1u);
}

TEST_P(ResumeTest, TheDeadlineIsThatOfTheWholeStream) {
  // Breaks for ever, after a token each time: a deadline of each call would never pass.
  server_.SetAnswer([](const v1::GenerateRequest& request) {
    v1::GenerateResponse started = StartedEvent(7, kFingerprint);
    Script script = FailedScript(
        {grpc::UNAVAILABLE, "gone"},
        {started, DeltaEvent(static_cast<uint32_t>(request.resume().token_ids_size()), "x")});
    script.trailers = {{"grpc-retry-pushback-ms", "5"}};
    return script;
  });
  const Seen seen = Generate(Request(), {.deadline = milliseconds(100)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(seen.status) || absl::IsUnavailable(seen.status));
}

TEST_P(ResumeTest, APauseThatTheDeadlineCutsShortIsNotBegun) {
  const Seen seen = Generate({{.after = 3, .trailers = {{"grpc-retry-pushback-ms", "3600000"}}}});
  EXPECT_THAT(seen.status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("the server went away")));
  EXPECT_EQ(model_->requests().size(), 1u);
}

TEST_P(ResumeTest, ACancellationEndsThePause) {
  for (int round = 0; round < 10; ++round) {  // in some of them it comes before the pause
    CancelToken cancel;
    std::promise<void> last_token;
    after_event_ = [&](const Seen& seen) {
      if (seen.text() == "abc") last_token.set_value();
    };
    std::thread canceller([&] {
      last_token.get_future().wait();
      cancel.Cancel();
    });
    const Seen seen = Generate({{.after = 3, .trailers = {{"grpc-retry-pushback-ms", "3600000"}}}},
                               {.deadline = milliseconds(0), .cancel = &cancel});
    canceller.join();
    EXPECT_THAT(seen.status, StatusIs(absl::StatusCode::kCancelled, "cancelled after 3 tokens"));
    EXPECT_EQ(GetErrorDetails(seen.status).origin, ErrorOrigin::kCaller);
    EXPECT_EQ(model_->requests().size(), 1u);
  }
}

TEST_P(ResumeTest, WhatTheApplicationCancelsDoesNotGoOn) {
  CancelToken cancel;
  server_.SetAnswer([](const v1::GenerateRequest&) {
    Script script = EndlessScript();
    script.events[0].mutable_started()->set_fingerprint(kFingerprint);
    return script;
  });
  std::thread canceller([&] {
    server_.WaitForRequests(1);
    cancel.Cancel();
  });
  const Seen seen = Generate(Request(), {.cancel = &cancel});
  canceller.join();
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_.requests(), 1);
}

TEST(BackOffTest, DoublesUpToALimitLessAPartByChance) {
  std::vector<int64_t> longest;
  for (int tries = 0; tries < 9; ++tries) longest.push_back(BackOff(tries, 0).count());
  EXPECT_THAT(longest, ElementsAre(0, 100, 200, 400, 800, 1600, 3200, 5000, 5000));
  EXPECT_EQ(BackOff(1'000'000, 0), milliseconds(5000));
  EXPECT_EQ(BackOff(2, 0.5), milliseconds(150));
  EXPECT_EQ(BackOff(2, 0.999), milliseconds(100));
}

}  // namespace
}  // namespace aft::client
