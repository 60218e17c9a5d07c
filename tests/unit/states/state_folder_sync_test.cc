// A folder of states whose disk fails, also after a file has its name, or has too little room.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/states/local_states.h"
#include "server/states/state_budget.h"
#include "server/states/state_folder.h"
#include "server/states/state_sealer.h"
#include "server/states/state_store.h"
#include "tests/support/captured_log.h"
#include "tests/support/manual_clock.h"
#include "tests/support/states.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

std::atomic<bool> refuses_to_sync_folders = false;

class StateFolderDiskTest : public testing::Test {
 protected:
  void SetUp() override {
    WriteBytes(folder_.File("key"), std::string(32, 'k'));
    auto sealer = StateSealer::Create({folder_.File("key")});
    ASSERT_TRUE(sealer.ok()) << sealer.status();
    sealer_.emplace(*std::move(sealer));
    auto states = StateFolder::Open(folder_.path(), *sealer_, metrics_,
                                    {.steady = [this] { return clock_.Now(); }});
    ASSERT_TRUE(states.ok()) << states.status();
    states_ = *std::move(states);
  }

  static StateFolder::File File(const std::string& id) {
    return {.id = id,
            .client = "ada",
            .owner = "",
            .model = "austen",
            .ttl = std::chrono::hours(1),
            .state = std::make_shared<const SequenceState>(StateAfter(1))};
  }
  bool Writes(const std::string& id) {
    return Await<absl::Status>([&](const auto& done) { states_->Write(File(id), done); }).ok();
  }
  // Returns when all removals of expired files that were begun have ended.
  void Expire() {
    states_->Expire();
    const std::string none(32, 'f');
    ASSERT_TRUE(Await<absl::Status>([&](const auto& done) { states_->Remove(none, done); }).ok());
  }

  const TempFolder folder_;
  ManualClock clock_;
  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  std::optional<StateSealer> sealer_;
  std::unique_ptr<StateFolder> states_;
};

// The next start would load the file of a state whose id no client knows. For a resume point, the
// new file will do as well as the one that it replaced.
TEST_F(StateFolderDiskTest, AFileThatIsNotOnTheDiskIsRemovedUnlessItReplacedAnother) {
  const std::string id(32, 'a');
  const std::string path = folder_.File(id + ".state");
  refuses_to_sync_folders = true;
  EXPECT_FALSE(Writes(id));
  EXPECT_FALSE(std::filesystem::exists(path));
  refuses_to_sync_folders = false;
  EXPECT_TRUE(Writes(id));
  refuses_to_sync_folders = true;
  EXPECT_FALSE(Writes(id));
  refuses_to_sync_folders = false;
  EXPECT_TRUE(std::filesystem::exists(path));
}

TEST_F(StateFolderDiskTest, AnExpiredFileThatCannotBeRemovedIsRemovedAMinuteLater) {
  const std::string id(32, 'a');
  const std::string path = folder_.File(id + ".state");
  ASSERT_TRUE(Writes(id));
  std::filesystem::rename(path, folder_.File("away"));
  std::filesystem::create_directory(path);  // not even root can remove it like a file
  clock_.Advance(std::chrono::hours(2));
  const CapturedLog log;
  Expire();
  Expire();  // too early to try again
  EXPECT_EQ(log.Lines("states.remove_failed").size(), 1U);
  std::filesystem::remove(path);
  std::filesystem::rename(folder_.File("away"), path);
  Expire();
  EXPECT_TRUE(std::filesystem::exists(path));
  clock_.Advance(std::chrono::minutes(1));
  Expire();
  EXPECT_FALSE(std::filesystem::exists(path));
}

// With resume points, a full disk fails a write of each stream every few milliseconds.
TEST_F(StateFolderDiskTest, TheLogCountsTheFailedWritesThatItLeavesOut) {
  constexpr int kWrites = 50;
  const TempFolder folder;
  StatesConfig config;
  config.max_bytes = 100'000;
  config.folder = folder.path();
  auto states = LocalStates::Create(config, *sealer_, metrics_);
  ASSERT_TRUE(states.ok()) << states.status();
  const CapturedLog log;
  refuses_to_sync_folders = true;
  for (int i = 0; i < kWrites; ++i) {
    const auto put = Await<absl::StatusOr<StoredState>>([&](const auto& done) {
      (*states)->Put(File(std::string(32, 'a')), StateBudget::Room(), done);
    });
    EXPECT_EQ(put.status().code(), absl::StatusCode::kUnavailable);
  }
  refuses_to_sync_folders = false;
  double failed = 0;
  for (const LogLine& line : log.Lines("states.write_failed")) {
    ASSERT_TRUE(line.has("left_out"));
    failed += 1 + line.Number("left_out");
  }
  EXPECT_GT(failed, 0);
  EXPECT_LE(failed, kWrites);
}

TEST_F(StateFolderDiskTest, NoServerStartsWithADiskThatCouldNeverHoldTheBudget) {
  const TempFolder folder;
  StatesConfig config;
  config.max_bytes = int64_t{1} << 60;
  config.folder = folder.path();
  EXPECT_THAT(LocalStates::Create(config, *sealer_, metrics_),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       testing::HasSubstr("less than states.max_bytes=")));
}

TEST_F(StateFolderDiskTest, ADiskWithTooLittleRoomIsLogged) {
  const CapturedLog log;
  EXPECT_TRUE(states_->CheckSpace(1).ok());
  EXPECT_TRUE(log.Lines("states.folder_small").empty());
  const auto all = static_cast<int64_t>(std::filesystem::space(folder_.path()).capacity);
  EXPECT_TRUE(states_->CheckSpace(all).ok());
  EXPECT_EQ(log.Lines("states.folder_small").size(), 1U);  // the disk has the key's file too
}

}  // namespace
}  // namespace aft::server

// Replaces libc's fsync in this program.
extern "C" int fsync(int fd) {
  struct stat info = {};
  if (aft::server::refuses_to_sync_folders && fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) {
    errno = EIO;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}
