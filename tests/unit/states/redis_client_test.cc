// The client, with servers that are not Redis or do not behave like it.
#include "server/states/redis_client.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/mutex.h"
#include "server/observability/log.h"
#include "tests/unit/states/redis_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class RedisClientTest : public RedisTest {
 protected:
  // From now on answers every command with `bytes`; "": does not answer.
  void Answer(const std::string& bytes) {
    MutexLock lock(mutex_);
    answer_ = bytes;
  }
  std::string answer() {
    MutexLock lock(mutex_);
    return answer_;
  }

  // Makes a call and waits for its end.
  static RedisClient::Replies Ask(RedisClient& client, size_t max_bytes = 100'000,
                                  std::vector<RedisCommand> commands = {{"GET", "x"}}) {
    return Await<RedisClient::Replies>(
        [&](const auto& done) { client.Call("ada", std::move(commands), max_bytes, done); });
  }
  double failed(RedisFailure failure) { return metrics_.redis_failed(failure).Value(); }

  Mutex mutex_;
  std::string answer_ ABSL_GUARDED_BY(mutex_) = "$2\r\nhi\r\n";
};

constexpr std::chrono::minutes kMinute{1};

TEST_F(RedisClientTest, GivesBackEveryKindOfReply) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  auto replies = Ask(*client, 1000, {{"GET", "a"}, {"GET", "b"}});
  ASSERT_TRUE(replies.ok()) << replies.status();
  ASSERT_EQ(replies->size(), 2);
  EXPECT_EQ((*replies)[1].text, "hi");
  Answer("*3\r\n:-7\r\n+OK\r\n$-1\r\n");
  replies = Ask(*client);
  ASSERT_TRUE(replies.ok()) << replies.status();
  ASSERT_EQ(replies->front().elements.size(), 3);
  EXPECT_EQ(replies->front().elements[0].integer, -7);
  EXPECT_EQ(replies->front().elements[1].text, "OK");
  EXPECT_EQ(replies->front().elements[2].type, RedisReply::Type::kNil);
  Answer("-ERR no\r\n");
  replies = Ask(*client);
  ASSERT_TRUE(replies.ok()) << replies.status();
  EXPECT_EQ(replies->front().type, RedisReply::Type::kError);
  EXPECT_EQ(replies->front().text, "ERR no");
  EXPECT_EQ(redis.connections(), 1);
}

TEST_F(RedisClientTest, AnInvalidReplyBreaksTheConnectionAndNothingElse) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  double broken = 0;
  for (const std::string& bytes :
       {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("\0\0\0\0", 4),
        std::string("$-7\r\n"), std::string("$abc\r\n"), std::string(":1x\r\n"),
        std::string("*1025\r\n"), std::string("*2147483647\r\n"),
        std::string("*99999999999999999999\r\n"), std::string("*1\r\n*1\r\n:1\r\n"),
        std::string("*2\r\n*0\r\n:1\r\n"), std::string("$2\r\nhi\r\n+more\r\n"),
        "+" + std::string(200'000, 'x'), "$300000\r\n" + std::string(300'000, 'x') + "\r\n",
        "$9223372036854775807\r\n" + std::string(200'000, 'x')}) {
    SCOPED_TRACE(bytes.substr(0, 40));
    Answer(bytes);
    WaitUntilUp(metrics_);
    EXPECT_THAT(Ask(*client).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis")));
    EXPECT_EQ(failed(RedisFailure::kBroken), ++broken);
    WaitUntilUp(metrics_);
    Answer("$2\r\nhi\r\n");
    const auto replies = Ask(*client);
    ASSERT_TRUE(replies.ok()) << replies.status();
    EXPECT_EQ(replies->front().text, "hi");
  }
}

TEST_F(RedisClientTest, AReplyOfTheMostBytesIsAcceptedAndNoLongerOne) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  Answer("$1000\r\n" + std::string(1000, 'x') + "\r\n");
  EXPECT_TRUE(Ask(*client, answer().size()).ok());
  EXPECT_FALSE(Ask(*client, answer().size() - 1).ok());
}

TEST_F(RedisClientTest, ACallIsSentAgainOnceWhenTheConnectionBreaks) {
  std::atomic<int> calls = 0;
  std::atomic<int> hang_ups = 1;
  FakeRedis redis([&](const RedisCommand&) -> std::string {
    ++calls;
    return hang_ups-- > 0 ? FakeRedis::kHangUp : "$2\r\nhi\r\n";
  });
  const auto client = Connect(redis.address(), kMinute);
  EXPECT_TRUE(Ask(*client).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(redis.connections(), 2);
  hang_ups = 1000;
  EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(calls, 4);
  hang_ups = 0;
  WaitUntilUp(metrics_);
  EXPECT_TRUE(Ask(*client).ok());
}

TEST_F(RedisClientTest, ErrorsThatAnotherServerMayNotHaveEndTheConnection) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), kMinute);
  int connections = 1;
  for (const std::string code : {"READONLY", "LOADING", "NOAUTH", "MASTERDOWN"}) {
    SCOPED_TRACE(code);
    Answer("-" + code + " why\r\n");
    const auto replies = Ask(*client);
    ASSERT_TRUE(replies.ok()) << replies.status();
    EXPECT_EQ(replies->front().text, code + " why");
    Answer("-ERR READONLY\r\n");
    ASSERT_TRUE(Ask(*client).ok());
    Answer("$2\r\nhi\r\n");
    ASSERT_TRUE(Ask(*client).ok());
    EXPECT_EQ(redis.connections(), ++connections);
  }
  EXPECT_EQ(failed(RedisFailure::kBroken), 0);
}

