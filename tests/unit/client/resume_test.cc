// Generations that break, and go on by themselves: what the application sees, and what servers get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/lib/aft_client.h"
#include "client/lib/generation.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr char kText[] = "abcdefgh";
constexpr uint32_t kTokens = sizeof(kText) - 1;
constexpr uint64_t kFingerprint = 0xF1;

// How a call ends early.
struct Break {
  uint32_t after = 0;  // tokens that this call has sent
  grpc::Status status = {grpc::UNAVAILABLE, "the server went away"};
  std::multimap<std::string, std::string> trailers = {};
  std::vector<std::string> hand_over = {};
  bool refused = false;  // instead of Started
  bool anonymous = false;
  bool exact = true;
  uint64_t fingerprint = kFingerprint;
};

// One model, behind any number of servers, that says kText and follows a plan of breaks, which are
// used up by the calls in turn. Thread-safe.
class Model {
 public:
  explicit Model(std::vector<Break> breaks = {}) : breaks_(std::move(breaks)) {}

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
    const size_t call = requests_.size();
    requests_.push_back(request);
    std::optional<Break> planned;
    if (call < breaks_.size()) planned = breaks_[call];
    if (planned && planned->refused) {
      return {.status = planned->status,
              .trailers = planned->trailers,
              .anonymous = planned->anonymous};
    }

    Script script;
    v1::GenerateResponse started = StartedEvent(7, planned ? planned->fingerprint : kFingerprint);
    started.mutable_started()->set_numerics(absl::StrCat("numerics ", call));
    started.mutable_started()->set_resume_id(absl::StrCat("resume ", call));
    started.mutable_started()->set_exact(request.has_resume() && (!planned || planned->exact));
    script.events.push_back(started);
    const auto first = static_cast<uint32_t>(request.resume().token_ids_size());
    const uint32_t end = planned ? std::min(kTokens, first + planned->after) : kTokens;
    for (uint32_t i = first; i < end; ++i) {
      script.events.push_back(DeltaEvent(i, std::string(1, kText[i])));
    }
    if (!planned) {
      script.events.push_back(FinishedEvent(kTokens));
      return script;
    }
    for (const std::string& chunk : planned->hand_over) {
      v1::GenerateResponse event;
      event.mutable_hand_over()->set_chunk(chunk);
      script.events.push_back(event);
    }
    script.status = planned->status;
    script.trailers = planned->trailers;
    return script;
  }

  const std::vector<Break> breaks_;
  Mutex mutex_;
  std::vector<v1::GenerateRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

// What the application sees of a generation.
struct Seen {
  std::function<void()> after_event;  // called behind each
  absl::Status status;
  std::vector<v1::GenerateResponse> events;
  std::vector<Resumed> resumed;

  void Add(const v1::GenerateResponse& event) {
    events.push_back(event);
    if (after_event) after_event();
  }
  std::string text() const {
    std::string text;
    for (const v1::GenerateResponse& event : events) text += event.delta().text();
    return text;
  }
};

// Follows it on gRPC's threads.
class Listener : public GenerateListener {
 public:
  explicit Listener(Seen& seen) : seen_(seen) {}
  Next OnEvent(const v1::GenerateResponse& event) override {
    seen_.Add(event);
    return {};
  }
  void OnEnd(const absl::Status& status) override {
    MutexLock lock(mutex_);
    seen_.status = status;
    ended_ = true;
    changed_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
  }

 private:
  Seen& seen_;
  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Both ways to call: blocking, and on gRPC's threads.
class ResumeTest : public testing::TestWithParam<bool> {
 protected:
  Seen Generate(const v1::GenerateRequest& request, CallOptions call = {}) {
    Seen seen;
    if (after_event_) seen.after_event = [&] { after_event_(seen); };
    call.on_resumed = [&](const Resumed& resumed) { seen.resumed.push_back(resumed); };
    if (client_ == nullptr) client_ = *Client::Create(options_);
    if (GetParam()) {
      const auto result = client_->Generate(
          request, [&](const v1::GenerateResponse& event) { seen.Add(event); }, call);
      seen.status = result.status();
      if (result.ok()) {
        EXPECT_EQ(result->text, seen.text());
        EXPECT_EQ(result->resumes, seen.resumed.size());
        EXPECT_EQ(result->exact, seen.resumed.empty() || seen.resumed.back().exact);
        EXPECT_GT(result->time_to_first_token.count(), 0);
      }
    } else {
      Listener listener(seen);
      EXPECT_TRUE(client_->StartGenerate(request, listener, call).ok());
      listener.Wait();
    }
    return seen;
  }
  // Against a model that breaks so.
  Seen Generate(std::vector<Break> breaks, CallOptions call = {}) {
    model_ = std::make_unique<Model>(std::move(breaks));
    model_->Attach(server_);
    return Generate(Request(), std::move(call));
  }

