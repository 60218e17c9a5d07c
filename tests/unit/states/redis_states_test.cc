// States in a real Redis.
#include "server/states/redis_states.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/captured_log.h"
#include "tests/unit/states/redis_fixture.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class RedisStatesTest : public OneRedisTest {
 protected:
  std::string Value(const std::string& id) const { return redis_.Do({"GET", "aft:s:" + id}).text; }
  void SetValue(const std::string& id, const std::string& value) const {
    redis_.Do({"SET", "aft:s:" + id, value});
  }
};

const absl::Status kNone = absl::NotFoundError("no state of this id, or it has expired");

TEST_F(RedisStatesTest, EveryServerFindsStatesThatAnotherPut) {
  const StateFolder::File file = File("ada", Id('a'));
  const auto put = Put(*replica_, file);
  ASSERT_TRUE(put.ok()) << put.status();
  EXPECT_EQ(put->bytes, StateBytes(*file.state));
  const auto other = Open();
  const auto found = Find(*other, "ada", Id('a'));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->id, Id('a'));
  EXPECT_EQ(found->model, "austen");
  EXPECT_EQ(found->bytes, put->bytes);
  EXPECT_EQ(found->state->snapshot, file.state->snapshot);
  EXPECT_EQ(found->state->had, file.state->had);
  EXPECT_EQ(found->state->model, 7);
  EXPECT_EQ(found->state->tokens, 12);
  EXPECT_EQ(found->state->outputs, 3);
  EXPECT_EQ(found->state->history, 99);
  EXPECT_EQ(found->state->pending, 5);
  const auto described = Describe(*other, "ada", Id('a'));
  ASSERT_TRUE(described.ok()) << described.status();
  EXPECT_EQ(described->bytes, put->bytes);
  EXPECT_EQ(described->model, "austen");
  EXPECT_EQ(described->state->tokens, 12);
  EXPECT_EQ(described->state->history, 99);
  EXPECT_EQ(described->state->pending, 5);
  EXPECT_THAT(described->state->snapshot, IsEmpty());
  const auto left = described->expires - std::chrono::steady_clock::now();
  EXPECT_LE(left, std::chrono::hours(1));
  EXPECT_GT(left, std::chrono::minutes(30));
  EXPECT_EQ(replica_->metrics.stored.Value(), 1);
}

TEST_F(RedisStatesTest, TakesMemoryOnlyWhileAStateIsInUse) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  WaitForBytes(*replica_, 0);
  auto found = Find(*replica_, "ada", Id('a'));
  WaitForBytes(*replica_, found->bytes);
  found->state.reset();
  WaitForBytes(*replica_, 0);
}

TEST_F(RedisStatesTest, AStateThatDoesNotFitIntoMemoryIsNotRead) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'), 12, 50'000)).ok());
  config_.max_bytes = 100'000;
  for (const int64_t most : {40'000, 80'000}) {  // 80,000 has no room for the record
    config_.max_client_bytes = most;
    const auto small = Open();
    EXPECT_THAT(Find(*small, "ada", Id('a')).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("max_client_bytes")));
    EXPECT_TRUE(Describe(*small, "ada", Id('a')).ok());
    WaitForBytes(*small, 0);
  }
}

TEST_F(RedisStatesTest, RedisExpiresStatesAndFreesTheirPlaceInTheBudget) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'), 1, 5000, milliseconds(20))).ok());
  ASSERT_TRUE(Put(*replica_, File("ada", Id('b'))).ok());
  absl::Status status;
  while ((status = Find(*replica_, "ada", Id('a')).status()).ok()) {
  }
  EXPECT_EQ(status, kNone);
  do {  // the clock of Redis may be a little late
    EXPECT_THAT(*List(*replica_, "ada"), ElementsAre(Id('b')));
  } while (redis_.Do({"ZCARD", "aft:x:ada"}).integer > 1);
  EXPECT_EQ(BytesOf("ada"), StateBytes(*File("ada", Id('b')).state));
  EXPECT_EQ(redis_.Do({"ZCARD", "aft:n:ada"}).integer, 1);
}

