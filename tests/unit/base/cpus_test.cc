#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

// Imitates the /sys of a machine.
class CpusTest : public testing::Test {
 protected:
  CpusTest() {
    CPU_ZERO(&before_);
    sched_getaffinity(0, sizeof(before_), &before_);
  }
  ~CpusTest() override { sched_setaffinity(0, sizeof(before_), &before_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_.path() + "/sys/fs/cgroup/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int Allowed() const { return CPU_COUNT(&before_); }
  int Available() const { return AvailableCpus(folder_.path()); }

  cpu_set_t before_;
  const TempFolder folder_;
};

TEST_F(CpusTest, OnlyCpusThatTheProcessMayRunOnAreAvailable) {
  EXPECT_EQ(Available(), Allowed());
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
    if (CPU_ISSET(cpu, &before_)) CPU_SET(cpu, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(Available(), 1);
}

TEST_F(CpusTest, TheQuotaRoundedUpIsAnUpperBound) {
  for (const auto& [quota, cpus] : {std::pair("50000 100000\n", 1), std::pair("100000 100000\n", 1),
                                    std::pair("110000 100000\n", 2), std::pair("1 100000\n", 1)}) {
    Write("cpu.max", quota);
    EXPECT_EQ(Available(), std::min(cpus, Allowed())) << quota;
  }
  for (const char* none : {"max 100000\n", "99999999999 100000\n", "", "0 0\n", "x"}) {
    Write("cpu.max", none);
    EXPECT_EQ(Available(), Allowed()) << none;
  }
}

TEST_F(CpusTest, TheQuotaOfCgroupVersionOneCountsToo) {
  Write("cpu/cpu.cfs_quota_us", "90000\n");
  EXPECT_EQ(Available(), Allowed());  // while the period is not known
  Write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Available(), 1);
  Write("cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(Available(), Allowed());
}

TEST_F(CpusTest, ListsMayNameOnlyCpusThatTheProcessMayRunOn) {
  std::vector<int> allowed;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &before_)) allowed.push_back(cpu);
  }
  const std::string first = std::to_string(allowed.front());
  const std::string last = std::to_string(allowed.back());
  EXPECT_EQ(*ParseCpus(first), std::vector<int>{allowed.front()});
  EXPECT_EQ(*ParseCpus(last + "-" + last), std::vector<int>{allowed.back()});
  if (allowed.size() > 1) {
    EXPECT_EQ(*ParseCpus(last + "," + first), (std::vector<int>{allowed.back(), allowed.front()}));
  }
  if (allowed.back() - allowed.front() == static_cast<int>(allowed.size()) - 1) {
    EXPECT_EQ(*ParseCpus(first + "-" + last), allowed);
  }
  for (const std::string& list :
       {std::string(), std::string(","), first + ",", first + "-", "-" + first, std::string("a"),
        std::string("1-0"), first + "-" + last + "-" + last, std::string("-1")}) {
    EXPECT_THAT(ParseCpus(list), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("list")))
        << list;
  }
  for (const std::string& list : {first + "," + first, first + "-100000", std::string("99999")}) {
    EXPECT_THAT(ParseCpus(list),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("may not run on it")))
        << list;
  }
}

TEST(ThreadCpuTimeTest, CountsOnlyTheWorkOfThisThread) {
  constexpr std::chrono::milliseconds kWork(50);
  const auto work = [&] {
    const auto begin = ThreadCpuTime();
    while (ThreadCpuTime() - begin < kWork) {
    }
  };
  const auto begin = ThreadCpuTime();
  std::thread other(work);
  other.join();
  const auto joined = ThreadCpuTime();
  EXPECT_LT(joined - begin, kWork);
  work();
  EXPECT_GE(ThreadCpuTime() - joined, kWork);
}

}  // namespace
}  // namespace aft