  static v1::GenerateRequest Request() {
    return FromText<v1::GenerateRequest>(
        "model: 'm' text: 'hello' sampling { temperature: 0.5 } stop { max_tokens: 8 } store {} "
        "previous { state_id: 's' }");
  }

  // One stream, as if nothing had happened.
  static void ExpectWhole(const Seen& seen) {
    ASSERT_TRUE(seen.status.ok()) << seen.status;
    ASSERT_EQ(seen.events.size(), kTokens + 2);
    EXPECT_TRUE(seen.events.front().has_started());
    EXPECT_EQ(seen.events.front().started().numerics(), "numerics 0");
    for (uint32_t i = 0; i < kTokens; ++i) {
      ExpectText(seen.events[i + 1], DeltaEvent(i, std::string(1, kText[i])).ShortDebugString());
    }
    EXPECT_TRUE(seen.events.back().has_finished());
  }

  FakeServer server_;
  ClientOptions options_ = {.address = server_.address()};  // of the first call on
  std::unique_ptr<Client> client_;
  std::unique_ptr<Model> model_;
  std::function<void(const Seen&)> after_event_;
};

INSTANTIATE_TEST_SUITE_P(BlockingOrNot, ResumeTest, testing::Bool(), [](const auto& suite) {
  return std::string(suite.param ? "Blocking" : "OnThreadsOfGrpc");
});

TEST_P(ResumeTest, TheApplicationSeesOneStreamWhereverItBreaks) {
  for (const grpc::StatusCode code :
       {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::INTERNAL, grpc::UNKNOWN}) {
    for (uint32_t at = 0; at <= kTokens; ++at) {
      SCOPED_TRACE(absl::StrCat("code ", code, " after ", at));
      const Seen seen = Generate({{.after = at, .status = {code, "broken"}}});
      ExpectWhole(seen);
      ASSERT_EQ(seen.resumed.size(), 1u);
      EXPECT_EQ(static_cast<int>(seen.resumed[0].cause.code()), code);
      EXPECT_THAT(seen.resumed[0].cause.message(), HasSubstr("broken"));
      EXPECT_EQ(seen.resumed[0].tokens, at);
      EXPECT_TRUE(seen.resumed[0].exact);
    }
  }
}

TEST_P(ResumeTest, EachServerGetsTheRequestAndWhatHasCome) {
  ExpectWhole(Generate({{.after = 3}, {.after = 2}}));
  const std::vector<v1::GenerateRequest> requests = model_->requests();
  ASSERT_EQ(requests.size(), 3u);
  const std::vector<std::vector<uint32_t>> had = {{}, {'a', 'b', 'c'}, {'a', 'b', 'c', 'd', 'e'}};
  for (size_t i = 0; i < 3; ++i) {
    v1::GenerateRequest request = requests[i];
    EXPECT_TRUE(request.resumable());
    EXPECT_EQ(request.has_resume(), i > 0);
    if (i > 0) {
      EXPECT_EQ(request.sampling().seed(), 7u);
      EXPECT_THAT(request.resume().token_ids(), testing::ElementsAreArray(had[i]));
      EXPECT_EQ(request.resume().fingerprint(), kFingerprint);
      EXPECT_EQ(request.resume().numerics(), absl::StrCat("numerics ", i - 1));
      EXPECT_EQ(request.resume().resume_id(), absl::StrCat("resume ", i - 1));
    }
    request.clear_resume();
    request.clear_resumable();
    request.mutable_sampling()->clear_seed();
    ExpectText(request, Request().ShortDebugString());
  }
  // The server's name for the first call is that of them all.
  EXPECT_THAT(server_.request_ids(), ElementsAre("", "fake-1", "fake-1"));
}

TEST_P(ResumeTest, TheRequestsOwnSeedAndIdStay) {
  model_ = std::make_unique<Model>(std::vector<Break>{{.after = 1}});
  model_->Attach(server_);
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_seed(7);
  ExpectWhole(Generate(request, {.request_id = "mine"}));
  EXPECT_EQ(model_->requests()[0].sampling().seed(), 7u);
  EXPECT_THAT(server_.request_ids(), ElementsAre("mine", "mine"));
}

TEST_P(ResumeTest, OtherErrorsEndIt) {
  const std::multimap<std::string, std::string> own_word = {{"aft-usage-bin", ""}};
  const Break cases[] = {
      {.after = 2, .status = {grpc::INVALID_ARGUMENT, "why"}},
      {.after = 2, .status = {grpc::FAILED_PRECONDITION, "why"}},
      {.after = 2, .status = {grpc::NOT_FOUND, "why"}},
      {.after = 2, .status = {grpc::PERMISSION_DENIED, "why"}},
      {.after = 2, .status = {grpc::UNAUTHENTICATED, "why"}},
      {.after = 2, .status = {grpc::DEADLINE_EXCEEDED, "why"}},
      {.after = 2, .status = {grpc::DATA_LOSS, "why"}},
      {.after = 2, .status = {grpc::UNIMPLEMENTED, "why"}},
      {.after = 2, .status = {grpc::ABORTED, "why"}},
      {.after = 2, .status = {grpc::OUT_OF_RANGE, "why"}},
      {.after = 2, .status = {grpc::ALREADY_EXISTS, "why"}},
      {.after = 2, .status = {grpc::RESOURCE_EXHAUSTED, "slow client"}},  // it has begun
      {.after = 2, .status = {grpc::INTERNAL, "a defect"}, .trailers = own_word},
      {.after = 2, .status = {grpc::UNKNOWN, "a defect"}, .trailers = own_word},
      {.after = 2, .trailers = {{"grpc-retry-pushback-ms", "-1"}}},
  };
  for (const Break& broken : cases) {
    SCOPED_TRACE(broken.status.error_code());
    const Seen seen = Generate({broken});
    EXPECT_EQ(static_cast<int>(seen.status.code()), broken.status.error_code());
    EXPECT_EQ(GetErrorDetails(seen.status).received_tokens, 2u);
    EXPECT_EQ(seen.text(), "ab");
    EXPECT_EQ(model_->requests().size(), 1u);
  }
}

TEST_P(ResumeTest, ARefusalIsTriedAgainAsTheServerSays) {
  const std::multimap<std::string, std::string> at_once = {{"grpc-retry-pushback-ms", "0"}};
  options_.max_attempts = 1;  // gRPC's own are beside the point
  for (const grpc::StatusCode code :
       {grpc::RESOURCE_EXHAUSTED, grpc::UNAVAILABLE, grpc::CANCELLED}) {
    const Break refusal = {.status = {code, "not now"}, .trailers = at_once, .refused = true};
    const Seen seen = Generate({{.after = 2}, refusal, refusal});
    ExpectWhole(seen);
    ASSERT_EQ(seen.resumed.size(), 1u);
    EXPECT_THAT(seen.resumed[0].cause.message(), HasSubstr("the server went away"));
    EXPECT_EQ(model_->requests().size(), 4u);
  }
}

TEST_P(ResumeTest, WhatBreaksBeforeItGoesOnIsTriedAgain) {
  options_.max_attempts = 1;
  for (const grpc::StatusCode code : {grpc::INTERNAL, grpc::UNKNOWN}) {
    ExpectWhole(Generate(
        {{.after = 2}, {.status = {code, "RST_STREAM"}, .refused = true, .anonymous = true}}));
    EXPECT_EQ(model_->requests().size(), 3u);
  }
}

TEST_P(ResumeTest, ARefusalThatIsFinalEndsItAndTellsBothReasons) {
  options_.max_attempts = 1;
  const Break cases[] = {
      {.status = {grpc::FAILED_PRECONDITION, "of another model"}, .refused = true},
      {.status = {grpc::NOT_FOUND, "no such state"}, .refused = true},
      {.status = {grpc::INTERNAL, "a defect"}, .refused = true},  // with the request's id
      {.status = {grpc::RESOURCE_EXHAUSTED, "never"},
       .trailers = {{"grpc-retry-pushback-ms", "-1"}},
       .refused = true},
  };
  for (const Break& refusal : cases) {
    const Seen seen = Generate({{.after = 2}, refusal});
    EXPECT_EQ(static_cast<int>(seen.status.code()), refusal.status.error_code());
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr(refusal.status.error_message()));
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr("the stream had to go on because "));
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr("the server went away"));
    EXPECT_EQ(GetErrorDetails(seen.status).received_tokens, 2u);
    EXPECT_EQ(seen.text(), "ab");
    EXPECT_EQ(model_->requests().size(), 2u);
  }
}

