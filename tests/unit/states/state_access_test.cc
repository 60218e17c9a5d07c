// Resume points: states that are written again and again under one id.
#include "server/states/state_access.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "tests/support/redis_server.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

enum class Place { kMemory, kFolder, kRedis };

class ResumePointTest : public testing::TestWithParam<Place> {
 protected:
  ResumePointTest() {
    config_.max_bytes = 20'000;
    config_.max_client_bytes = 10'000;
    WriteBytes(temp_.File("key"), std::string(32, 'k'));
    config_.key_files = {temp_.File("key")};
    if (GetParam() == Place::kFolder) {
      config_.folder = temp_.File("states");
      std::filesystem::create_directory(config_.folder);
    } else if (GetParam() == Place::kRedis) {
      redis_.emplace();
      config_.redis.address = redis_->address();
      config_.redis.max_client_bytes = 8'000;
      config_.redis.timeout = std::chrono::minutes(1);
    }
    ada_.name = "ada";
    bob_.name = "bob";
    Open();
  }

  // Opens the states as a new process does.
  void Open() {
    access_.reset();
    access_ = OpenStates(config_, metrics_);
  }

  absl::Status Put(const std::string& id, SequenceState state) {
    return Await<absl::Status>([&](const auto& done) {
      access_->PutResumePoint(ada_, "austen", id, std::move(state), done);
    });
  }
  using Looked = absl::StatusOr<std::shared_ptr<const SequenceState>>;
  Looked Find(const Client& client, const std::string& id) {
    return Await<Looked>([&](const auto& done) { access_->FindResumePoint(client, id, done); });
  }
  Looked FindPrevious(const Client& client, const std::string& id) {
    v1::Previous previous;
    previous.set_state_id(id);
    return Await<Looked>([&](const auto& done) { access_->Find(client, previous, done); });
  }
  template <typename Request, typename Response>
  absl::StatusOr<Response> Ask(void (StateAccess::*method)(const Client&, const Request&,
                                                           const StateAccess::Answer<Response>&),
                               const Request& request) {
    return Await<absl::StatusOr<Response>>(
        [&](const auto& done) { ((*access_).*method)(ada_, request, done); });
  }

  TempFolder temp_;
  std::optional<RedisServer> redis_;
  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  StatesConfig config_;
  Client ada_;
  Client bob_;
  std::unique_ptr<StateAccess> access_;
};

TEST_P(ResumePointTest, TheNewestReplacesTheLastOne) {
  const std::string id = StateAccess::NewResumeId();
  EXPECT_EQ(Find(ada_, id).status().code(), absl::StatusCode::kNotFound);
  for (const int64_t tokens : {10, 20, 30}) {
    ASSERT_TRUE(Put(id, StateAfter(tokens)).ok());
    const auto found = Find(ada_, id);
    ASSERT_TRUE(found.ok()) << found.status();
    EXPECT_EQ((*found)->tokens, tokens);
    EXPECT_EQ((*found)->snapshot, std::string(1000, 's'));
  }
  EXPECT_EQ(metrics_.store_seconds.Collect().histogram.sample_count, 3);
  EXPECT_EQ(metrics_.restore_seconds.Collect().histogram.sample_count, 3);
  const bool in_memory = GetParam() != Place::kRedis;
  const double bytes = in_memory ? static_cast<double>(StateBytes(StateAfter(1))) : 0;
  while (metrics_.bytes.Value() != bytes) std::this_thread::yield();
  Open();
  const auto found = Find(ada_, id);
  EXPECT_EQ(found.ok(), GetParam() != Place::kMemory);
  if (found.ok()) {
    EXPECT_EQ((*found)->tokens, 30);
  }
}