TEST_F(RedisStatesTest, NothingOfAClientOutlivesItsStates) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'), 1, 5000, milliseconds(20))).ok());
  ASSERT_TRUE(Put(*replica_, File("ada", Id('b'), 1, 5000, milliseconds(5))).ok());
  while (redis_
             .Do({"EXISTS", "aft:s:" + Id('a'), "aft:s:" + Id('b'), "aft:x:ada", "aft:n:ada",
                  "aft:b:ada"})
             .integer > 0) {
  }
}

// A call that forgot more of them would make others wait.
TEST_F(RedisStatesTest, ACallForgetsAtMostAThousandExpiredStates) {
  RedisCommand expired = {"ZADD", "aft:x:ada"};
  for (int i = 0; i < 1001; ++i) expired.insert(expired.end(), {"1", absl::StrCat(i)});
  redis_.Do(expired);
  for (const int64_t left : {1, 0}) {
    EXPECT_TRUE(List(*replica_, "ada").ok());
    EXPECT_EQ(redis_.Do({"ZCARD", "aft:x:ada"}).integer, left);
  }
}

TEST_F(RedisStatesTest, AStateThatIsPutBackAfterItsExpiryIsNotFound) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  SetValue(Id('a'), Value(Id('a')));  // now it does not expire in Redis
  ahead_ = std::chrono::hours(1) + std::chrono::minutes(4);
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
  ahead_ = std::chrono::hours(1) + std::chrono::minutes(5);
  EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone);
  EXPECT_EQ(Describe(*replica_, "ada", Id('a')).status(), kNone);
}

TEST_F(RedisStatesTest, ClocksOfServersMayDifferByMinutes) {
  const auto a_minute = File("ada", Id('a'), 1, 5000, std::chrono::minutes(1));
  ASSERT_TRUE(Put(*replica_, a_minute).ok());
  ahead_ = std::chrono::minutes(5);
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
  EXPECT_TRUE(Describe(*replica_, "ada", Id('a')).ok());
  EXPECT_THAT(*List(*replica_, "ada"), ElementsAre(Id('a')));
  ahead_ = -std::chrono::hours(1);
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
}

TEST_F(RedisStatesTest, AStateOfAnotherClientIsAsUnknownAsAMissingOne) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  EXPECT_EQ(Find(*replica_, "ada", Id('0')).status(), kNone);
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kUnknown).Value(), 1);
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kInvalid).Value(), 0);
  EXPECT_EQ(Find(*replica_, "bob", Id('a')).status(), kNone);
  EXPECT_EQ(Find(*replica_, "", Id('a')).status(), kNone);
  EXPECT_EQ(Describe(*replica_, "bob", Id('a')).status(), kNone);
  EXPECT_EQ(Remove(*replica_, "bob", Id('a')), kNone);
  EXPECT_THAT(*List(*replica_, "bob"), IsEmpty());
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
}

TEST_F(RedisStatesTest, IfClientsAreNotKnownAnyClientMayRemoveAState) {
  StateFolder::File file = File("10.0.0.1", Id('a'));
  file.owner = "";
  ASSERT_TRUE(Put(*replica_, file).ok());
  EXPECT_EQ(BytesOf("10.0.0.1"), StateBytes(*file.state));
  EXPECT_TRUE(Remove(*replica_, "", Id('a')).ok());
  EXPECT_EQ(BytesOf("10.0.0.1"), 0);
}

TEST_F(RedisStatesTest, ARemovedStateIsGone) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  ASSERT_TRUE(Put(*replica_, File("ada", Id('b'))).ok());
  EXPECT_TRUE(Remove(*replica_, "ada", Id('a')).ok());
  EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone);
  EXPECT_EQ(Remove(*replica_, "ada", Id('a')), kNone);
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kUnknown).Value(), 1);  // that of Find
  EXPECT_THAT(*List(*replica_, "ada"), ElementsAre(Id('b')));
  EXPECT_EQ(BytesOf("ada"), StateBytes(*File("ada", Id('b')).state));
}

