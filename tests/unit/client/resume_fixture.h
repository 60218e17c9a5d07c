#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "client/lib/aft_client.h"
#include "tests/support/proto_text.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client {
inline constexpr char kText[] = "abcdefgh";
inline constexpr uint32_t kTokens = sizeof(kText) - 1;
inline constexpr uint64_t kFingerprint = 0xF1;

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
  std::vector<Resuming> resuming;
  std::vector<Resumed> resumed;

  void Add(const v1::GenerateResponse& event) {
    events.push_back(event);
    if (after_event) after_event();
  }
  // Of one sequence, or of all.
  std::string text(std::optional<uint32_t> sequence = {}) const {
    std::string text;
    for (const v1::GenerateResponse& event : events) {
      if (event.sequence() == sequence.value_or(event.sequence())) text += event.delta().text();
    }
    return text;
  }
  bool has_tokens() const {
    return std::any_of(events.begin(), events.end(), [](const v1::GenerateResponse& event) {
      return !event.delta().token_ids().empty();
    });
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
    call.on_resuming = [&](const Resuming& resuming) { seen.resuming.push_back(resuming); };
    call.on_resumed = [&](const Resumed& resumed) { seen.resumed.push_back(resumed); };
    if (client_ == nullptr) client_ = *Client::Create(options_);
    if (GetParam()) {
      const auto result = client_->Generate(
          request, [&](const v1::GenerateResponse& event) { seen.Add(event); }, call);
      seen.status = result.status();
      if (result.ok()) {
        EXPECT_EQ(result->text, seen.text(0));
        for (uint32_t i = 1; i < request.n(); ++i) {
          EXPECT_EQ(result->others[i - 1].text, seen.text(i));
        }
        EXPECT_EQ(result->resumes, seen.resumed.size());
        EXPECT_EQ(result->exact, seen.resumed.empty() || seen.resumed.back().exact);
        EXPECT_EQ(result->time_to_first_token.count() > 0, seen.has_tokens());
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

}  // namespace aft::client
