#include "server/observability/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace aft::server {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Family(const char* name, const char* help, MetricType type, double value) {
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return {.name = name, .help = help, .type = type, .metric = {metric}};
}

// Fields of proc_pid_stat(5).
struct Stat {
  double cpu_ticks = 0;
  double threads = 0;
  double start_ticks = 0;  // after the machine's start
  double virtual_bytes = 0;
  double resident_pages = 0;
};

std::optional<Stat> ReadStat() {
  std::string line;
  if (!std::getline(std::ifstream("/proc/self/stat"), line)) return std::nullopt;
  const size_t name_end = line.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(line.substr(name_end + 1));
  Stat stat;
  if (char state = 0; !(rest >> state)) return std::nullopt;
  for (int field = 4; field <= 24; ++field) {
    double value = 0;
    if (!(rest >> value)) return std::nullopt;
    if (field == 14 || field == 15) stat.cpu_ticks += value;  // in user and system mode
    if (field == 20) stat.threads = value;
    if (field == 22) stat.start_ticks = value;
    if (field == 23) stat.virtual_bytes = value;
    if (field == 24) stat.resident_pages = value;
  }
  return stat;
}

std::optional<double> OpenFiles() {
  std::error_code error;
  std::filesystem::directory_iterator files("/proc/self/fd", error);
  double open = -1;  // the handle of this folder does not count
  while (!error && files != std::filesystem::directory_iterator()) {
    ++open;
    files.increment(error);
  }
  if (error) return std::nullopt;
  return open;
}

}  // namespace

std::optional<double> BootTime::Get() {
  MutexLock lock(mutex_);
  if (time_) return time_;
  std::ifstream file(path_);
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return time_ = seconds;
  }
  return std::nullopt;
}

std::vector<MetricFamily> ProcessMetrics() {
  static BootTime& boot_time = *new BootTime("/proc/stat");
  std::vector<MetricFamily> families;
  const auto add = [&families](const char* name, const char* help, double value,
                               MetricType type = MetricType::Gauge) {
    families.push_back(Family(name, help, type, value));
  };
  if (const std::optional<Stat> stat = ReadStat()) {
    const auto ticks_per_second = static_cast<double>(sysconf(_SC_CLK_TCK));
    const auto page_bytes = static_cast<double>(sysconf(_SC_PAGESIZE));
    add("process_cpu_seconds_total", "CPU time used, in user and system mode.",
        stat->cpu_ticks / ticks_per_second, MetricType::Counter);
    add("process_resident_memory_bytes", "Memory that is in RAM.",
        stat->resident_pages * page_bytes);
    add("process_virtual_memory_bytes", "Address space taken.", stat->virtual_bytes);
    add("process_threads", "Threads of the process.", stat->threads);
    if (const std::optional<double> boot = boot_time.Get()) {
      add("process_start_time_seconds", "When the process started, in Unix time.",
          *boot + stat->start_ticks / ticks_per_second);
    }
  }
  if (const std::optional<double> open = OpenFiles()) {
    add("process_open_fds", "Open file descriptors.", *open);
  }
  if (rlimit limit{}; getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    add("process_max_fds", "The most file descriptors that may be open.",
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace aft::server
