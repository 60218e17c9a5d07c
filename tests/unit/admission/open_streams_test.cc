// Which stream gives way when too many are open.
#include "server/admission/open_streams.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OpenStreamsTest : public testing::Test {
 protected:
  class Stream final : public OpenStream {
   public:
    Stream(std::string name, std::vector<std::string>& ended)
        : name_(std::move(name)), ended_(ended) {}
    void EndWhenIdle(const absl::Status& why) override {
      ended_.push_back(name_);
      status = why;
    }

    absl::Status status;

   private:
    const std::string name_;
    std::vector<std::string>& ended_;
  };

  // Adds a stream. The first letter of its name is its client.
  absl::Status Add(const std::string& name) {
    streams_[name] = std::make_shared<Stream>(name, ended_);
    return open_.Add(streams_[name], name.substr(0, 1));
  }
  void SetIdle(const std::string& name, bool idle) { open_.SetIdle(streams_[name].get(), idle); }
  void Remove(const std::string& name) { open_.Remove(streams_[name].get()); }
  double Open() const { return metrics_.open.Value(); }

  prometheus::Registry registry_;
  OpenStreamMetrics metrics_{registry_, "things"};
  std::map<std::string, std::shared_ptr<Stream>> streams_;
  std::vector<std::string> ended_;
  OpenStreams open_{"things", /*most=*/6, /*most_of_client=*/4, metrics_};
};

TEST_F(OpenStreamsTest, NoStreamGivesWayWhileThereIsRoom) {
  for (const char* name : {"a1", "a2", "a3", "a4", "b1", "b2"}) EXPECT_TRUE(Add(name).ok());
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(Open(), 6);
  Remove("a1");
  EXPECT_EQ(Open(), 5);
  EXPECT_TRUE(Add("c1").ok());
  EXPECT_THAT(ended_, IsEmpty());
  EXPECT_EQ(metrics_.gave_way.Value(), 0);
}

TEST_F(OpenStreamsTest, BeyondItsOwnBoundAClientsLongestIdleStreamGivesWay) {
  for (const char* name : {"b1", "a1", "a2", "a3", "a4"}) ASSERT_TRUE(Add(name).ok());
  SetIdle("a1", false);  // a1 has become idle after the others
  SetIdle("a1", true);
  EXPECT_TRUE(Add("a5").ok());
  EXPECT_TRUE(Add("a6").ok());
  EXPECT_THAT(ended_, ElementsAre("a2", "a3"));
  EXPECT_THAT(streams_["a2"]->status,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limits.max_things")));
  EXPECT_EQ(Open(), 5);
  EXPECT_EQ(metrics_.gave_way.Value(), 2);
}

TEST_F(OpenStreamsTest, WhenAllPlacesAreTakenTheClientWithMostStreamsGivesWay) {
  for (const char* name : {"b1", "a1", "a2", "a3", "c1", "c2"}) ASSERT_TRUE(Add(name).ok());
  EXPECT_TRUE(Add("d1").ok());
  EXPECT_THAT(ended_, ElementsAre("a1"));  // not b1, which has been idle for longer
  EXPECT_TRUE(Add("d2").ok());  // a, c and d have two each now, and a2 has been idle for longest
  EXPECT_THAT(ended_, ElementsAre("a1", "a2"));
}

TEST_F(OpenStreamsTest, AClientThatWouldHaveMostGivesWayToItself) {
  for (const char* name : {"b1", "b2", "a1", "a2", "a3", "c1"}) ASSERT_TRUE(Add(name).ok());
  EXPECT_TRUE(Add("a4").ok());
  EXPECT_TRUE(Add("a5").ok());
  EXPECT_TRUE(Add("a6").ok());
  EXPECT_THAT(ended_, ElementsAre("a1", "a2", "a3"));
}

TEST_F(OpenStreamsTest, AStreamInTheMiddleOfARequestNeverGivesWay) {
  for (const char* name : {"a1", "a2", "a3", "a4", "b1", "b2"}) ASSERT_TRUE(Add(name).ok());
  for (const char* name : {"a1", "a2", "a3", "a4"}) SetIdle(name, false);
  EXPECT_THAT(Add("a5"), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("limits.max_client_things")));
  EXPECT_TRUE(Add("c1").ok());  // a has no idle stream, and b has the most of the others
  EXPECT_THAT(ended_, ElementsAre("b1"));
  SetIdle("b2", false);
  SetIdle("c1", false);
  EXPECT_THAT(Add("d1"), StatusIs(absl::StatusCode::kResourceExhausted,
                                  HasSubstr("limits.max_things: 6 are open")));
  EXPECT_THAT(ended_, ElementsAre("b1"));
  EXPECT_EQ(Open(), 6);
  SetIdle("a3", true);
  EXPECT_TRUE(Add("d1").ok());
  EXPECT_THAT(ended_, ElementsAre("b1", "a3"));
}

