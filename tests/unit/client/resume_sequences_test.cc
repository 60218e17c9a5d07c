// Generations of several sequences that break: each sequence goes on by itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/resume_fixture.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;

constexpr uint32_t kSequences = 3;
constexpr uint32_t kLength = 4;
constexpr uint64_t kSeed = 7;

char TokenOf(uint32_t sequence, uint32_t i) { return static_cast<char>('a' + 10 * sequence + i); }

struct Plan {
  // The common call breaks when each sequence has sent so many tokens; with more than there are it
  // has finished. Calls of one sequence follow `breaks` of that, in turn.
  std::array<uint32_t, kSequences> sent = {};
  std::map<uint32_t, std::vector<Break>> breaks = {};
  bool whole = false;  // instead: it does not break
};

// Says of each sequence what is its own; the seed tells which is asked for. Thread-safe.
class Chorus {
 public:
  explicit Chorus(Plan plan) : plan_(std::move(plan)) {}

  void Attach(FakeServer& server) {
    server.SetAnswer([this](const v1::GenerateRequest& request) { return Answer(request); });
  }
  std::vector<v1::GenerateRequest> requests() {
    MutexLock lock(mutex_);
    return requests_;
  }

 private:
  Script Answer(const v1::GenerateRequest& request) {
    MutexLock lock(mutex_);
    requests_.push_back(request);
    Script script;
    v1::GenerateResponse started = StartedEvent(request.sampling().seed(), kFingerprint);
    if (request.n() > 1) started.mutable_started()->set_seed(kSeed);
    started.mutable_started()->set_numerics("numerics");
    started.mutable_started()->set_exact(request.has_resume());
    script.events.push_back(started);
    if (request.n() > 1) {
      for (uint32_t i = 0; i < kLength; ++i) {
        for (uint32_t s = 0; s < kSequences; ++s) {
          if (i < plan_.sent[s] || plan_.whole) Add(s, i, s, script);
        }
      }
      for (uint32_t s = 0; s < kSequences; ++s) {
        if (plan_.sent[s] > kLength || plan_.whole) Finish(s, s > 0 ? 0 : 5, script);
      }
      if (!plan_.whole) script.status = {grpc::UNAVAILABLE, "the first call broke"};
      return script;
    }
    const auto sequence = static_cast<uint32_t>(request.sampling().seed() - kSeed);
    const auto first = static_cast<uint32_t>(request.resume().token_ids_size());
    uint32_t end = kLength;
    std::vector<Break>& planned = plan_.breaks[sequence];
    const bool breaks_off = !planned.empty();
    if (breaks_off) {
      end = std::min(end, first + planned.front().after);
      script.status = planned.front().status;
      script.trailers = planned.front().trailers;
      planned.erase(planned.begin());
    }
    for (uint32_t i = first; i < end; ++i) Add(0, i, sequence, script);
    if (!breaks_off) Finish(0, 5, script);
    return script;
  }

  static void Add(uint32_t as, uint32_t i, uint32_t sequence, Script& script) {
    script.events.push_back(DeltaEvent(i, std::string(1, TokenOf(sequence, i))));
    script.events.back().set_sequence(as);
  }
  static void Finish(uint32_t as, uint32_t prompt_tokens, Script& script) {
    v1::GenerateResponse event = FinishedEvent(kLength);
    event.set_sequence(as);
    v1::Usage& usage = *event.mutable_finished()->mutable_usage();
    usage.set_prompt_tokens(prompt_tokens);
    usage.set_cached_tokens(prompt_tokens > 0 ? 3 : 0);
    usage.set_cache_miss(v1::CACHE_MISS_DIVERGED);
    usage.set_diverged_at(1);
    script.events.push_back(event);
  }

  Mutex mutex_;
  Plan plan_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

class ResumeSequencesTest : public ResumeTest {
 protected:
  static v1::GenerateRequest Several() {
    v1::GenerateRequest request = Request();
    request.set_n(kSequences);
    return request;
  }
  Seen Run(Chorus& chorus, CallOptions call = {}) {
    chorus.Attach(server_);
    return Generate(Several(), std::move(call));
  }

