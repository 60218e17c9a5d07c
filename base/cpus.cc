#include "base/cpus.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <thread>

namespace aft {
namespace {

int AllowedCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return static_cast<int>(std::thread::hardware_concurrency());  // more than a cpu_set_t holds
}

// As seen inside a container. No limit is "max", which fails to parse, in version 2 and -1 in
// version 1.
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

}  // namespace aft
