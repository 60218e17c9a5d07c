#include "server/states/state_store.h"

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "tests/support/manual_clock.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr milliseconds kOneHour{3'600'000};

class StateStoreTest : public testing::Test {
 protected:
  StateStoreTest() {
    config_.max_bytes = 100'000;
    config_.max_client_bytes = 60'000;
  }

  StateStore& store() {
    if (!store_) store_.emplace(config_, metrics_, [this] { return clock_.Now(); });
    return *store_;
  }

  static Client Named(const std::string& name) {
    Client client;
    client.name = name;
    return client;
  }

  // Puts a state for the owner of that name. REQUIRES: there is room.
  StoredState Put(const std::string& owner, int64_t tokens, milliseconds ttl = kOneHour) {
    auto room = store().Reserve(Named(owner), 5000);
    EXPECT_TRUE(room.ok()) << room.status();
    auto state = StateBudget::Hold(*std::move(room), StateAfter(tokens));
    EXPECT_TRUE(state.ok()) << state.status();
    return store().Put(owner, StateStore::NewId(), "model", *std::move(state), ttl);
  }

  ManualClock clock_;
  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  StatesConfig config_;
  std::optional<StateStore> store_;
};

TEST_F(StateStoreTest, KeepsStatesUnderIdsThatCannotBeGuessed) {
  std::set<std::string> ids;
  for (int i = 0; i < 10; ++i) {
    const StoredState stored = Put("a", i);
    EXPECT_THAT(stored.id, SizeIs(StateStore::kIdBytes));
    EXPECT_EQ(stored.id.find_first_not_of("0123456789abcdef"), std::string::npos);
    EXPECT_TRUE(ids.insert(stored.id).second);
    const auto found = store().Find("a", stored.id);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ(found->state->tokens, i);
    EXPECT_EQ(found->state->snapshot, std::string(1000, 's'));
    EXPECT_EQ(found->model, "model");
    EXPECT_EQ(found->bytes, StateBytes(*found->state));
    EXPECT_EQ(found->expires - clock_.Now(), kOneHour);
  }
  EXPECT_EQ(metrics_.states.Value(), 10);
  EXPECT_EQ(metrics_.stored.Value(), 10);
}

TEST_F(StateStoreTest, AStateOfAnotherClientIsAsUnknownAsAMissingOne) {
  const StoredState stored = Put("a", 1);
  const absl::Status none = store().Find("b", std::string(32, '0')).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Find("b", stored.id).status(), none);
  EXPECT_EQ(store().Delete("b", stored.id), none);
  EXPECT_THAT(store().List("b", "", 10), IsEmpty());
  EXPECT_TRUE(store().Find("a", stored.id).ok());
  EXPECT_EQ(metrics_.refused(StateRefusal::kUnknown).Value(), 2);  // a removal does not count
}

TEST_F(StateStoreTest, AStateExpiresWhenItsTimeIsOverAndNotBefore) {
  StoredState shorter = Put("a", 1, milliseconds(1000));
  shorter.state.reset();  // it is not in use
  const StoredState longer = Put("a", 2, milliseconds(1001));
  clock_.Advance(milliseconds(999));
  EXPECT_TRUE(store().Find("a", shorter.id).ok());
  clock_.Advance(milliseconds(1));
  EXPECT_THAT(store().Find("a", shorter.id).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("expired")));
  EXPECT_TRUE(store().Find("a", longer.id).ok());
  // Other clients do not learn that it existed.
  EXPECT_THAT(store().Find("b", shorter.id).status(),
              StatusIs(absl::StatusCode::kNotFound, "no state of this id"));
  EXPECT_EQ(metrics_.expired.Value(), 1);
  EXPECT_EQ(metrics_.states.Value(), 1);
  EXPECT_EQ(metrics_.refused(StateRefusal::kExpired).Value(), 1);
  EXPECT_EQ(metrics_.bytes.Value(), static_cast<double>(longer.bytes));
}

TEST_F(StateStoreTest, StatesExpireWithoutALookUp) {
  const auto bytes = static_cast<double>(Put("a", 1, milliseconds(10)).bytes);
  EXPECT_EQ(metrics_.bytes.Value(), bytes);
  clock_.Advance(milliseconds(10));
  store().Expire();
  EXPECT_EQ(metrics_.bytes.Value(), 0);
}