TEST_F(RedisStatesTest, ListsStatesInOrderPageByPageAndNoResumePoints) {
  for (const char digit : std::string("7f0a3")) {
    ASSERT_TRUE(Put(*replica_, File("ada", Id(digit))).ok());
    ASSERT_TRUE(Put(*replica_, File("ada", StateStore::ResumePointName(Id(digit)))).ok());
  }
  ASSERT_TRUE(Put(*replica_, File("bob", Id('5'))).ok());
  EXPECT_THAT(*List(*replica_, "ada"), ElementsAre(Id('0'), Id('3'), Id('7'), Id('a'), Id('f')));
  EXPECT_THAT(*List(*replica_, "ada", "", 2), ElementsAre(Id('0'), Id('3')));
  EXPECT_THAT(*List(*replica_, "ada", Id('3'), 2), ElementsAre(Id('7'), Id('a')));
  EXPECT_THAT(*List(*replica_, "ada", Id('a'), 2), ElementsAre(Id('f')));
  EXPECT_THAT(*List(*replica_, "ada", Id('f')), IsEmpty());
  for (const std::string part : {"7", "75"}) {
    EXPECT_THAT(*List(*replica_, "ada", part), ElementsAre(Id('7'), Id('a'), Id('f')));
  }
  // A list does not end at values that were removed.
  redis_.Do({"DEL", "aft:s:" + Id('0'), "aft:s:" + Id('3')});
  EXPECT_THAT(*List(*replica_, "ada", "", 2), ElementsAre(Id('7'), Id('a')));
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kInvalid).Value(), 0);
}

TEST_F(RedisStatesTest, ANewStateOfAnIdReplacesTheLastOne) {
  const std::string id = StateStore::ResumePointName(Id('a'));
  const auto other = Open();
  for (const int64_t tokens : {10, 20, 30}) {
    const size_t bytes = static_cast<size_t>(tokens) * 100;
    ASSERT_TRUE(Put(*replica_, File("ada", id, tokens, bytes)).ok());
    EXPECT_EQ(Find(*other, "ada", id)->state->tokens, tokens);
    EXPECT_EQ(BytesOf("ada"), StateBytes(*File("ada", id, tokens, bytes).state));
  }
  EXPECT_EQ(redis_.Do({"ZCARD", "aft:n:ada"}).integer, 1);
  EXPECT_TRUE(Remove(*replica_, "ada", id).ok());
  EXPECT_EQ(BytesOf("ada"), 0);
}

TEST_F(RedisStatesTest, AReaderGetsAWholeStateWhileItIsReplaced) {
  const std::string id = StateStore::ResumePointName(Id('a'));
  ASSERT_TRUE(Put(*replica_, File("ada", id, 0, 0)).ok());
  std::atomic<bool> over = false;
  std::thread writer([&] {
    const auto other = Open();
    for (int64_t i = 1; !over; ++i) {
      EXPECT_TRUE(Put(*other, File("ada", id, i, static_cast<size_t>(i % 5) * 1000)).ok());
    }
  });
  int64_t last = 0;
  // Reads at least until the writer has written once.
  for (int i = 0; (i < 300 || last == 0) && !HasFailure(); ++i) {
    const auto found = Find(*replica_, "ada", id);
    EXPECT_TRUE(found.ok()) << found.status();
    if (!found.ok()) break;
    const int64_t tokens = found->state->tokens;
    EXPECT_GE(tokens, last);
    EXPECT_EQ(found->state->snapshot.size(), 5 + static_cast<size_t>(tokens % 5) * 1000);
    last = tokens;
  }
  EXPECT_GT(last, 0);
  over = true;
  writer.join();
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kInvalid).Value(), 0);
}

