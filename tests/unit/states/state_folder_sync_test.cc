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
#include <string>

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

// The next start would load the file of a state whose id no client knows. For a resume point, the
// new file will do as well as the one that it replaced.
TEST(StateFolderSyncTest, AFileThatIsNotOnTheDiskIsRemovedUnlessItReplacedAnother) {
  const TempFolder folder;
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  const auto sealer = StateSealer::Create({folder.File("key")});
  ASSERT_TRUE(sealer.ok()) << sealer.status();
  prometheus::Registry registry;
  StateMetrics metrics(registry);
  const auto states = StateFolder::Open(folder.path(), *sealer, metrics);
  ASSERT_TRUE(states.ok()) << states.status();
  const std::string id(32, 'a');
  const auto writes = [&] {
    const StateFolder::File file = {.id = id,
                                    .client = "ada",
                                    .owner = "",
                                    .model = "austen",
                                    .ttl = std::chrono::hours(1),
                                    .state = std::make_shared<const SequenceState>(StateAfter(1))};
    return Await<absl::Status>([&](const auto& done) { (*states)->Write(file, done); }).ok();
  };
  const std::string path = folder.File(id + ".state");
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

TEST(StateFolderSpaceTest, ADiskWithTooLittleRoomIsLogged) {
  const TempFolder folder;
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  const auto sealer = StateSealer::Create({folder.File("key")});
  ASSERT_TRUE(sealer.ok()) << sealer.status();
  prometheus::Registry registry;
  StateMetrics metrics(registry);
  const auto states = StateFolder::Open(folder.path(), *sealer, metrics);
  ASSERT_TRUE(states.ok()) << states.status();
  const CapturedLog log;
  EXPECT_TRUE((*states)->CheckSpace(1).ok());
  EXPECT_TRUE(log.Lines("states.folder_small").empty());
  const auto all = static_cast<int64_t>(std::filesystem::space(folder.path()).capacity);
  EXPECT_TRUE((*states)->CheckSpace(all).ok());
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