TEST_P(ResumeTest, AStreamThatLostItsEndGetsIt) {
  ExpectWhole(Generate({{.after = kTokens}}));
  EXPECT_EQ(model_->requests()[1].resume().token_ids_size(), static_cast<int>(kTokens));
}

TEST_P(ResumeTest, AFinishedStreamIsWholeWhateverBecomesOfItsTrailers) {
  server_.SetAnswer([](const v1::GenerateRequest&) {
    Script script = TextScript({"ab"});
    script.status = {grpc::UNAVAILABLE, "gone"};
    return script;
  });
  const Seen seen = Generate(Request());
  EXPECT_TRUE(seen.status.ok()) << seen.status;
  EXPECT_EQ(server_.requests(), 1);
}

TEST_P(ResumeTest, WhatIsHandedOverGoesAlongUnseen) {
  const Break draining = {.after = 3, .hand_over = {"stat", "e of ", "three"}};
  ExpectWhole(Generate({draining, {.after = 1}, {.after = 1, .hand_over = {"newer"}}}));
  const std::vector<v1::GenerateRequest> requests = model_->requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[1].resume().state(), "state of three");
  EXPECT_EQ(requests[2].resume().state(), "state of three");  // of the same text, still
  EXPECT_EQ(requests[3].resume().state(), "newer");
}

