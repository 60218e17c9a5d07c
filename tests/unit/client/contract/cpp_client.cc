#include "tests/unit/client/contract/cpp_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "client/lib/aft_client.h"

namespace aft::client::contract {
namespace {

using std::chrono::milliseconds;

ClientOptions OptionsOf(const Scenario& scenario, const std::string& address) {
  ClientOptions options;
  options.address = address;
  options.max_attempts = scenario.options().max_attempts();
  if (scenario.options().has_max_resumes()) options.max_resumes = scenario.options().max_resumes();
  if (scenario.options().has_deadline_ms()) {
    options.deadline = milliseconds(scenario.options().deadline_ms());
  }
  return options;
}

// An application that records what it sees.
class Application : public GenerateListener {
 public:
  Application(const Scenario& scenario, const std::string& address,
              const std::function<void()>& cut)
      : scenario_(scenario), cut_(cut), client_(*Client::Create(OptionsOf(scenario, address))) {
    call_.request_id = scenario.options().request_id();
    if (scenario.then() == CANCEL || scenario.then() == CANCEL_WITHIN) call_.cancel = &cancel_;
    call_.on_resuming = [this](const Resuming& one) { Write(one); };
    call_.on_resumed = [this](const Resumed& one) { Write(one); };
  }
  ~Application() override {
    if (canceller_.joinable()) canceller_.join();
  }

  void Generate() {
    const auto result = client_->Generate(
        scenario_.generate(), [this](const v1::GenerateResponse& event) { Write(event); }, call_);
    End(result.status());
    if (!result.ok()) return;
    EndWell(*result);
    EXPECT_EQ(result->started.model_version(), seen_.events(0).started().model_version());
    for (uint32_t i = 0; i <= result->others.size(); ++i) {
      const GenerateOutput& output = i == 0 ? *result : result->others[i - 1];
      v1::GenerateResponse sum = SumOf(i);
      EXPECT_EQ(output.text, sum.delta().text());
      EXPECT_THAT(output.token_ids, testing::ElementsAreArray(sum.delta().token_ids()));
      const auto end = std::find_if(
          seen_.events().begin(), seen_.events().end(),
          [i](const auto& event) { return event.has_finished() && event.sequence() == i; });
      ASSERT_NE(end, seen_.events().end());
      EXPECT_EQ(output.finished.ShortDebugString(), end->finished().ShortDebugString());
    }
    EXPECT_EQ(result->time_to_first_token.count() > 0, tokens_ > 0);
    EXPECT_GE(result->duration, result->time_to_first_token);
  }

  void Listen() {
    listens_ = true;
    const absl::Status status = client_->StartGenerate(scenario_.generate(), *this, call_);
    ASSERT_TRUE(status.ok()) << status;
    MutexLock lock(mutex_);
    while (!ended_) changed_.Wait(mutex_);
  }
  Next OnEvent(const v1::GenerateResponse& event) override {
    return {.pause = {}, .cancel = Write(event)};
  }
  void OnEnd(const absl::Status& status) override {
    MutexLock lock(mutex_);
    End(status);
    ended_ = true;
    changed_.NotifyAll();
  }

  void Score() {
    std::vector<v1::ScoreStarted> started;
    std::vector<v1::ScoreChunk> heard(scenario_.score().texts_size() + 1);
    const auto on_event = [&](const v1::ScoreResponse& event) {
      if (event.has_started()) started.push_back(event.started());
      // Each chunk of a text continues where the last one ended.
      v1::ScoreChunk& chunk = heard[event.index()];
      if (event.has_chunk() && chunk.token_ids().empty()) {
        chunk.set_first_index(event.chunk().first_index());
      }
      if (event.has_chunk()) {
        EXPECT_EQ(event.chunk().first_index(), chunk.first_index() + chunk.token_ids_size());
      }
      chunk.mutable_token_ids()->MergeFrom(event.chunk().token_ids());
      HaveCome(event.chunk().token_ids_size());
    };
    const auto result = client_->Score(scenario_.score(), on_event, call_);
    End(result.status());
    if (!result.ok()) return;
    EndWell(*result);
    ASSERT_EQ(started.size(), 1u);
    EXPECT_EQ(result->started.ShortDebugString(), started[0].ShortDebugString());
    EXPECT_EQ(result->time_to_first_token.count() > 0, tokens_ > 0);
    for (size_t i = 0; i <= result->others.size(); ++i) {
      const ScoreOutput& output = i == 0 ? *result : result->others[i - 1];
      Answer& answer = *seen_.add_answers();
      answer.mutable_token_ids()->Assign(output.token_ids.begin(), output.token_ids.end());
      for (const auto& score : output.logprobs) answer.add_values(score.logprob());
      answer.set_logprob(output.finished.logprob());
      EXPECT_THAT(heard[i].token_ids(), testing::ElementsAreArray(output.token_ids));
    }
  }

