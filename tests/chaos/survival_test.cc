// Streams over three replicas of the real program, with the shipped model, which are killed or
// drained. Every stream must reach its end and equal the undisturbed one, token by token and byte
// by byte.
#include <signal.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "client/lib/aft_client.h"
#include "gtest/gtest.h"
#include "tests/chaos/program.h"
#include "tests/integration/server_fixture.h"
#include "tests/property/random_inputs.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

constexpr size_t kReplicas = 3;
constexpr int kThreads = 6;
constexpr size_t kCases = 12;
constexpr size_t kScoreCases = 4;

struct Case {
  v1::GenerateRequest request;
  client::GenerateResult undisturbed;
};

struct ScoreCase {
  v1::ScoreRequest request;
  client::ScoreResult undisturbed;
};

// Counts what all streams have received.
class Progress {
 public:
  void Add(int tokens) {
    MutexLock lock(mutex_);
    tokens_ += tokens;
    changed_.NotifyAll();
  }
  void WaitForMore(int64_t tokens) {
    MutexLock lock(mutex_);
    const int64_t enough = tokens_ + tokens;
    while (tokens_ < enough) changed_.Wait(mutex_);
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  int64_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

class SurvivalTest : public testing::Test {
 protected:
  // The replicas share their keys, so that a drain hands streams over with their states.
  void SetUp() override {
    std::ofstream(folder_.File("key")) << std::string(32, 'k');
    std::ofstream(folder_.File("server.textproto")) << R"(metrics_address: ""
        models { path: ")" << AFT_MODEL << R"(" slots: 8 intra_op_threads: 1 }
        drain { lame_duck_ms: 0 grace_ms: 3600000 }
        states { key_files: "key" checkpoint_tokens: 64 })";
    std::vector<std::string> addresses;
    for (auto& replica : replicas_) {
      replica = std::make_unique<Program>(folder_.File("server.textproto"));
      replica->Start();
      addresses.push_back(replica->address());
    }
    client_ = *client::Client::Create({.address = "ipv4:" + absl::StrJoin(addresses, ",")});
    for (size_t i = 0; i < kCases; ++i) MakeCase(i);
    for (size_t i = 0; i < kScoreCases; ++i) MakeScoreCase();
  }

  void MakeCase(size_t i) {
    Case one{.request = Request(absl::StrCat("It is a truth, said number ", i, ", that "),
                                static_cast<uint32_t>(300 + random_.Below(900)), i),
             .undisturbed = {}};
    one.request.clear_model();
    v1::SamplingOptions& sampling = *one.request.mutable_sampling();
    sampling.set_temperature(i % 3 == 0 ? 0.0F : 0.9F);
    if (i % 2 == 0) sampling.set_repetition_penalty(1.2F);
    if (i % 4 == 1) sampling.set_frequency_penalty(0.1F);
    if (i % 4 == 3) one.request.mutable_stop()->add_strings("never to be said");
    if (i % 6 == 5) one.request.set_n(2);
    const auto result = client_->Generate(one.request);
    ASSERT_TRUE(result.ok()) << result.status();
    one.undisturbed = *result;
    cases_.push_back(std::move(one));
  }

  void MakeScoreCase() {
    ScoreCase one;
    const int64_t tokens = 6'000 + random_.Below(4'000);
    for (int64_t i = 0; i < tokens; ++i) {
      one.request.mutable_tokens()->add_ids(static_cast<uint32_t>(random_.Below(60)));
    }
    const auto result = client_->Score(one.request);
    ASSERT_TRUE(result.ok()) << result.status();
    one.undisturbed = *result;
    scores_.push_back(std::move(one));
  }