TEST_F(RedisClientTest, AnOutageIsTwoLinesOfTheLog) {
  const auto serve = [this](const RedisCommand& command) {
    const std::string bytes = answer();
    return command[0] == "PING" && bytes[0] == '$' ? "+PONG\r\n" : bytes;
  };
  FakeRedis redis(serve, /*login=*/false);
  log::Flush(std::chrono::hours(1));  // lines of the tests before
  testing::internal::CaptureStderr();
  const auto client = Connect(redis.address(), kMinute);
  ASSERT_TRUE(Ask(*client).ok());
  Answer("nonsense\r\n");
  EXPECT_FALSE(Ask(*client).ok());
  for (int i = 0; i < 100; ++i) {
    client->Call("ada", {{"GET", "x"}}, 100, [](const RedisClient::Replies&) {});
  }
  Answer("$2\r\nhi\r\n");
  WaitUntilUp(metrics_);
  ASSERT_TRUE(Ask(*client).ok());
  log::Flush(std::chrono::hours(1));
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 2) << lines;
  const size_t down = lines.find("level=error event=states.redis_down");
  const size_t up = lines.find("level=info event=states.redis_up");
  EXPECT_LT(down, up);
  EXPECT_NE(up, std::string::npos);
  EXPECT_THAT(lines, HasSubstr("not an answer of Redis"));
}

TEST_F(RedisClientTest, ARedisThatStaysSilentIsTakenToBeDown) {
  FakeRedis redis([](const RedisCommand&) { return ""; }, /*login=*/false);
  const auto client = Connect(redis.address(), milliseconds(20));
  EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  // It is known to be down, so no call waits for it: each ends before Call returns.
  for (int i = 0; i < 1000; ++i) {
    bool done = false;
    client->Call("ada", {{"GET", "x"}}, 100, [&](const RedisClient::Replies& replies) {
      EXPECT_EQ(replies.status().code(), absl::StatusCode::kUnavailable);
      done = true;
    });
    ASSERT_TRUE(done);
  }
  EXPECT_EQ(metrics_.redis_connects.Value(), 0);
  EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
}

