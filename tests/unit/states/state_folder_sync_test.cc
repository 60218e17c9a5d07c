// A folder of states whose disk fails after a file has its name, or has too little room.
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
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/states/state_folder.h"
#include "server/states/state_sealer.h"
#include "tests/support/captured_log.h"
#include "tests/support/states.h"
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
    auto states = StateFolder::Open(folder_.path(), *sealer_, metrics_);
    ASSERT_TRUE(states.ok()) << states.status();
    states_ = *std::move(states);
  }

  const TempFolder folder_;
  prometheus::Registry registry_;
  StateMetrics metrics_{registry_};
  std::optional<StateSealer> sealer_;
  std::unique_ptr<StateFolder> states_;
};

// The next start would load the file of a state whose id no client knows. For a resume point, the
// new file will do as well as the one that it replaced.
TEST_F(StateFolderDiskTest, AFileThatIsNotOnTheDiskIsRemovedUnlessItReplacedAnother) {
  const std::string id(32, 'a');
  const auto writes = [&] {
    const StateFolder::File file = {.id = id,
                                    .client = "ada",
                                    .owner = "",
                                    .model = "austen",
                                    .ttl = std::chrono::hours(1),
                                    .state = std::make_shared<const SequenceState>(StateAfter(1))};
    return Await<absl::Status>([&](const auto& done) { states_->Write(file, done); }).ok();
  };
  const std::string path = folder_.File(id + ".state");
  refuses_to_sync_folders = true;
  EXPECT_FALSE(writes());
  EXPECT_FALSE(std::filesystem::exists(path));
  refuses_to_sync_folders = false;
  EXPECT_TRUE(writes());
  refuses_to_sync_folders = true;
  EXPECT_FALSE(writes());
  refuses_to_sync_folders = false;
  EXPECT_TRUE(std::filesystem::exists(path));
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