TEST_F(RedisStatesTest, TheBudgetOfAClientHoldsForAllServersTogether) {
  const int64_t bytes = StateBytes(*File("ada", Id('a')).state);
  config_.redis.max_client_bytes = 5 * bytes;
  const std::vector<std::unique_ptr<Replica>> replicas = [this] {
    std::vector<std::unique_ptr<Replica>> opened(3);
    for (std::unique_ptr<Replica>& replica : opened) replica = Open();
    return opened;
  }();
  std::atomic<int> stored = 0;
  std::vector<std::thread> threads;
  threads.reserve(replicas.size());
  for (const auto& replica : replicas) {
    threads.emplace_back([&stored, &replica = *replica] {
      for (int i = 0; i < 10; ++i) {
        const auto put = Put(replica, File("ada", StateStore::NewId()));
        stored += put.ok();
        if (put.ok()) continue;
        EXPECT_THAT(put.status(), StatusIs(absl::StatusCode::kResourceExhausted,
                                           HasSubstr("states.redis.max_client_bytes")));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(stored, 5);
  EXPECT_EQ(BytesOf("ada"), 5 * bytes);
  EXPECT_TRUE(Put(*replicas[0], File("bob", Id('b'))).ok());
  const std::vector<std::string> ids = *List(*replicas[0], "ada");
  ASSERT_EQ(ids.size(), 5);
  // There is always room to replace a state by one of the same id and size.
  EXPECT_TRUE(Put(*replicas[1], File("ada", ids[2], 77)).ok());
  EXPECT_TRUE(Remove(*replicas[2], "ada", ids[0]).ok());
  EXPECT_TRUE(Put(*replicas[1], File("ada", Id('a'))).ok());
  EXPECT_EQ(Put(*replicas[1], File("ada", Id('c'))).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(redis_.Do({"EXISTS", "aft:s:" + Id('c')}).integer, 0);
  double full = 0;
  for (const auto& replica : replicas)
    full += replica->metrics.refused(StateRefusal::kFull).Value();
  EXPECT_EQ(full, 3 * 10 - 5 + 1);
}

TEST_F(RedisStatesTest, EveryByteIsUnderASeal) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'), 12, 300)).ok());
  const std::string good = Value(Id('a'));
  double bad = 0;
  const auto expect_refused = [&](const std::string& id, const std::string& value) {
    SetValue(id, value);
    EXPECT_EQ(Find(*replica_, "ada", id).status(), kNone) << value.substr(0, 60);
    EXPECT_EQ(replica_->metrics.refused(StateRefusal::kInvalid).Value(), ++bad);
  };
  for (size_t at = 0; at < good.size(); at += at < 300 ? 1 : 17) {
    std::string changed = good;
    changed[at] ^= 1;
    expect_refused(Id('a'), changed);
  }
  for (size_t size = 1; size < good.size(); size += size < 300 ? 1 : 17) {
    expect_refused(Id('a'), good.substr(0, size));
  }
  expect_refused(Id('a'), good + "x");
  expect_refused(Id('b'), good);  // the record of another id
  ASSERT_TRUE(Put(*replica_, File("ada", StateStore::ResumePointName(Id('a')), 12, 300)).ok());
  expect_refused(Id('a'), Value(StateStore::ResumePointName(Id('a'))));
  // The summary of one state with the bytes of another one, whose lines are the same.
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'), 13, 300)).ok());
  const size_t sealed = static_cast<size_t>(StateSealer::SealedBytes(*File("", "", 12, 300).state));
  const std::string later = Value(Id('a'));
  expect_refused(Id('a'),
                 later.substr(0, later.size() - sealed) + good.substr(good.size() - sealed));
  // The summary in the place of the state.
  const size_t summary = static_cast<size_t>(StateSealer::SealedBytes(SequenceState()));
  const std::string head = good.substr(0, good.size() - sealed);
  expect_refused(Id('a'), head + head.substr(head.size() - summary));
  WaitForBytes(*replica_, 0);
  SetValue(Id('a'), good);
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
}

// The numbers are read before the seal is checked.
TEST_F(RedisStatesTest, ForgedNumbersInARecordAreRefused) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  const std::vector<std::string> lines = absl::StrSplit(Value(Id('a')), absl::MaxSplits('\n', 3));
  for (const std::string number : {"-9223372036854775808", "-1", "0", "9223372036854775807"}) {
    SetValue(Id('a'), absl::StrJoin({lines[0], number, lines[2], lines[3]}, "\n"));
    EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone) << number;
    SetValue(Id('a'), absl::StrJoin({lines[0], lines[1], number, lines[3]}, "\n"));
    EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone) << number;
  }
  // These are sealed with the right key.
  StateFolder::File file = File("ada", Id('a'));
  for (const int64_t expires : {int64_t{-1}, int64_t{1} << 44}) {
    file.ttl = milliseconds(expires);
    const std::string record = *SealRecord(sealer_, file, 0);
    EXPECT_FALSE(OpenRecordHead(sealer_, Id('a'), "ada", record, 0).ok()) << expires;
  }
}

TEST_F(RedisStatesTest, AStateWithoutMemoryIsRefusedForThatReason) {
  constexpr size_t kLarge = 1'000'000;
  const auto no_memory = StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("memory: "));
  const StateFolder::File file = File("ada", Id('a'), 12, kLarge);
  {
    const ShortMemory short_memory(kLarge / 2);
    EXPECT_THAT(Put(*replica_, file).status(), no_memory);
  }
  ASSERT_TRUE(Put(*replica_, file).ok());
  executor_memory_ = kLarge / 2;
  EXPECT_THAT(Find(*replica_, "ada", Id('a')).status(), no_memory);
  executor_memory_ = 2 * kLarge;
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
}

