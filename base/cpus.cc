#include "base/cpus.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace aft {
namespace {

int AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());  // more CPUs than a cpu_set_t holds
}

// Reads the files as a process inside a container sees them. Without a limit they hold "max", which
// fails to parse, in version 2 and -1 in version 1.
double Quota(const std::string& root) {
  const std::string folder = root + "/sys/fs/cgroup/";
  double quota = 0;
  double period = 0;
  std::ifstream v2(folder + "cpu.max");
  if (v2 >> quota >> period && quota > 0 && period > 0) return quota / period;
  std::ifstream v1_quota(folder + "cpu/cpu.cfs_quota_us");
  std::ifstream v1_period(folder + "cpu/cpu.cfs_period_us");
  if (v1_quota >> quota && v1_period >> period && quota > 0 && period > 0) return quota / period;
  return std::numeric_limits<double>::infinity();
}

}  // namespace

int AvailableCpus(const std::string& root) {
  const double cpus = std::min(std::ceil(Quota(root)), static_cast<double>(AllowedCpus()));
  return std::max(static_cast<int>(cpus), 1);
}

absl::StatusOr<std::vector<int>> ParseCpus(absl::string_view list) {
  cpu_set_t left;  // allowed and not yet named
  CPU_ZERO(&left);
  sched_getaffinity(0, sizeof(left), &left);
  std::vector<int> cpus;
  for (const absl::string_view range : absl::StrSplit(list, ',')) {
    const std::pair<absl::string_view, absl::string_view> ends =
        absl::StrSplit(range, absl::MaxSplits('-', 1));
    const bool one = ends.first.size() == range.size();
    int first = 0;
    int last = 0;
    if (!absl::SimpleAtoi(ends.first, &first) ||
        !absl::SimpleAtoi(one ? ends.first : ends.second, &last) || first < 0 || last < first) {
      return absl::InvalidArgumentError(
          absl::StrCat("must be a list of CPUs such as \"0-3,8\", got \"", list, "\""));
    }
    for (int cpu = first; cpu <= last; ++cpu) {
      if (cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &left)) {
        return absl::InvalidArgumentError(
            absl::StrCat("CPU ", cpu, " is named twice, or this process may not run on it"));
      }
      CPU_CLR(cpu, &left);
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

std::chrono::nanoseconds ThreadCpuTime() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);  // does not fail
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

}  // namespace aft
