#pragma once

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <system_error>

#include "base/check.h"
#include "gtest/gtest.h"

namespace aft {

// A new empty folder. The destructor removes it with all files in it.
class TempFolder {
 public:
  TempFolder() : path_(testing::TempDir() + "aft_test_XXXXXX") {
    AFT_CHECK(mkdtemp(path_.data()) != nullptr);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A file in memory whose content can be replaced at once: for tests that read thousands of files.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("aft_test", MFD_CLOEXEC)) { AFT_CHECK(fd_ >= 0); }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

  void Write(const std::string& bytes) {
    AFT_CHECK(ftruncate(fd_, 0) == 0);
    AFT_CHECK(pwrite(fd_, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  }

 private:
  const int fd_;
};

inline std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  AFT_CHECK(file.good());
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  AFT_CHECK(file.good());
}

}  // namespace aft
