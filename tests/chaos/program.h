#pragma once

#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {

// The server process. All methods except Start and Stop are thread-safe.
class Program {
 public:
  explicit Program(const std::string& config_file) : config_file_(config_file) {}

  // Every start after the first one uses the address of the first one.
  void Start() {
    const TempFolder folder;
    const std::string ready = folder.File("ready");
    process_ = std::make_unique<client::Process>(
        std::vector<std::string>{AFT_SERVER, "--config=" + config_file_,
                                 "--listen_address=" + address_, "--ready_file=" + ready});
    ASSERT_TRUE(process_->WaitForError("event=server.ready")) << process_->err();
    std::ifstream file(ready);  // process_ reads no more of the log after this line
    std::getline(file, address_);
    std::getline(file, metrics_address_);
    std::getline(file, http_address_);
  }

  void Stop(int signal) {
    process_->Signal(signal);
    const int code = process_->Wait();
    EXPECT_EQ(code, signal == SIGTERM ? 0 : 128 + signal) << process_->err();
  }

  const std::string& address() const { return address_; }
  const std::string& http_address() const { return http_address_; }

  std::map<std::string, double> Metrics() const {
    std::map<std::string, double> metrics;
    for (const auto line : absl::StrSplit(HttpGet(metrics_address_, "/metrics"), '\n')) {
      const std::vector<std::string> parts = absl::StrSplit(line, ' ');
      if (parts.size() == 2) metrics[parts[0]] = std::atof(parts[1].c_str());
    }
    return metrics;
  }

  double ResidentMegabytes() const {
    std::ifstream statm(absl::StrCat("/proc/", process_->pid(), "/statm"));
    int64_t size = 0;
    int64_t resident = 0;
    statm >> size >> resident;
    return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / (1 << 20);
  }

 private:
  const std::string config_file_;
  std::string address_ = "127.0.0.1:0";
  std::string metrics_address_;
  std::string http_address_;
  std::unique_ptr<client::Process> process_;
};

}  // namespace aft::server