TEST_F(RedisClientTest, ARedisThatFallsSilentIsFoundAgainWhenItAnswers) {
  FakeRedis redis([this](const RedisCommand&) { return answer(); });
  const auto client = Connect(redis.address(), milliseconds(200));
  while (!Ask(*client).ok()) {
  }
  Answer("");
  const double before = failed(RedisFailure::kBroken);
  while (failed(RedisFailure::kBroken) == before) {  // a slow machine may not send the first one
    EXPECT_EQ(Ask(*client).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(failed(RedisFailure::kBroken), before + 1);
  Answer("$2\r\nhi\r\n");
  while (!Ask(*client).ok()) {
  }
}

// A Redis that keeps its first call waiting, and remembers the keys that it was asked for.
class BusyRedis {
 public:
  BusyRedis() : redis_([this](const RedisCommand& command) { return Answer(command); }) {}

  std::string address() const { return redis_.address(); }
  void WaitUntilAsked() { asked_.get_future().wait(); }
  // Answers the first call too.
  void GoOn(const std::string& answer = kAnswer) { go_on_.set_value(answer); }
  std::vector<std::string> keys() {
    MutexLock lock(mutex_);
    return keys_;
  }

 private:
  static constexpr char kAnswer[] = "$2\r\nhi\r\n";

  std::string Answer(const RedisCommand& command) {
    bool first = false;
    {
      MutexLock lock(mutex_);
      first = keys_.empty();
      keys_.push_back(command[1]);
    }
    if (!first) return kAnswer;
    asked_.set_value();
    return go_on_.get_future().get();
  }

  std::promise<void> asked_;
  std::promise<std::string> go_on_;
  Mutex mutex_;
  std::vector<std::string> keys_ ABSL_GUARDED_BY(mutex_);
  FakeRedis redis_;  // last: its thread uses all of the above
};

class RedisTurnsTest : public RedisClientTest {
 protected:
  RedisTurnsTest() : client_(Connect(redis_.address(), kMinute)) {
    Call("ada", "a0");
    redis_.WaitUntilAsked();
  }
  ~RedisTurnsTest() override { client_.reset(); }

  void Call(const std::string& name, const std::string& key) {
    ++calls_;
    client_->Call(name, {{"GET", key}}, 100,
                  [&](const RedisClient::Replies& replies) { ++(replies.ok() ? good_ : bad_); });
  }
  // Calls until a call is refused. Returns the number of calls that were accepted.
  int Flood(const std::string& name) {
    const int before = bad_;
    int waiting = -1;
    for (; bad_ == before; ++waiting) Call(name, name);
    return waiting;
  }
  void WaitForAll() {
    while (good_ + bad_ < calls_) std::this_thread::yield();
    EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
  }

  BusyRedis redis_;
  int calls_ = 0;
  std::atomic<int> good_ = 0;
  std::atomic<int> bad_ = 0;
  std::unique_ptr<RedisClient> client_;
};

TEST_F(RedisTurnsTest, AClientIsNextHoweverManyCallsOfAnotherWait) {
  std::vector<std::string> expected = {"a0", "b"};
  for (int i = 1; i <= 1000; ++i) {
    expected.push_back(absl::StrCat("a", i));
    Call("ada", expected.back());
  }
  Call("bob", "b");
  redis_.GoOn();
  WaitForAll();
  EXPECT_EQ(redis_.keys(), expected);
}

TEST_F(RedisTurnsTest, ACallThatIsSentAgainStaysBeforeLaterOnes) {
  Call("ada", "a1");
  Call("bob", "b");
  Call("ada", "a2");
  redis_.GoOn(FakeRedis::kHangUp);
  WaitForAll();
  EXPECT_EQ(bad_, 0);
  EXPECT_THAT(redis_.keys(), testing::ElementsAre("a0", "a0", "b", "a1", "a2"));
}

TEST_F(RedisTurnsTest, ALimitedNumberOfCallsMayWait) {
  EXPECT_EQ(Flood("ada"), 1024);
  EXPECT_EQ(metrics_.redis_waiting.Value(), 1024);
  EXPECT_EQ(failed(RedisFailure::kUnsent), 1);
  redis_.GoOn();
  WaitForAll();
  EXPECT_EQ(good_, 1025);
  EXPECT_EQ(bad_, 1);
}

TEST_F(RedisTurnsTest, ClientsThatFillTheirPlacesDoNotKeepOthersOut) {
  for (const std::string name : {"ada", "bob", "cyd", "dan"}) EXPECT_GE(Flood(name), 128) << name;
  const int before = bad_;
  for (int i = 0; i < 50; ++i) Call("eve", "e");
  EXPECT_EQ(bad_, before);
  redis_.GoOn();
  WaitForAll();
  EXPECT_EQ(bad_, before);
}

TEST_F(RedisClientTest, ACallWithoutMemoryEndsAlone) {
  constexpr size_t kLarge = 1'000'000;
  std::string large = absl::StrCat("$", kLarge, "\r\n", std::string(kLarge, 'x'), "\r\n");
  FakeRedis redis([&](const RedisCommand& command) {
    return command[1] == "large" ? std::move(large) : "$2\r\nhi\r\n";
  });
  const auto client = Connect(redis.address(), kMinute);
  ASSERT_TRUE(Ask(*client).ok());
  const auto no_memory = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory"));
  std::vector<RedisCommand> long_command = {RedisCommand(20, std::string(kLarge / 20, 'x'))};
  {
    const ShortMemory short_memory(kLarge / 2);
    EXPECT_THAT(Ask(*client, 2 * kLarge, {{"GET", "large"}}).status(), no_memory);
    EXPECT_TRUE(Ask(*client).ok());
    EXPECT_THAT(Ask(*client, 100, std::move(long_command)).status(), no_memory);
  }
  EXPECT_TRUE(Ask(*client).ok());
  EXPECT_EQ(metrics_.redis_up.Value(), 1);
  EXPECT_EQ(failed(RedisFailure::kUnsent), 0);  // it was never taken to be down
}

// A page of one id, whose value is gone.
std::string Page(const std::string& id) {
  return absl::StrCat("*1\r\n$", id.size() + 2, "\r\n", id, ":7\r\n");
}

TEST_F(RedisClientTest, AListOfPagesThatDoNotAdvanceEnds) {
  std::atomic<int> pages = 0;
  FakeRedis redis([&](const RedisCommand& command) {
    if (command[0] != "EVAL") return std::string("$0\r\n\r\n");
    ++pages;
    return Page(Id('a'));
  });
  config_.redis.address = redis.address();
  const auto replica = Open();
  const auto nonsense = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unexpected reply"));
  EXPECT_THAT(List(*replica, "ada").status(), nonsense);
  EXPECT_EQ(pages, 2);
  EXPECT_THAT(List(*replica, "ada", Id('b')).status(), nonsense);
  EXPECT_EQ(pages, 3);
}

TEST_F(RedisClientTest, AnEndlessListEndsAtItsTimeout) {
  std::atomic<int> pages = 0;
  FakeRedis redis([&](const RedisCommand& command) {
    if (command[0] != "EVAL") return std::string("$0\r\n\r\n");
    return Page(absl::StrFormat("%032x", pages++));
  });
  config_.redis.address = redis.address();
  config_.redis.timeout = milliseconds(200);
  EXPECT_EQ(List(*Open(), "ada").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RedisClientTest, AListOfMoreThanWasAskedForIsRefusedBeforeItsStatesAreRead) {
  std::atomic<int> heads = 0;
  FakeRedis redis([&](const RedisCommand& command) {
    if (command[0] == "EVAL") {
      const std::string more = Page(Id('b')).substr(4);
      return absl::StrCat("*2\r\n", Page(Id('a')).substr(4), more);
    }
    ++heads;
    return std::string("$0\r\n\r\n");
  });
  config_.redis.address = redis.address();
  EXPECT_THAT(List(*Open(), "ada", "", /*most=*/1).status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("unexpected reply")));
  EXPECT_EQ(heads, 0);
}

// Each answer comes within the timeout of its own call.
TEST_F(RedisClientTest, AListAsksForNothingAfterItsTimeout) {
  using std::chrono::steady_clock;
  std::atomic<int> heads = 0;
  std::atomic<bool> holds = false;
  std::atomic<steady_clock::time_point> until = steady_clock::time_point::max() - kMinute;
  FakeRedis redis([&](const RedisCommand& command) {
    const bool list = command[0] == "EVAL";
    if (!list && command[1].find(Id('a')) == std::string::npos) ++heads;
    if (!list) holds = true;
    // The call before ends in the middle of the list's time. The list's page comes after that time.
    const auto part = config_.redis.timeout / 4;
    while (steady_clock::now() < until.load() + (list ? 5 : 2) * part) std::this_thread::yield();
    return list ? Page(Id('b')) : std::string("$0\r\n\r\n");
  });
  config_.redis.address = redis.address();
  config_.redis.timeout = milliseconds(1000);
  const auto replica = Open();
  WaitUntilUp(replica->metrics);
  std::promise<void> described;
  replica->states->Describe(ClientOf("bob"), "bob", Id('a'),
                            [&](const absl::StatusOr<StoredState>&) { described.set_value(); });
  while (!holds) std::this_thread::yield();
  std::promise<absl::StatusCode> listed;
  replica->states->List(ClientOf("ada"), "ada", "", /*most=*/100,
                        [&](const auto& page) { listed.set_value(page.status().code()); });
  until = steady_clock::now();  // the list's time began before
  EXPECT_EQ(listed.get_future().get(), absl::StatusCode::kUnavailable);
  described.get_future().wait();
  EXPECT_EQ(heads, 0);
}

TEST_F(RedisClientTest, AStateIsCopiedOnceToBeWritten) {
  RedisServer redis;
  config_.redis.address = redis.address();
  const auto replica = Open();
  WaitUntilUp(replica->metrics);
  constexpr size_t kLarge = 1'000'000;
  const StateFolder::File file = File("ada", Id('a'), 12, kLarge);
  {
    const ShortMemory short_memory(kLarge / 2, /*left=*/1);
    EXPECT_EQ(Put(*replica, file).status(), absl::OkStatus());
  }
  const auto found = Find(*replica, "ada", Id('a'));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->state->snapshot, file.state->snapshot);
}

TEST_F(RedisClientTest, ACallThatWaitedTooLongEndsThoughTheThreadIsBlocked) {
  std::promise<void> found;
  std::atomic<bool> first = true;
  const auto open = [&](const auto&...) {
    if (first.exchange(false)) found.get_future().wait();  // like a slow look-up of a host's name
    return absl::UnavailableError("no such host");
  };
  RedisConfig config;
  config.timeout = milliseconds(20);
  RedisClient client(config, metrics_, open);
  std::atomic<int> ended = 0;
  for (const std::string name : {"ada", "bob", "ada"}) {
    client.Call(name, {{"GET", "x"}}, 100, [&](const RedisClient::Replies& replies) {
      EXPECT_EQ(replies.status().code(), absl::StatusCode::kUnavailable);
      ++ended;
    });
  }
  client.Expire();
  while (ended < 3) client.Expire();
  EXPECT_EQ(metrics_.redis_waiting.Value(), 0);
  found.set_value();
}

TEST_F(RedisClientTest, TheTimeBetweenAttemptsDoubles) {
  std::vector<std::chrono::steady_clock::time_point> attempts;
  std::promise<void> third;
  const auto open = [&](const auto&...) {
    attempts.push_back(std::chrono::steady_clock::now());
    if (attempts.size() == 3) third.set_value();
    return absl::UnavailableError("down");
  };
  {
    const RedisClient client(RedisConfig(), metrics_, open);
    third.get_future().wait();
  }
  EXPECT_GE(attempts.at(2) - attempts.at(1), milliseconds(100));
}

TEST_F(RedisClientTest, EndsEveryCallWhenItIsDestroyed) {
  FakeRedis redis([](const RedisCommand&) { return ""; });
  auto client = Connect(redis.address(), milliseconds(50));
  std::atomic<int> ended = 0;
  for (int i = 0; i < 100; ++i) {
    client->Call("ada", {{"GET", "x"}}, 100, [&](const RedisClient::Replies&) { ++ended; });
  }
  client.reset();
  EXPECT_EQ(ended, 100);
}

TEST_F(RedisClientTest, AnAddressWithoutAListenerIsNamed) {
  for (const std::string& address :
       {"unix:" + temp_.File("none"), std::string("unix:/"), std::string("127.0.0.1:1"),
        std::string("[::1]:1"), std::string("host.invalid:1")}) {
    SCOPED_TRACE(address);
    RedisConfig config;
    config.address = address;
    const auto deadline = std::chrono::steady_clock::now() + kMinute;
    EXPECT_THAT(RedisConnection::Open(config, "", deadline).status(),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis: " + address)));
  }
}

}  // namespace
}  // namespace aft::server