TEST_F(RedisStatesTest, AnotherOwnersRecordUnderOnesOwnNameIsRefused) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  ASSERT_TRUE(Put(*replica_, File("bob", Id('b'))).ok());
  std::string value = Value(Id('a'));
  for (size_t at; (at = value.find("ada")) != std::string::npos;) value.replace(at, 3, "bob");
  SetValue(Id('a'), value);
  EXPECT_EQ(Find(*replica_, "bob", Id('a')).status(), kNone);
  EXPECT_EQ(Describe(*replica_, "bob", Id('a')).status(), kNone);
  SetValue(Id('b'), Value(Id('a')));
  EXPECT_EQ(Find(*replica_, "bob", Id('b')).status(), kNone);
  EXPECT_EQ(Describe(*replica_, "bob", Id('b')).status(), kNone);
}

TEST_F(RedisStatesTest, AStateUnderAKeyThatThisServerLacksIsNotOpened) {
  const StateSealer other = SealerOf('o');
  const auto stranger = Open(other);
  ASSERT_TRUE(Put(*stranger, File("ada", Id('a'))).ok());
  const CapturedLog log;
  EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone);
  // The whole id gives access to the state.
  EXPECT_THAT(log.Text(), AllOf(HasSubstr("aaaaaaaa*"), Not(HasSubstr(Id('a')))));
  EXPECT_EQ(Remove(*replica_, "ada", Id('a')), kNone);
  EXPECT_TRUE(Find(*stranger, "ada", Id('a')).ok());
}

TEST_F(RedisStatesTest, RedisKeysOfOtherTypesAreNotStates) {
  redis_.Do({"RPUSH", "aft:s:" + Id('a'), "x"});
  EXPECT_EQ(Find(*replica_, "ada", Id('a')).status(), kNone);
  EXPECT_EQ(Describe(*replica_, "ada", Id('a')).status(), kNone);
  EXPECT_EQ(Remove(*replica_, "ada", Id('a')), kNone);
  for (const std::string key : {"x", "n", "b"}) {
    SCOPED_TRACE(key);
    redis_.Do({"FLUSHALL"});
    redis_.Do({"RPUSH", absl::StrCat("aft:", key, ":ada"), "x"});
    EXPECT_EQ(Put(*replica_, File("ada", Id('b'))).status().code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(redis_.Do({"EXISTS", "aft:s:" + Id('b')}).integer, 0);
    if (key == "b") continue;  // no list reads this key
    EXPECT_EQ(List(*replica_, "ada").status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(replica_->metrics.redis_connects.Value(), 1);
}

TEST_F(RedisStatesTest, RecordsWithInvalidNamesAreNotPut) {
  StateFolder::File file = File("two\nlines", Id('a'));
  EXPECT_EQ(Put(*replica_, file).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Put(*replica_, File("ada", "../a")).status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Put(*replica_, File(std::string(5000, 'a'), Id('a'))).status().code(),
            absl::StatusCode::kInternal);
  // An id from a client is used as the name of a key, and for nothing else.
  for (const std::string& id : {std::string("\r\nFLUSHALL\r\n"), std::string("*"),
                                std::string(1, '\0'), std::string("' .. 1")}) {
    EXPECT_EQ(Find(*replica_, "ada", id).status(), kNone);
    EXPECT_TRUE(List(*replica_, "ada", id).ok());
  }
}

TEST_F(RedisStatesTest, PrefixAndDatabaseKeepServersApart) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  config_.redis.prefix = "other:";
  const auto other = Open();
  config_.redis.prefix = "aft:";
  config_.redis.database = 3;
  const auto third = Open();
  EXPECT_EQ(Find(*other, "ada", Id('a')).status(), kNone);
  EXPECT_EQ(Find(*third, "ada", Id('a')).status(), kNone);
  ASSERT_TRUE(Put(*other, File("ada", Id('b'))).ok());
  ASSERT_TRUE(Put(*third, File("ada", Id('c'))).ok());
  EXPECT_EQ(redis_.Do({"EXISTS", "other:s:" + Id('b')}).integer, 1);
  EXPECT_THAT(*List(*replica_, "ada"), ElementsAre(Id('a')));
  EXPECT_TRUE(Find(*third, "ada", Id('c')).ok());
}

TEST_F(RedisStatesTest, AReadOnlyRedisIsConnectedToAgain) {
  redis_.Do({"REPLICAOF", "127.0.0.1", "1"});
  EXPECT_EQ(Put(*replica_, File("ada", Id('a'))).status().code(), absl::StatusCode::kUnavailable);
  redis_.Do({"REPLICAOF", "NO", "ONE"});
  EXPECT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  EXPECT_EQ(replica_->metrics.redis_connects.Value(), 2);
}

TEST_F(RedisStatesTest, AReadOnlyRedisListsStates) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  redis_.Do({"REPLICAOF", "127.0.0.1", "1"});
  const auto listed = List(*replica_, "ada");
  ASSERT_TRUE(listed.ok()) << listed.status();
  EXPECT_THAT(*listed, ElementsAre(Id('a')));
}

TEST_F(RedisStatesTest, WhileItIsDownCallsFailAtOnceAndItIsFoundAgain) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  redis_.Kill();
  const auto down = StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.redis"));
  EXPECT_THAT(Find(*replica_, "ada", Id('a')).status(), down);
  EXPECT_EQ(replica_->metrics.redis_up.Value(), 0);
  for (int i = 0; i < 100; ++i) {
    EXPECT_THAT(Put(*replica_, File("ada", Id('b'))).status(), down);
    EXPECT_THAT(Find(*replica_, "ada", Id('a')).status(), down);
    EXPECT_THAT(Describe(*replica_, "ada", Id('a')).status(), down);
    EXPECT_THAT(Remove(*replica_, "ada", Id('a')), down);
    EXPECT_THAT(List(*replica_, "ada").status(), down);
    EXPECT_THAT(replica_->states->Reserve(ClientOf("ada"), 1).status(), down);
  }
  EXPECT_GE(replica_->metrics.redis_failed(RedisFailure::kUnsent).Value(), 600);
  WaitForBytes(*replica_, 0);
  redis_.Start();
  WaitUntilUp(replica_->metrics);
  EXPECT_TRUE(Find(*replica_, "ada", Id('a')).ok());
  EXPECT_TRUE(replica_->states->Reserve(ClientOf("ada"), 1).ok());
  EXPECT_EQ(Find(*replica_, "ada", Id('b')).status(), kNone);
}

