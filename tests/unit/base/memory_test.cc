#include "base/memory.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "gtest/gtest.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// Imitates the /proc and /sys of a machine.
class MemoryTest : public testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void WriteMachine() const {
    Write("/proc/meminfo",
          "MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable: 4000 kB\nBuffers: 1 kB\n");
  }
  int64_t Available() const { return AvailableMemory(folder_.path()); }
  int64_t Limit() const { return MemoryLimit(folder_.path()); }

  const TempFolder folder_;
};

TEST_F(MemoryTest, WithoutReadableFilesThereIsNoLimit) {
  EXPECT_EQ(Available(), kUnknown);
  EXPECT_EQ(Limit(), kUnknown);
}

TEST_F(MemoryTest, TheFreeMemoryOfTheMachineIsAvailable) {
  WriteMachine();
  EXPECT_EQ(Available(), 4000 * 1024);
  EXPECT_EQ(Limit(), 9000 * 1024);
}

TEST_F(MemoryTest, TheFreeMemoryOfTheCgroupCountsIfItIsLess) {
  WriteMachine();
  for (const auto& [limit, used] :
       {std::pair("memory.max", "memory.current"),
        std::pair("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")}) {
    const std::string folder = "/sys/fs/cgroup/";
    Write(folder + limit, "1000000\n");
    EXPECT_EQ(Available(), 4000 * 1024);  // while the cgroup's use is not known
    Write(folder + used, "300000\n");
    EXPECT_EQ(Available(), 700'000);
    EXPECT_EQ(Limit(), 1'000'000);
    Write(folder + used, "1000001\n");
    EXPECT_EQ(Available(), 0);
    Write(folder + limit, "9223372036854771712\n");
    EXPECT_EQ(Available(), 4000 * 1024);
    EXPECT_EQ(Limit(), 9000 * 1024);
    std::filesystem::remove_all(folder_.path() + folder);
  }
  Write("/sys/fs/cgroup/memory.max", "max\n");
  Write("/sys/fs/cgroup/memory.current", "300000\n");
  EXPECT_EQ(Available(), 4000 * 1024);
}

TEST_F(MemoryTest, FilesThatTheCgroupHasCachedAreAvailable) {
  const std::string folder = "/sys/fs/cgroup/";
  Write(folder + "memory.max", "1000000\n");
  Write(folder + "memory.current", "900000\n");
  Write(folder + "memory.stat", "file 750000\ninactive_file 300000\nactive_file 400000\n");
  EXPECT_EQ(Available(), 800'000);
  Write(folder + "memory.current", "600000\n");  // an older number than those of the files
  EXPECT_EQ(Available(), 1'000'000);
  std::filesystem::remove_all(folder_.path() + folder);
  Write(folder + "memory/memory.limit_in_bytes", "1000000\n");
  Write(folder + "memory/memory.usage_in_bytes", "900000\n");
  Write(folder + "memory/memory.stat",
        "active_file 1\ninactive_file 2\ntotal_inactive_file 300000\ntotal_active_file 400000\n");
  EXPECT_EQ(Available(), 800'000);
}

}  // namespace
}  // namespace aft