// A stream that its application cancels leaves its resume point, which takes its client's room.
TEST_P(ResumePointTest, ItIsKeptForFiveMinutesAtMost) {
  if (GetParam() == Place::kMemory) return;  // its expiry cannot be seen
  for (const milliseconds default_ttl : {milliseconds(60'000), milliseconds(3'600'000)}) {
    config_.default_ttl = default_ttl;
    Open();
    const std::string id = StateAccess::NewResumeId();
    ASSERT_TRUE(Put(id, StateAfter(10)).ok());
    const std::string name = StateStore::ResumePointName(id);
    milliseconds left{};
    if (GetParam() == Place::kFolder) {
      // The second line of its file is its expiry in ms since 1970.
      const std::vector<std::string> lines = absl::StrSplit(
          ReadBytes(config_.folder + "/" + name + ".state"), absl::MaxSplits('\n', 2));
      int64_t expires = 0;
      ASSERT_TRUE(absl::SimpleAtoi(lines[1], &expires));
      left = milliseconds(expires) - std::chrono::duration_cast<milliseconds>(
                                         std::chrono::system_clock::now().time_since_epoch());
    } else {
      left = milliseconds(redis_->Do({"PTTL", "aft:s:" + name}).integer);
    }
    EXPECT_LE(left, std::min(default_ttl, milliseconds(300'000)));
    EXPECT_GT(left, milliseconds(0));
  }
}

TEST_P(ResumePointTest, NoOtherClientAndNoOtherRequestFindsIt) {
  const std::string id = StateAccess::NewResumeId();
  ASSERT_TRUE(Put(id, StateAfter(10)).ok());
  const absl::Status none = Find(ada_, StateAccess::NewResumeId()).status();
  EXPECT_THAT(none, StatusIs(absl::StatusCode::kNotFound, StartsWith("resume_id: ")));
  EXPECT_EQ(Find(bob_, id).status(), none);
  EXPECT_EQ(FindPrevious(ada_, id).status().code(), absl::StatusCode::kNotFound);
  v1::StateServiceGetRequest get;
  get.set_id(id);
  EXPECT_EQ(Ask(&StateAccess::Get, get).status().code(), absl::StatusCode::kNotFound);
  v1::StateServiceDeleteRequest remove;
  remove.set_id(id);
  EXPECT_EQ(Ask(&StateAccess::Delete, remove).status().code(), absl::StatusCode::kNotFound);
  const std::string name = StateStore::ResumePointName(id);
  EXPECT_EQ(FindPrevious(ada_, name).status().code(), absl::StatusCode::kInvalidArgument);
  get.set_id(name);
  EXPECT_EQ(Ask(&StateAccess::Get, get).status().code(), absl::StatusCode::kInvalidArgument);
  const auto list = Ask(&StateAccess::List, v1::StateServiceListRequest());
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->states(), IsEmpty());
  EXPECT_TRUE(Find(ada_, id).ok());
}

TEST_P(ResumePointTest, WithoutRoomTheLastOneStays) {
  const std::string id = StateAccess::NewResumeId();
  ASSERT_TRUE(Put(id, StateAfter(10, 2000)).ok());
  // With a sealed copy there can never be room for it.
  EXPECT_THAT(Put(id, StateAfter(20, 9000)),
              StatusIs(GetParam() == Place::kMemory ? absl::StatusCode::kResourceExhausted
                                                    : absl::StatusCode::kInvalidArgument,
                       HasSubstr("max_client_bytes")));
  EXPECT_EQ((*Find(ada_, id))->tokens, 10);
  const double bytes =
      GetParam() != Place::kRedis ? static_cast<double>(StateBytes(StateAfter(10, 2000))) : 0;
  while (metrics_.bytes.Value() != bytes) std::this_thread::yield();
  ASSERT_TRUE(Put(id, StateAfter(30, 2000)).ok());
  EXPECT_EQ((*Find(ada_, id))->tokens, 30);
}

TEST_P(ResumePointTest, ASealedCopyCountsInTheBudgetWhileItExists) {
  const std::string id = StateAccess::NewResumeId();
  const absl::Status large =
      Put(id, StateAfter(10, 6000));  // there is room for it, and not for two
  if (GetParam() == Place::kMemory) {
    EXPECT_TRUE(large.ok()) << large;
    return;
  }
  EXPECT_THAT(large, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_client_bytes")));
  ASSERT_TRUE(Put(id, StateAfter(20, 2000)).ok());
  const bool in_memory = GetParam() != Place::kRedis;
  const double bytes = in_memory ? static_cast<double>(StateBytes(StateAfter(20, 2000))) : 0;
  while (metrics_.bytes.Value() != bytes) std::this_thread::yield();
}

TEST_P(ResumePointTest, ARemovedResumePointIsGoneEvenIfItIsBeingPut) {
  const std::string id = StateAccess::NewResumeId();
  std::promise<absl::Status> put;
  access_->PutResumePoint(ada_, "austen", id, StateAfter(10),
                          [&](const absl::Status& status) { put.set_value(status); });
  access_->RemoveResumePoint(ada_, id);
  EXPECT_TRUE(put.get_future().get().ok());
  ASSERT_TRUE(Put(StateAccess::NewResumeId(), StateAfter(1)).ok());  // after the removal
  EXPECT_EQ(Find(ada_, id).status().code(), absl::StatusCode::kNotFound);
  access_->RemoveResumePoint(ada_, id);
  Open();
  EXPECT_EQ(Find(ada_, id).status().code(), absl::StatusCode::kNotFound);
}

TEST_P(ResumePointTest, AServerWithoutStatesSaysSo) {
  config_.max_bytes = 0;
  config_.folder.clear();
  config_.redis.address.clear();
  Open();
  const std::string id = StateAccess::NewResumeId();
  EXPECT_EQ(Put(id, StateAfter(1)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Find(ada_, id).status().code(), absl::StatusCode::kFailedPrecondition);
  access_->RemoveResumePoint(ada_, id);
}

INSTANTIATE_TEST_SUITE_P(Places, ResumePointTest,
                         testing::Values(Place::kMemory, Place::kFolder, Place::kRedis));

}  // namespace
}  // namespace aft::server