TEST_F(RedisStatesTest, RedisMayStartAfterTheServer) {
  redis_.Kill();
  const auto early = Open();
  EXPECT_EQ(Put(*early, File("ada", Id('a'))).status().code(), absl::StatusCode::kUnavailable);
  redis_.Start();
  WaitUntilUp(early->metrics);
  EXPECT_TRUE(Put(*early, File("ada", Id('a'))).ok());
}

TEST_F(RedisStatesTest, CallsAreDoneBeforeTheObjectIsDestroyed) {
  std::atomic<int> done = 0;
  constexpr int kStates = 100;  // as many as a page of the list has
  for (int i = 0; i < kStates; ++i) {
    replica_->states->Put(File("ada", absl::StrFormat("%032x", i)), {},
                          [&](const absl::StatusOr<StoredState>& stored) { done += stored.ok(); });
  }
  replica_.reset();
  EXPECT_EQ(done, kStates);
  EXPECT_EQ(List(*Open(), "ada")->size(), kStates);
}

TEST_F(RedisTest, ThePasswordIsReadFromItsFileForEachConnection) {
  const RedisServer redis({"--requirepass", "sesame "});
  config_.redis.address = redis.address();
  EXPECT_EQ(Put(*Open(), File("ada", Id('a'))).status().code(), absl::StatusCode::kUnavailable);
  config_.redis.password_file = temp_.File("password");
  WriteBytes(temp_.File("password"), "open\n");
  const auto replica = Open();
  EXPECT_EQ(Put(*replica, File("ada", Id('a'))).status().code(), absl::StatusCode::kUnavailable);
  WriteBytes(temp_.File("password"), "sesame \r\n");
  WaitUntilUp(replica->metrics);
  EXPECT_TRUE(Put(*replica, File("ada", Id('a'))).ok());
}

}  // namespace
}  // namespace aft::server
