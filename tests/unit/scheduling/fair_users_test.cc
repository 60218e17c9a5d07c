// The users of a client share its turns.
#include <chrono>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/scheduling/fair_queue.h"
#include "tests/property/random_inputs.h"
#include "tests/unit/scheduling/fair_fixture.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

class FairUsersTest : public FairFixture {
 protected:
  // `name` begins with the user, as in "u-1".
  Item& Push(const std::string& name, ServiceClass service_class = kNormal,
             const std::string& client = "client") {
    Item& item =
        items_.emplace_back(name, client, 1, service_class, name.substr(0, name.find('-')));
    queue_.Push(item, clock_.Now());
    return item;
  }
};

TEST_F(FairUsersTest, TheUserThatHasHadTheLeastGoesFirstInTheTurnsOfTheClient) {
  for (const char* name : {"u-1", "u-2", "u-3", "u-4"}) Push(name);
  for (const char* name : {"-1", "-2"}) Push(name, kNormal, "other");
  EXPECT_EQ(Run(10), "u-1");
  EXPECT_EQ(Run(10), "-1");
  for (const char* name : {"v-1", "v-2"}) Push(name);
  // v begins where u stands, and u's item came first. The other client has every second turn.
  EXPECT_THAT(RunAll(10), ElementsAre("u-2", "-2", "v-1", "u-3", "v-2", "u-4"));
}

TEST_F(FairUsersTest, AnItemThatComesBackGoesBeforeItsUsersOthersAndAfterOtherUsers) {
  Item& first = Push("u-1", kBatch);
  queue_.Serve(first, clock_.Now());
  Item& second = Push("u-2", kBatch);
  Item& other = Push("v-1", kBatch);
  queue_.Leave(other);
  queue_.PushAgain(other);
  queue_.Charge(first, 1);
  queue_.PushFront(first, clock_.Now());
  EXPECT_EQ(queue_.serving(other), 0U);
  queue_.SetClass(second, kNormal);
  queue_.SetClass(second, kBatch);
  EXPECT_THAT(RunAll(), ElementsAre("v-1", "u-1", "u-2"));
}

TEST_F(FairUsersTest, AUserThatHasWaitedForLongEnoughGoesFirst) {
  for (const char* name : {"u-0", "u-1", "v-1"}) Push(name);
  EXPECT_EQ(Run(1'000'000), "u-0");  // from here on u has had far more than all others
  int turns = 0;
  while (NextName() != "u-1") {
    ASSERT_LT(++turns, 100);
    Push(absl::StrCat("new", turns));  // a new user each time
    Run();
    clock_.Advance(seconds(1));
  }
  EXPECT_EQ(turns, FairQueue::kOverdueAges * kAge / seconds(1));
}

TEST_F(FairUsersTest, ALimitedNumberOfUsersThatHaveLeftIsRemembered) {
  Push("z-1", kBatch);  // waits all the time
  Push("u-1");
  EXPECT_EQ(Run(100), "u-1");
  const auto next_of_u_and_v = [&] {
    Item& u = Push("u-2");
    Item& v = Push("v-1");
    const std::string next = NextName();
    queue_.Leave(u);
    queue_.Leave(v);
    return next;
  };
  EXPECT_EQ(next_of_u_and_v(), "v-1");
  for (size_t i = 0; i < FairQueue::kMaxIdle; ++i) queue_.Leave(Push(absl::StrCat("x", i)));
  EXPECT_EQ(next_of_u_and_v(), "u-2");
}

// However many items one user has, an item of another user waits for at most one of them.
TEST_F(FairUsersTest, AFloodOfOneUserDoesNotDelayAnother) {
  TestRandom random;
  for (int i = 0; i < 1000; ++i) Push(absl::StrCat("flood-", i));
  int quiet = 0;   // items of the other user
  int waited = 0;  // turns that the newest of these has waited
  for (int turn = 0; turn < 900; ++turn) {
    if (waited == 0 && random.Below(3) == 0) {
      Push(absl::StrCat("quiet-", ++quiet));
      waited = 1;
    }
    const std::string served = Run(10);
    if (waited == 0) continue;
    ASSERT_LE(waited++, 2);
    if (served == absl::StrCat("quiet-", quiet)) waited = 0;
  }
  EXPECT_GT(quiet, 100);
}

}  // namespace
}  // namespace aft::server
