// States in a real Redis that has no memory left.
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "tests/unit/states/redis_fixture.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class FullRedisTest : public OneRedisTest {
 protected:
  void SetMaxMemory(const std::string& bytes) const {
    redis_.Do({"CONFIG", "SET", "maxmemory", bytes});
  }
  bool Exists(const std::string& id) const {
    return redis_.Do({"EXISTS", "aft:s:" + id}).integer > 0;
  }
  void ExpectNoRoom() {
    EXPECT_THAT(Put(*replica_, File("ada", Id('d'))).status(),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no memory left")));
    EXPECT_FALSE(Exists(Id('d')));
  }
};

TEST_F(FullRedisTest, IsNamed) {
  SetMaxMemory("1");
  ExpectNoRoom();
  EXPECT_EQ(replica_->metrics.refused(StateRefusal::kUnwritten).Value(), 1);
  EXPECT_EQ(replica_->metrics.redis_failed(RedisFailure::kRefused).Value(), 1);
  SetMaxMemory("0");
  EXPECT_EQ(BytesOf("ada"), 0);
  EXPECT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
}

TEST_F(FullRedisTest, CanBeEmptied) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  ASSERT_TRUE(Put(*replica_, File("ada", Id('b'))).ok());
  SetMaxMemory("1");
  EXPECT_EQ(Remove(*replica_, "ada", Id('a')), absl::OkStatus());
  EXPECT_FALSE(Exists(Id('a')));
  EXPECT_EQ(BytesOf("ada"), StateBytes(*File("ada", Id('b')).state));
  ExpectNoRoom();
}

TEST_F(FullRedisTest, ListsStatesAndForgetsExpiredOnes) {
  ASSERT_TRUE(Put(*replica_, File("ada", Id('a'))).ok());
  const auto brief = std::chrono::milliseconds(5);
  ASSERT_TRUE(Put(*replica_, File("ada", Id('c'), 1, 5000, brief)).ok());
  SetMaxMemory("1");
  while (Exists(Id('c'))) {
  }
  ExpectNoRoom();  // a script that removes the expired state first may still write no other one
  do {             // the clock of Redis may be a little late
    const auto listed = List(*replica_, "ada");
    ASSERT_TRUE(listed.ok()) << listed.status();
    EXPECT_THAT(*listed, ElementsAre(Id('a')));
  } while (redis_.Do({"ZCARD", "aft:x:ada"}).integer > 1);
  EXPECT_EQ(BytesOf("ada"), StateBytes(*File("ada", Id('a')).state));
}

}  // namespace
}  // namespace aft::server
