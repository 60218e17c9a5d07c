#include "base/atomic_file.h"

#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/stopped_writer.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

std::string synced;           // "file " or "folder " for each
std::string refuses_to_sync;  // one of these
int refusal = EIO;            // the error with which it refuses

int64_t Entries(const TempFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(RemoveAbandonedTest, RemovesFilesOfKilledProcessesOnly) {
  const TempFolder folder;
  const std::string path = folder.File("model");
  WriteBytes(folder.File("model2.tmp.1.0"), "of another file");
  WriteBytes(path + ".tmp.1.0", "");  // its process may be about to lock it
  StoppedWriter killed([&] { WriteFileAtomically(path, {"content"}).IgnoreError(); });
  const StoppedWriter alive([&] { WriteFileAtomically(path, {"content"}).IgnoreError(); });
  RemoveAbandoned(path + ".tmp.", "base_test");
  EXPECT_EQ(Entries(folder), 4);

  killed.Kill();
  testing::internal::CaptureStderr();
  RemoveAbandoned(path + ".tmp.", "base_test");
  const std::string lines = testing::internal::GetCapturedStderr();
  EXPECT_EQ(lines.find("base_test: removed " + path + ".tmp."), 0) << lines;
  EXPECT_NE(lines.find(", which a killed process left\n"), std::string::npos) << lines;
  EXPECT_EQ(Entries(folder), 3);
}

TEST(WriteFileAtomicallyTest, SyncsTheFileAndThenItsFolder) {
  const TempFolder folder;
  synced.clear();
  EXPECT_EQ(WriteFileAtomically(folder.File("a"), {"x"}), absl::OkStatus());
  EXPECT_EQ(synced, "file folder ");
  refuses_to_sync = "folder ";
  EXPECT_FALSE(WriteFileAtomically(folder.File("a"), {"y"}).ok());
  refuses_to_sync = "file ";
  EXPECT_FALSE(WriteFileAtomically(folder.File("a"), {"z"}).ok());
  refuses_to_sync.clear();
  EXPECT_EQ(ReadBytes(folder.File("a")), "y");
  EXPECT_EQ(Entries(folder), 1);
}

// Some network file systems give this error for every folder.
TEST(WriteFileAtomicallyTest, AFolderThatCannotBeSyncedIsNoErrorButAFileIs) {
  const TempFolder folder;
  refusal = EINVAL;
  refuses_to_sync = "folder ";
  EXPECT_EQ(WriteFileAtomically(folder.File("a"), {"x"}), absl::OkStatus());
  refuses_to_sync = "file ";
  EXPECT_FALSE(WriteFileAtomically(folder.File("a"), {"y"}).ok());
  refuses_to_sync.clear();
  refusal = EIO;
  EXPECT_EQ(ReadBytes(folder.File("a")), "x");
}

class WorkingFolderTest : public testing::Test {
 protected:
  WorkingFolderTest() { std::filesystem::current_path(folder_.path()); }
  ~WorkingFolderTest() override { std::filesystem::current_path(before_); }

  const std::filesystem::path before_ = std::filesystem::current_path();
  const TempFolder folder_;
};

TEST_F(WorkingFolderTest, ANameWithoutAFolderIsWrittenAndItsAbandonedFilesAreRemoved) {
  const absl::Status status = WriteFileAtomically("file", {"x"});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(ReadBytes("file"), "x");

  StoppedWriter([] { WriteFileAtomically("model", {"content"}).IgnoreError(); }).Kill();
  EXPECT_EQ(Entries(folder_), 2);
  testing::internal::CaptureStderr();
  RemoveAbandoned("model.tmp.", "base_test");
  testing::internal::GetCapturedStderr();
  EXPECT_EQ(Entries(folder_), 1);
}

}  // namespace
}  // namespace aft

// Replaces libc's fsync in this program.
extern "C" int fsync(int fd) {
  struct stat info = {};
  const std::string kind = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) ? "folder " : "file ";
  aft::synced += kind;
  if (kind != aft::refuses_to_sync) return static_cast<int>(syscall(SYS_fsync, fd));
  errno = aft::refusal;
  return -1;
}