  // One stream of three sequences, as if nothing had happened.
  static void ExpectAll(const Seen& seen) {
    ASSERT_TRUE(seen.status.ok()) << seen.status;
    EXPECT_TRUE(seen.events.front().has_started());
    std::array<uint32_t, kSequences> next = {};
    std::array<int, kSequences> finished = {};
    uint32_t prompt = 0;
    uint32_t cached = 0;
    for (size_t e = 1; e < seen.events.size(); ++e) {
      const v1::GenerateResponse& event = seen.events[e];
      ASSERT_FALSE(event.has_started());
      const uint32_t s = event.sequence();
      ASSERT_LT(s, kSequences);
      EXPECT_EQ(finished[s], 0);
      for (const uint32_t id : event.delta().token_ids()) {
        EXPECT_EQ(event.delta().first_index(), next[s]);
        EXPECT_EQ(id, static_cast<uint32_t>(TokenOf(s, next[s]++)));
      }
      if (!event.has_finished()) continue;
      ++finished[s];
      EXPECT_EQ(next[s], kLength);
      const v1::Usage& usage = event.finished().usage();
      prompt += usage.prompt_tokens();
      cached += usage.cached_tokens();
      EXPECT_EQ(usage.cache_miss() != v1::CACHE_MISS_UNSPECIFIED, s == 0);
      EXPECT_EQ(usage.diverged_at(), s == 0 ? 1U : 0U);
      EXPECT_EQ(usage.generated_tokens(), kLength);
    }
    EXPECT_THAT(finished, ElementsAre(1, 1, 1));
    EXPECT_EQ(prompt, 5U);  // counted once
    EXPECT_EQ(cached, 3U);
  }
};
INSTANTIATE_TEST_SUITE_P(BlockingOrNot, ResumeSequencesTest, testing::Bool(),
                         [](const auto& suite) {
                           return std::string(suite.param ? "Blocking" : "OnThreadsOfGrpc");
                         });

TEST_P(ResumeSequencesTest, TheApplicationSeesOneStreamWhereverItBreaks) {
  const std::array<uint32_t, kSequences> cases[] = {
      {0, 0, 0}, {1, 0, 3}, {4, 4, 4}, {5, 1, 1}, {0, 5, 5}, {5, 5, 4}, {2, 5, 0},
  };
  for (const auto& sent : cases) {
    SCOPED_TRACE(testing::PrintToString(sent));
    Chorus chorus({.sent = sent});
    const Seen seen = Run(chorus);
    ExpectAll(seen);
    // Those that have not finished are asked for, once each, with what has come of them.
    std::map<uint64_t, v1::GenerateRequest> asked;
    const std::vector<v1::GenerateRequest> requests = chorus.requests();
    for (size_t i = 1; i < requests.size(); ++i) asked[requests[i].sampling().seed()] = requests[i];
    ASSERT_EQ(asked.size(), requests.size() - 1);
    std::vector<uint32_t> resumed;
    for (const Resumed& one : seen.resumed) resumed.push_back(one.sequence);
    EXPECT_EQ(resumed.size(), asked.size());
    for (uint32_t s = 0; s < kSequences; ++s) {
      const bool open = sent[s] <= kLength;
      EXPECT_EQ(std::count(resumed.begin(), resumed.end(), s), open ? 1 : 0);
      ASSERT_EQ(asked.count(kSeed + s), open ? 1U : 0U);
      if (!open) continue;
      v1::GenerateRequest request = asked[kSeed + s];
      EXPECT_TRUE(request.resumable());
      EXPECT_EQ(request.resume().token_ids_size(), static_cast<int>(sent[s]));
      for (uint32_t i = 0; i < sent[s]; ++i) {
        EXPECT_EQ(request.resume().token_ids(static_cast<int>(i)),
                  static_cast<uint32_t>(TokenOf(s, i)));
      }
      EXPECT_EQ(request.resume().fingerprint(), kFingerprint);
      EXPECT_EQ(request.resume().numerics(), "numerics");
      request.clear_resume();
      request.clear_resumable();
      request.mutable_sampling()->clear_seed();
      ExpectText(request, Request().ShortDebugString());
    }
    EXPECT_TRUE(requests[0].resumable());
    EXPECT_EQ(requests[0].n(), kSequences);
  }
}

TEST_P(ResumeSequencesTest, WithoutABreakThereIsOneCall) {
  Chorus chorus({.whole = true});
  ExpectAll(Run(chorus));
  EXPECT_THAT(chorus.requests(), SizeIs(1));
}

TEST_P(ResumeSequencesTest, EachGoesOnAsOftenAsItMust) {
  Chorus chorus(
      {.sent = {1, 0, 5}, .breaks = {{0, {{.after = 1}, {.after = 1}}}, {1, {{.after = 2}}}}});
  const Seen seen = Run(chorus);
  ExpectAll(seen);
  EXPECT_THAT(chorus.requests(), SizeIs(1 + 3 + 2));
  std::vector<uint32_t> resumed;
  for (const Resumed& one : seen.resumed) {
    resumed.push_back(one.sequence);
    EXPECT_TRUE(one.exact);
    EXPECT_GE(one.tokens, one.sequence == 0 ? 1U : 0U);
  }
  EXPECT_THAT(resumed, UnorderedElementsAre(0, 0, 0, 1, 1));
}

TEST_P(ResumeSequencesTest, WhereOneFailsTheOthersAreCancelled) {
  const auto answer = [&](const v1::GenerateRequest& request) {
    v1::GenerateResponse started = StartedEvent(kSeed, kFingerprint);
    if (request.n() > 1) return FailedScript({grpc::UNAVAILABLE, "gone"}, {started});
    if (request.sampling().seed() != kSeed + 1) return StalledScript({started});
    // Not before the others wait.
    return FailedScript({grpc::INVALID_ARGUMENT, "a reason"}, {started});
  };
  server_.SetAnswer(answer);
  const Seen seen = Generate(Several());
  EXPECT_THAT(seen.status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a reason")));
  EXPECT_LE(server_.requests(), 4);
}

TEST_P(ResumeSequencesTest, ACancellationEndsThemAll) {
  CancelToken cancel;
  server_.SetAnswer([&](const v1::GenerateRequest& request) {
    v1::GenerateResponse started = StartedEvent(kSeed, kFingerprint);
    if (request.n() > 1) return FailedScript({grpc::UNAVAILABLE, "gone"}, {started});
    return StalledScript({started});
  });
  std::thread canceller([&] {
    server_.WaitForRequests(1 + kSequences);
    cancel.Cancel();
  });
  const Seen seen = Generate(Several(), {.cancel = &cancel});
  canceller.join();
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server_.requests(), static_cast<int>(1 + kSequences));
}

TEST_P(ResumeSequencesTest, TextBehindTheLastTokenComesOnce) {
  const auto text = [](uint32_t first, uint32_t sequence) {
    v1::GenerateResponse event;
    event.set_sequence(sequence);
    event.mutable_delta()->set_first_index(first);
    event.mutable_delta()->set_text("tail");
    return event;
  };
  server_.SetAnswer([&](const v1::GenerateRequest& request) {
    v1::GenerateResponse started = StartedEvent(request.sampling().seed(), kFingerprint);
    if (request.n() > 1) {
      started.mutable_started()->set_seed(kSeed);
      return FailedScript({grpc::UNAVAILABLE, "gone"}, {started, text(0, 1)});
    }
    if (request.sampling().seed() == kSeed + 1) {
      return Script{.events = {started, text(0, 0), FinishedEvent(0)}};
    }
    return Script{.events = {started, FinishedEvent(0)}};
  });
  const Seen seen = Generate(Several());
  EXPECT_TRUE(seen.status.ok()) << seen.status;
  EXPECT_EQ(seen.text(), "tail");
}

TEST_P(ResumeSequencesTest, WhoWantsNoneGetsNone) {
  options_.max_resumes = 0;
  Chorus chorus({.sent = {1, 1, 1}});
  const Seen seen = Run(chorus);
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(seen.resumed, IsEmpty());
  ASSERT_THAT(chorus.requests(), SizeIs(1));
  EXPECT_FALSE(chorus.requests()[0].resumable());
}

// Cancels from within, at the first event of the sequence 1.
class Quitter : public Listener {
 public:
  using Listener::Listener;
  Next OnEvent(const v1::GenerateResponse& event) override {
    Listener::OnEvent(event);
    return {.cancel = event.sequence() == 1};
  }
};

TEST(ResumeSequencesListenerTest, AListenerThatCancelsEndsAllCalls) {
  FakeServer server;
  server.SetAnswer([&](const v1::GenerateRequest& request) {
    v1::GenerateResponse started = StartedEvent(kSeed, kFingerprint);
    if (request.n() > 1) return FailedScript({grpc::UNAVAILABLE, "gone"}, {started});
    if (request.sampling().seed() == kSeed + 1) {
      return StalledScript({started, DeltaEvent(0, "x"), DeltaEvent(1, "y")});
    }
    return StalledScript({started});
  });
  const auto client = *Client::Create({.address = server.address()});
  Seen seen;
  Quitter listener(seen);
  v1::GenerateRequest request;
  request.set_n(kSequences);
  ASSERT_TRUE(client->StartGenerate(request, listener).ok());
  listener.Wait();
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(GetErrorDetails(seen.status).origin, ErrorOrigin::kCaller);
  EXPECT_EQ(seen.text(), "x");
}

}  // namespace
}  // namespace aft::client