TEST_F(StateStoreTest, AStateThatExpiredLongAgoIsForgotten) {
  const StoredState first = Put("a", 0, milliseconds(1));
  clock_.Advance(milliseconds(1));
  for (int i = 0; i < 4096; ++i) {
    Put("a", i, milliseconds(1));
    clock_.Advance(milliseconds(1));
  }
  store().Expire();
  EXPECT_EQ(store().Find("a", first.id).status().message(), "no state of this id");
}

TEST_F(StateStoreTest, ADeletedStateIsGone) {
  const StoredState stored = Put("a", 1);
  EXPECT_EQ(store().Delete("a", stored.id), absl::OkStatus());
  EXPECT_THAT(store().Delete("a", stored.id),
              StatusIs(absl::StatusCode::kNotFound, "no state of this id"));
  EXPECT_FALSE(store().Find("a", stored.id).ok());
  EXPECT_EQ(metrics_.states.Value(), 0);
  clock_.Advance(kOneHour);
  store().Expire();
  EXPECT_EQ(metrics_.expired.Value(), 0);
}

TEST_F(StateStoreTest, ListsAnOwnersStatesPageByPage) {
  std::set<std::string> ids;
  for (int i = 0; i < 5; ++i) ids.insert(Put("a", i).id);
  Put("b", 9);
  std::vector<std::string> listed;
  for (std::string after;;) {
    const std::vector<StoredState> page = store().List("a", after, 2);
    if (page.empty()) break;
    EXPECT_LE(page.size(), 2U);
    for (const StoredState& stored : page) listed.push_back(stored.id);
    after = listed.back();
  }
  EXPECT_EQ(listed, std::vector<std::string>(ids.begin(), ids.end()));
}