  void Encode() {
    std::vector<v1::EncodeFinished> finished(scenario_.encode().texts_size() + 1);
    const auto on_event = [&](const v1::EncodeResponse& event) {
      if (event.has_finished()) finished[event.index()] = event.finished();
    };
    const auto result = client_->Encode(scenario_.encode(), on_event, call_);
    End(result.status());
    if (!result.ok()) return;
    seen_.set_request_id(result->request_id);
    for (size_t i = 0; i <= result->others.size(); ++i) {
      const EncodeOutput& output = i == 0 ? *result : result->others[i - 1];
      seen_.add_answers()->mutable_values()->Assign(output.values.begin(), output.values.end());
      EXPECT_EQ(output.finished.batch_rows(), finished[i].batch_rows());
    }
  }

  Observed seen() { return std::move(seen_); }

 private:
  // Returns true if the application cancels while the event is being delivered.
  bool Write(const v1::GenerateResponse& event) {
    *seen_.add_events() = event;
    return HaveCome(event.delta().token_ids_size());
  }
  bool HaveCome(int tokens) {
    tokens_ += static_cast<uint32_t>(tokens);
    if (scenario_.then() == NOTHING || has_done_ || tokens_ < scenario_.at_token()) return false;
    has_done_ = true;
    if (scenario_.then() == CUT) cut_();
    if (scenario_.then() == CANCEL) canceller_ = std::thread([this] { cancel_.Cancel(); });
    if (scenario_.then() != CANCEL_WITHIN) return false;
    if (!listens_) cancel_.Cancel();
    return true;
  }
  void Write(const Resumed& resumed) {
    Went& went = *seen_.add_resumed();
    went.set_cause(static_cast<Code>(resumed.cause.code()));
    went.set_cause_has(std::string(resumed.cause.message()));
    went.set_exact(resumed.exact);
    went.set_tries(static_cast<uint32_t>(resumed.tries));
    went.set_until_sent_ms(resumed.until_sent.count());
    went.set_tokens(resumed.tokens);
    went.set_sequence(resumed.sequence);
    EXPECT_GE(resumed.until_started.count(), 0);
  }
  void Write(const Resuming& resuming) {
    Attempt& one = *seen_.add_resuming();
    one.set_attempt(static_cast<uint32_t>(resuming.attempt));
    one.set_attempts(static_cast<uint32_t>(resuming.attempts));
    one.set_pause(resuming.pause.count() > 0);
    EXPECT_FALSE(resuming.cause.ok());
  }

  v1::GenerateResponse SumOf(uint32_t sequence) const {
    v1::GenerateResponse sum;
    for (const v1::GenerateResponse& event : seen_.events()) {
      if (event.sequence() != sequence) continue;
      sum.mutable_delta()->mutable_token_ids()->MergeFrom(event.delta().token_ids());
      sum.mutable_delta()->mutable_text()->append(event.delta().text());
    }
    return sum;
  }

  void End(const absl::Status& status) {
    seen_.set_code(static_cast<Code>(status.code()));
    seen_.set_message(std::string(status.message()));
    seen_.set_resumes(static_cast<uint32_t>(seen_.resumed_size()));
    seen_.set_exact(true);
    for (const Went& went : seen_.resumed()) seen_.set_exact(seen_.exact() && went.exact());
    if (status.ok()) return;
    const ErrorDetails details = GetErrorDetails(status);
    seen_.set_cancelled(absl::IsCancelled(status) && details.origin == ErrorOrigin::kCaller);
    seen_.set_received_tokens(details.received_tokens);
    if (details.retry_after) seen_.set_retry_after_ms(details.retry_after->count());
    seen_.set_request_id(details.request_id);
  }
  void EndWell(const ResumableResult& result) {
    seen_.set_request_id(result.request_id);
    EXPECT_EQ(result.resumes, seen_.resumes());
    EXPECT_EQ(result.exact, seen_.exact());
  }

  const Scenario& scenario_;
  const std::function<void()>& cut_;
  const std::unique_ptr<Client> client_;
  CallOptions call_;
  CancelToken cancel_;
  std::thread canceller_;
  Observed seen_;
  uint32_t tokens_ = 0;
  bool listens_ = false;
  bool has_done_ = false;  // the action `then`

  Mutex mutex_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

Observed RunCpp(const Scenario& scenario, Way way, const std::string& address,
                const std::function<void()>& cut) {
  Application application(scenario, address, cut);
  if (way == LISTENER) {
    application.Listen();
  } else if (scenario.has_generate()) {
    application.Generate();
  } else if (scenario.has_score()) {
    application.Score();
  } else {
    application.Encode();
  }
  return application.seen();
}

}  // namespace aft::client::contract
