// Runs a target on the files that are its arguments, and on all files in folders among them.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/fuzz/target.h"

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> paths;
  for (int i = 1; i < argc; ++i) {
    if (!std::filesystem::is_directory(argv[i])) {
      paths.emplace_back(argv[i]);
      continue;
    }
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      paths.push_back(entry.path());
    }
  }
  std::sort(paths.begin(), paths.end());  // the same order everywhere
  for (const std::filesystem::path& path : paths) {
    std::cout << path.string()
              << std::endl;  // if the process crashes, the last line names the file
    std::ifstream file(path, std::ios::binary);
    const std::string input(std::istreambuf_iterator<char>(file), {});
    if (!file.good()) {
      std::cerr << "it cannot be read" << std::endl;
      return 1;
    }
    // The buffer has exactly the input's size, so that a sanitizer detects a read beyond it.
    const std::unique_ptr<uint8_t[]> copy(new uint8_t[input.size()]);
    std::copy(input.begin(), input.end(), copy.get());
    LLVMFuzzerTestOneInput(copy.get(), input.size());
  }
  if (!paths.empty()) return 0;
  std::cerr << "no input" << std::endl;
  return 1;
}