  void Score() {
    const ScoreCase& one = scores_[next_score_++ % kScoreCases];
    const auto result = client_->Score(one.request, [this](const v1::ScoreResponse& event) {
      scored_.Add(event.has_chunk() ? 1 : 0);
    });
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return;
    EXPECT_TRUE(result->exact);
    EXPECT_EQ(result->token_ids, one.undisturbed.token_ids);
    ASSERT_EQ(result->logprobs.size(), one.undisturbed.logprobs.size());
    for (size_t i = 0; i < result->logprobs.size(); ++i) {
      ASSERT_EQ(result->logprobs[i].logprob(), one.undisturbed.logprobs[i].logprob()) << i;
    }
    EXPECT_EQ(result->finished.logprob(), one.undisturbed.finished.logprob());
    EXPECT_EQ(result->finished.scored_bytes(), one.undisturbed.finished.scored_bytes());
    EXPECT_EQ(result->finished.scored_tokens(), one.undisturbed.finished.scored_tokens());
    score_resumes_ += result->resumes;
  }

  // Reads one stream after another, until `enough_`.
  void Read() {
    while (!enough_) {
      if (next_ % 4 == 3) Score();
      const Case& one = cases_[next_++ % kCases];
      const auto result = client_->Generate(one.request, [this](const v1::GenerateResponse& event) {
        progress_.Add(event.delta().token_ids_size());
      });
      EXPECT_TRUE(result.ok()) << result.status();
      if (!result.ok()) continue;
      EXPECT_TRUE(result->exact);
      EXPECT_EQ(result->token_ids, one.undisturbed.token_ids);
      EXPECT_EQ(result->text, one.undisturbed.text);
      const v1::Usage& usage = result->finished.usage();
      EXPECT_EQ(usage.generated_tokens(), one.undisturbed.token_ids.size());
      EXPECT_EQ(usage.prompt_tokens(), one.undisturbed.finished.usage().prompt_tokens());
      EXPECT_EQ(result->finished.limit(), one.undisturbed.finished.limit());
      ASSERT_EQ(result->others.size(), one.undisturbed.others.size());
      for (size_t i = 0; i < result->others.size(); ++i) {
        EXPECT_EQ(result->others[i].token_ids, one.undisturbed.others[i].token_ids);
        EXPECT_EQ(result->others[i].text, one.undisturbed.others[i].text);
        EXPECT_EQ(result->others[i].finished.usage().prompt_tokens(), 0U);
      }
      (result->others.empty() ? resumes_ : several_resumes_) += result->resumes;
    }
  }

  // Stops and starts each replica in turn while the others serve. Repeats this until some streams
  // of each kind were resumed. Some score advances before each stop: one that is resumed is read
  // from its beginning, and however slow that is, it must come further than before.
  void Restart(int signal) {
    const uint64_t before = resumes_;
    const uint64_t scores_before = score_resumes_;
    const uint64_t several_before = several_resumes_;
    do {
      for (auto& replica : replicas_) {
        progress_.WaitForMore(1500);
        scored_.WaitForMore(1);
        replica->Stop(signal);
        progress_.WaitForMore(1500);
        replica->Start();
      }
    } while (resumes_ == before || score_resumes_ == scores_before ||
             several_resumes_ == several_before);
  }

  const TempFolder folder_;
  TestRandom random_;
  std::array<std::unique_ptr<Program>, kReplicas> replicas_;
  std::unique_ptr<client::Client> client_;
  std::vector<Case> cases_;
  std::vector<ScoreCase> scores_;
  Progress progress_;
  Progress scored_;  // counts chunks
  std::atomic<size_t> next_ = 0;
  std::atomic<size_t> next_score_ = 0;
  std::atomic<uint64_t> resumes_ = 0;
  std::atomic<uint64_t> score_resumes_ = 0;
  std::atomic<uint64_t> several_resumes_ = 0;
  std::atomic<bool> enough_ = false;
};

TEST_F(SurvivalTest, StreamsAreCompleteWhenServersAreKilledOrDrained) {
  std::vector<std::thread> readers;
  for (int i = 0; i < kThreads; ++i) readers.emplace_back([this] { Read(); });
  Restart(SIGKILL);
  Restart(SIGTERM);
  enough_ = true;
  for (std::thread& reader : readers) reader.join();
}

}  // namespace
}  // namespace aft::server