TEST_F(StateStoreTest, RoomBeyondTheBudgetIsRefusedBeforeThereIsAState) {
  auto first = store().Reserve(Named("a"), 60'000);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(metrics_.bytes.Value(), 60'000);
  EXPECT_EQ(metrics_.limit.Value(), 100'000);
  EXPECT_THAT(store().Reserve(Named("a"), 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("states: 1 bytes more than 60000 of this client's"),
                             HasSubstr("states.max_client_bytes=60000"))));
  EXPECT_TRUE(store().Reserve(Named("b"), 40'000).ok());  // the room is given back at once
  auto second = store().Reserve(Named("b"), 40'000);
  ASSERT_TRUE(second.ok());
  EXPECT_THAT(store().Reserve(Named("c"), 1).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("those of all clients exceed states.max_bytes=100000")));
  EXPECT_EQ(metrics_.refused(StateRefusal::kFull).Value(), 2);
  first = StateStore::Room();
  EXPECT_TRUE(store().Reserve(Named("a"), 60'000).ok());
}

TEST_F(StateStoreTest, AStateThatNoBudgetCouldHoldIsInvalid) {
  EXPECT_TRUE(store().CheckFits(60'000).ok());
  EXPECT_THAT(store().CheckFits(60'001), StatusIs(absl::StatusCode::kInvalidArgument,
                                                  HasSubstr("states.max_client_bytes=60000")));
  store_.reset();
  config_.max_client_bytes = 200'000;
  EXPECT_TRUE(store().CheckFits(100'000).ok());
  EXPECT_THAT(store().CheckFits(100'001),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("states.max_bytes=100000")));
  EXPECT_EQ(metrics_.refused(StateRefusal::kFull).Value(), 0);
}

TEST_F(StateStoreTest, NoClientHasMoreThanHalfByDefault) {
  config_.max_client_bytes = 0;
  EXPECT_TRUE(store().Reserve(Named("a"), 50'000).ok());
  EXPECT_FALSE(store().Reserve(Named("a"), 50'001).ok());
}

TEST_F(StateStoreTest, AStateTakesItsOwnBytesAndGivesThemBackWithItsLastUser) {
  StoredState stored = Put("a", 1);
  EXPECT_LT(stored.bytes, 5000);
  EXPECT_EQ(metrics_.bytes.Value(), static_cast<double>(stored.bytes));
  auto used = store().Find("a", stored.id);
  ASSERT_TRUE(store().Delete("a", stored.id).ok());
  EXPECT_EQ(metrics_.bytes.Value(), static_cast<double>(stored.bytes));
  EXPECT_EQ(used->state->tokens, 1);
  stored.state.reset();
  store_.reset();  // the store may be destroyed first
  EXPECT_EQ(metrics_.bytes.Value(), static_cast<double>(used->bytes));
  used->state.reset();
  EXPECT_EQ(metrics_.bytes.Value(), 0);
}

TEST_F(StateStoreTest, AStateThatIsLargerThanItsRoomIsNotKept) {
  auto room = store().Reserve(Named("a"), 1200);
  ASSERT_TRUE(room.ok());
  EXPECT_EQ(StateBudget::Hold(*std::move(room), StateAfter(1)).status().code(),
            absl::StatusCode::kInternal);
  EXPECT_EQ(metrics_.bytes.Value(), 0);
}

TEST_F(StateStoreTest, ANewStateOfAnIdReplacesTheLastOneAndItsExpiry) {
  const std::string id = StateStore::ResumePointName(StateStore::NewId());
  const auto put = [&](const std::string& owner, int64_t tokens, milliseconds ttl) {
    auto state = StateBudget::Hold(*store().Reserve(Named(owner), 5000), StateAfter(tokens));
    return store().Put(owner, id, "model", *std::move(state), ttl);
  };
  const StoredState first = put("a", 1, milliseconds(100));
  put("b", 9, milliseconds(200));
  clock_.Advance(milliseconds(50));
  put("a", 2, milliseconds(100));
  EXPECT_EQ(metrics_.states.Value(), 2);
  EXPECT_EQ(store().Find("a", id)->state->tokens, 2);
  EXPECT_EQ(first.state->tokens, 1);  // it does not change where it is in use
  clock_.Advance(milliseconds(99));
  EXPECT_EQ(store().Find("a", id)->state->tokens, 2);
  clock_.Advance(milliseconds(1));
  EXPECT_EQ(store().Find("a", id).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(store().Find("b", id)->state->tokens, 9);
  EXPECT_EQ(metrics_.expired.Value(), 1);
}

TEST_F(StateStoreTest, RecognizesTheNamesOfStates) {
  EXPECT_TRUE(StateStore::IsName(StateStore::NewId()));
  EXPECT_TRUE(StateStore::IsName(StateStore::ResumePointName(StateStore::NewId())));
  for (const std::string& name :
       {std::string(), std::string(31, 'a'), std::string(33, 'a'), 's' + std::string(32, 'a'),
        'r' + std::string(31, 'a'), "rr" + std::string(32, 'a'), std::string(32, 'A'),
        std::string(31, 'a') + "/"}) {
    EXPECT_FALSE(StateStore::IsName(name)) << name;
  }
}

TEST_F(StateStoreTest, HoldsItsBudgetUnderManyThreads) {
  config_.max_client_bytes = 100'000;
  store();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([this, t] {
      const std::string owner(1, static_cast<char>('a' + t % 2));
      for (int i = 0; i < 300; ++i) {
        auto room = store().Reserve(Named(owner), 30'000);
        if (!room.ok()) continue;
        auto state = StateBudget::Hold(*std::move(room), StateAfter(i));
        ASSERT_TRUE(state.ok());
        const std::string id = i % 5 == 0 ? std::string(32, 'a') : StateStore::NewId();
        store().Put(owner, id, "model", *std::move(state), milliseconds(5));
        EXPECT_LE(metrics_.bytes.Value(), 100'000);
        if (i % 3 == 0) clock_.Advance(milliseconds(1));
        if (i % 2 == 0) store().Delete(owner, id).IgnoreError();
        store().Find(owner, id).status().IgnoreError();
        store().List(owner, "", 5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  clock_.Advance(kOneHour);
  store().Expire();
  EXPECT_EQ(metrics_.bytes.Value(), 0);
  EXPECT_EQ(metrics_.states.Value(), 0);
}

}  // namespace
}  // namespace aft::server
