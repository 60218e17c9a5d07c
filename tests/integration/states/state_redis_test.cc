// States in Redis that several servers share, over real gRPC.

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/redis_server.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StateRedisServerTest : public StateTest {
 protected:
  StateRedisServerTest() {
    UseStateKey(folder_, config_);
    config_.states.redis.timeout = std::chrono::minutes(1);
    config_.limits.max_queued_requests = 2000;
  }

  void StartWith(const std::string& address) {
    config_.states.redis.address = address;
    Start();
    server_->WaitForMetric("aft_states_redis_up", 1);
  }
  // Directs the following calls to the other server.
  void Swap() { server_.swap(other_); }
  void StartTwo(const std::string& address) {
    StartWith(address);
    Swap();
    StartWith(address);
  }

  // These let a model that is held make its steps while its tokens are read.
  void ReadTokens(GenerateStream& stream, size_t count) {
    while (stream.tokens.size() < count) {
      server_->control().AllowSteps(1);
      ASSERT_TRUE(stream.Next());
    }
  }
  void StepToTheEnd(GenerateStream& stream) {
    do {
      server_->control().AllowSteps(1);
    } while (stream.Next());
  }

  std::unique_ptr<TestServer> other_;
};

TEST_F(StateRedisServerTest, EachServerContinuesTheOthersConversation) {
  const RedisServer redis;
  StartTwo(redis.address());
  FakeModelRunner::Text text(options_);
  text.Read(*FakeTokenizer().Encode("hello"));
  SamplingParams params;
  params.seed = 7;
  v1::State before;
  const auto take = [&](const GenerateStream& turn, int tokens) {
    EXPECT_EQ(turn.tokens, text.Sample(params, tokens));
    before = turn.finished.state();
  };
  take(Run(Turn("hello", 10)), 10);
  for (int i = 0; i < 20; ++i) {
    Swap();
    v1::StateServiceGetResponse found;
    ASSERT_TRUE(Get(before.id(), found).ok());
    EXPECT_EQ(found.state().tokens(), before.tokens());
    EXPECT_EQ(found.state().bytes(), before.bytes());
    EXPECT_EQ(found.state().history(), before.history());
    EXPECT_EQ(found.state().pending(), before.pending());
    EXPECT_EQ(found.state().model(), "fake");
    EXPECT_LE(found.state().ttl_ms(), before.ttl_ms());
    EXPECT_GT(found.state().ttl_ms(), 0U);
    text.Read(*FakeTokenizer().Encode(" you"));
    take(Run(Turn(" you", 5, before.id())), 5);
  }
  // Neither server keeps a state in its memory.
  server_->WaitForMetric("aft_states_bytes", 0);
  other_->WaitForMetric("aft_states_bytes", 0);
  const std::string id = before.id();
  EXPECT_TRUE(Delete(id).ok());
  Swap();
  EXPECT_THAT(Get(id),
              StatusIs(absl::StatusCode::kNotFound, "id: no state of this id, or it has expired"));
  EXPECT_THAT(Delete(id), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no state")));
  EXPECT_THAT(Refused(Turn("x", 1, id)),
              StatusIs(absl::StatusCode::kNotFound,
                       "previous.state_id: no state of this id, or it has expired"));
}

TEST_F(StateRedisServerTest, ExportAndScoreFindStatesInRedisToo) {
  const RedisServer redis;
  StartTwo(redis.address());
  const std::string id = Run(Turn("hello", 3)).finished.state().id();
  Swap();
  v1::StateServiceExportRequest request;
  request.set_id(id);
  grpc::ClientContext context;
  const auto reader = server_->states().Export(&context, request);
  v1::StateServiceExportResponse response;
  std::string sealed;
  while (reader->Read(&response)) sealed += response.chunk();
  ASSERT_TRUE(reader->Finish().ok());
  v1::GenerateRequest inline_turn = Request(" you", 4);
  inline_turn.mutable_previous()->set_state(sealed);
  EXPECT_EQ(Run(inline_turn).tokens, Run(Turn(" you", 4, id)).tokens);
  v1::ScoreRequest score;
  score.set_text("abc");
  score.mutable_previous()->set_state_id(id);
  score.mutable_store();
  ScoreStream stream(server_->inference(), score);
  ASSERT_TRUE(stream.Finish().ok());
  Swap();
  EXPECT_TRUE(Get(stream.events.back().finished().state().id()).ok());
}

TEST_F(StateRedisServerTest, ARestartOfRedisFailsOnlyCallsDuringIt) {
  RedisServer redis;
  StartTwo(redis.address());
  const std::string id = Run(Turn("hello", 10)).finished.state().id();
  const std::vector<TokenId> expected = Run(Turn(" you", 5, id)).tokens;
  redis.Kill();
  const auto down = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis"));
  const auto generated = [this] {
    return server_->Metric("aft_generated_tokens_total{model=\"fake\"}");
  };
  for (int i = 0; i < 2; ++i) {
    Swap();
    EXPECT_THAT(Refused(Turn(" you", 5, id)), down);
    EXPECT_THAT(Get(id), down);
    EXPECT_THAT(Delete(id), down);
    // A request whose state could not be stored is refused before any work.
    const double before = generated();
    EXPECT_THAT(Refused(Turn("hello", 5)), down);
    EXPECT_EQ(generated(), before);
    ExpectServes(*server_);
    EXPECT_EQ(server_->Metric("aft_states_redis_up"), 0);
    server_->WaitForMetric("aft_states_bytes", 0);
  }
  redis.Start();
  for (int i = 0; i < 2; ++i) {
    Swap();
    server_->WaitForMetric("aft_states_redis_up", 1);
    EXPECT_EQ(Run(Turn(" you", 5, id)).tokens, expected);
  }
  redis.Kill();
  redis.Start();  // a call that starts now does not notice the restart
  server_->WaitForMetric("aft_states_redis_up", 1);  // unless the idle connection was checked
  EXPECT_EQ(Run(Turn(" you", 5, id)).tokens, expected);
  redis.Do({"FLUSHALL"});
  EXPECT_EQ(Get(id).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(StateRedisServerTest, ASilentRedisDelaysNoOtherCall) {
  std::atomic<int> asked = 0;
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  FakeRedis redis([&](const RedisCommand&) {
    ++asked;
    going_on.wait();
    return FakeRedis::kHangUp;
  });
  StartWith(redis.address());
  std::vector<std::thread> lookups;
  for (int i = 0; i < 8; ++i) {  // more than the number of decode threads
    lookups.emplace_back([this] {
      EXPECT_THAT(Refused(Turn("x", 1, std::string(32, 'a'))),
                  StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis")));
    });
  }
  server_->WaitForMetric("aft_states_redis_waiting", 7);
  ExpectServes(*server_);
  go_on.set_value();
  for (std::thread& lookup : lookups) lookup.join();
  server_->WaitForMetric(RequestsTotal("UNAVAILABLE", "Generate"), 8);
  ExpectServes(*server_);
}

TEST_F(StateRedisServerTest, CancelAndDeadlineEndACallThatWaitsForRedisOnce) {
  std::promise<void> asked;
  std::promise<void> go_on;
  std::atomic<bool> first = true;
  FakeRedis redis([&](const RedisCommand&) -> std::string {
    if (!first.exchange(false)) return "$0\r\n\r\n";
    asked.set_value();
    go_on.get_future().wait();
    return "$0\r\n\r\n";
  });
  StartWith(redis.address());
  const v1::GenerateRequest request = Turn("x", 1, std::string(32, 'a'));
  GenerateStream cancelled(server_->inference(), request);
  asked.get_future().wait();
  // If a call arrives too late, the server may never see it. Then a longer deadline is tried.
  double calls = 1;
  for (auto patience = milliseconds(50); server_->Metric("aft_states_redis_waiting") == 0;
       patience *= 2) {
    const auto deadline = std::chrono::system_clock::now() + patience;
    GenerateStream late(server_->inference(), request,
                        [&](grpc::ClientContext& context) { context.set_deadline(deadline); });
    EXPECT_EQ(late.Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
    ++calls;
  }
  cancelled.context().TryCancel();
  EXPECT_EQ(cancelled.Finish().error_code(), grpc::StatusCode::CANCELLED);
  go_on.set_value();
  // An answer from Redis may arrive before the cancellation or the deadline ends its call.
  const auto ended = [this] {
    return server_->Metric(RequestsTotal("CANCELLED", "Generate")) +
           server_->Metric(RequestsTotal("DEADLINE_EXCEEDED", "Generate")) +
           server_->Metric(RequestsTotal("NOT_FOUND", "Generate"));
  };
  while (ended() < 2) std::this_thread::yield();
  ExpectServes(*server_);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
  EXPECT_LE(ended(), calls);
  EXPECT_EQ(server_->Metric("aft_requests_waiting{model=\"fake\"}"), 0);
}

TEST_F(StateRedisServerTest, ADrainWaitsForLookupsAndWrites) {
  std::atomic<int> asked = 0;
  std::promise<void> go_on;
  const std::shared_future<void> going_on = go_on.get_future().share();
  FakeRedis redis([&](const RedisCommand& command) -> std::string {
    ++asked;
    going_on.wait();
    return command[0] == "EVAL" ? ":-1\r\n" : "$0\r\n\r\n";
  });
  config_.drain.grace = std::chrono::minutes(1);
  StartWith(redis.address());
  GenerateStream stores(server_->inference(), Turn("hello", 3));
  ASSERT_TRUE(stores.Next());
  while (asked == 0) std::this_thread::yield();
  GenerateStream looks_up(server_->inference(), Turn("x", 1, std::string(32, 'a')));
  server_->WaitForMetric("aft_states_redis_waiting", 1);
  std::thread drain([this] { server_->server().Drain(); });
  server_->WaitForMetric("aft_draining", 1);
  server_->WaitForMetric("aft_model_state{model=\"fake\",state=\"draining\"}", 1);
  go_on.set_value();
  EXPECT_TRUE(stores.Finish().ok());
  EXPECT_THAT(stores.finished.state().id(), SizeIs(32));
  EXPECT_FALSE(looks_up.Finish().ok());
  drain.join();
}

TEST_F(StateRedisServerTest, ADrainLeavesAStreamsStateInRedisAndNotWithItsClient) {
  const RedisServer redis;
  config_.drain.grace = std::chrono::hours(1);
  StartTwo(redis.address());
  server_->control().Hold();
  GenerateStream other(server_->inference(), Request("other", kEndless));
  server_->control().RunSteps(1);
  ASSERT_TRUE(other.Next());
  v1::GenerateRequest request = Request("hello", kEndless);
  request.set_resumable(true);
  GenerateStream part(server_->inference(), request);
  server_->WaitForMetric("aft_requests_waiting{model=\"fake\"}", 1);
  server_->control().RunSteps(1);  // the last step without it
  ReadTokens(part, 5);
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  StepToTheEnd(part);
  EXPECT_EQ(part.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(part.event().has_hand_over());
  // The drain is not over before the other stream ends.
  EXPECT_EQ(server_->Metric("aft_streams_handed_over_total{to=\"store\"}"), 1);
  EXPECT_EQ(server_->Metric("aft_streams_handed_over_total"), 1);
  other.context().TryCancel();
  server_->control().Resume();
  EXPECT_EQ(other.Finish().error_code(), grpc::StatusCode::CANCELLED);
  drain.join();
  Swap();
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 10));
  Run(Resumed(request, part));
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total{from=\"state\",model=\"fake\"}"), 1);
}

TEST_F(StateRedisServerTest, ADrainGivesAStreamsStateToItsClientWhileRedisIsDown) {
  RedisServer redis;
  config_.drain.grace = std::chrono::hours(1);
  StartTwo(redis.address());
  server_->control().Hold();
  v1::GenerateRequest request = Request("hello", kEndless);
  request.set_resumable(true);
  GenerateStream part(server_->inference(), request);
  ReadTokens(part, 5);
  redis.Kill();
  EXPECT_EQ(Get(std::string(32, 'a')).error_code(), grpc::StatusCode::UNAVAILABLE);
  std::thread drain([this] { EXPECT_TRUE(server_->server().Drain()); });
  StepToTheEnd(part);
  EXPECT_EQ(part.Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(part.event().has_hand_over());
  drain.join();
  Swap();
  request.mutable_stop()->set_max_tokens(static_cast<uint32_t>(part.tokens.size() + 10));
  Run(Resumed(request, part));
  EXPECT_EQ(server_->Metric("aft_streams_resumed_total{from=\"state\",model=\"fake\"}"), 1);
}

TEST_F(StateRedisServerTest, InvalidAnswersEndTheCallThatAsked) {
  Mutex mutex;
  std::string answer;
  FakeRedis redis([&](const RedisCommand&) {
    MutexLock lock(mutex);
    return answer;
  });
  StartWith(redis.address());
  for (const char* bytes :
       {"-OOM command not allowed\r\n", "-READONLY You can't write\r\n", "-WRONGTYPE no\r\n",
        "-NOAUTH Authentication required.\r\n", "-LOADING soon\r\n", "-ERR what\r\n", ":7\r\n",
        "$-1\r\n", "$5\r\nhello\r\n", "*2\r\n:1\r\n:2\r\n", "*-1\r\n", "SSH-2.0-OpenSSH\r\n",
        "$99999999999\r\nx"}) {
    SCOPED_TRACE(bytes);
    {
      MutexLock lock(mutex);
      answer = bytes;
    }
    if (absl::string_view(bytes) != "$99999999999\r\nx") {  // it would time out
      EXPECT_THAT(Refused(Turn("x", 1, std::string(32, 'a'))).error_code(),
                  ::testing::AnyOf(grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::NOT_FOUND,
                                   grpc::StatusCode::RESOURCE_EXHAUSTED));
      server_->WaitForMetric("aft_states_redis_up", 1);
      EXPECT_FALSE(Get(std::string(32, 'a')).ok());
      server_->WaitForMetric("aft_states_redis_up", 1);
      GenerateStream stores(server_->inference(), Turn("hello", 3));
      const grpc::Status status = stores.Finish();
      EXPECT_FALSE(status.ok());
      EXPECT_FALSE(stores.finished.has_state());
      server_->WaitForMetric("aft_states_redis_up", 1);
    }
    ExpectServes(*server_);
  }
  server_->WaitForMetric("aft_states_bytes", 0);
}

}  // namespace
}  // namespace aft::server