// The client's own streams are all busy, so it would close the idle streams of others one by one.
TEST_F(OpenStreamsTest, NoClientGivesWayToOneThatHasMore) {
  for (const char* name : {"a1", "a2", "a3", "b1", "c1", "d1"}) ASSERT_TRUE(Add(name).ok());
  for (const char* name : {"a1", "a2", "a3"}) SetIdle(name, false);
  EXPECT_THAT(Add("a4"),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limits.max_things")));
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(OpenStreamsTest, StreamsThatGaveWayOrWereRefusedAreNotCounted) {
  for (const char* name : {"a1", "a2", "a3", "a4", "a5"}) ASSERT_TRUE(Add(name).ok());
  EXPECT_THAT(ended_, ElementsAre("a1"));
  SetIdle("a1", false);
  SetIdle("a1", true);
  Remove("a1");
  for (const char* name : {"a2", "a3", "a4", "a5"}) SetIdle(name, false);
  EXPECT_FALSE(Add("a6").ok());
  Remove("a6");
  EXPECT_EQ(Open(), 4);
  for (const char* name : {"a2", "a3", "a4", "a5"}) Remove(name);
  EXPECT_EQ(Open(), 0);
  // Only the test still holds the streams.
  for (const auto& [name, stream] : streams_) EXPECT_EQ(stream.use_count(), 1) << name;
}

TEST_F(OpenStreamsTest, AClientMayHaveAsManyStreamsAsBeforeItsRefusals) {
  for (const char* name : {"a1", "a2", "a3", "a4"}) ASSERT_TRUE(Add(name).ok());
  for (const char* name : {"a1", "a2", "a3", "a4"}) SetIdle(name, false);
  for (const char* name : {"a5", "a6", "a7"}) EXPECT_FALSE(Add(name).ok());
  for (const char* name : {"a1", "a2", "a3", "a4"}) Remove(name);
  for (const char* name : {"a1", "a2", "a3", "a4"}) EXPECT_TRUE(Add(name).ok());
  EXPECT_THAT(ended_, IsEmpty());
}

TEST_F(OpenStreamsTest, OneClientKeepsItsStreamWhateverAnotherOneOpens) {
  ASSERT_TRUE(Add("b1").ok());
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(Add(absl::StrCat("a", i)).ok());
  EXPECT_EQ(ended_.size(), 96U);
  EXPECT_TRUE(streams_["b1"]->status.ok());
  EXPECT_EQ(Open(), 5);
}

TEST_F(OpenStreamsTest, AfterEndAllNewStreamsAreRefused) {
  ASSERT_TRUE(Add("a1").ok());
  ASSERT_TRUE(Add("b1").ok());
  open_.EndAll();
  EXPECT_EQ(ended_.size(), 2U);
  EXPECT_THAT(streams_["a1"]->status,
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
  EXPECT_THAT(Add("c1"), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("shutting down")));
}

}  // namespace
}  // namespace aft::server