TEST_P(ResumeTest, AStateThatNoServerWouldTakeStaysBehind) {
  options_.max_attempts = 1;
  const std::string chunk(size_t{256} << 10, 's');
  const auto state_bytes = [&](size_t chunks) {
    ExpectWhole(Generate({{.after = 3, .hand_over = std::vector<std::string>(chunks, chunk)}}));
    return model_->requests()[1].resume().state().size();
  };
  EXPECT_EQ(state_bytes(15), 15 * chunk.size());
  EXPECT_EQ(state_bytes(16), 0u);  // 4 MiB, and the rest of the request
  EXPECT_EQ(state_bytes(40), 0u);
  // A server that has no room for it may have room for the tokens.
  const Break refusal = {.status = {grpc::RESOURCE_EXHAUSTED, "full"},
                         .trailers = {{"grpc-retry-pushback-ms", "0"}},
                         .refused = true};
  ExpectWhole(Generate({{.after = 3, .hand_over = {"state"}}, refusal}));
  EXPECT_EQ(model_->requests()[1].resume().state(), "state");
  EXPECT_EQ(model_->requests()[2].resume().state(), "");
}

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
}

TEST_P(ResumeTest, WhoWantsNoneGetsNone) {
  options_.max_resumes = 0;
  const Seen seen = Generate({{.after = 3, .hand_over = {"state"}}});
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(seen.text(), "abc");
  EXPECT_THAT(seen.resumed, IsEmpty());
  ASSERT_EQ(model_->requests().size(), 1u);
  EXPECT_FALSE(model_->requests()[0].resumable());
}

TEST_P(ResumeTest, AServerThatCannotResumeIsNotAskedTo) {
  const Seen seen = Generate({{.after = 3, .fingerprint = 0}});
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(model_->requests().size(), 1u);
}

TEST_P(ResumeTest, SeveralSequencesEndWithTheError) {
  model_ = std::make_unique<Model>(std::vector<Break>{{.after = 3}});
  model_->Attach(server_);
  v1::GenerateRequest request = Request();
  request.set_n(2);
  const Seen seen = Generate(request);
  EXPECT_EQ(seen.status.code(), absl::StatusCode::kUnavailable);
  ASSERT_EQ(model_->requests().size(), 1u);
  EXPECT_FALSE(model_->requests()[0].resumable());
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
