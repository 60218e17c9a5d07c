#include "model/train/wait_policy.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace aft {

void WaitPassively(char** argv, int (*exec)(const char* path, char* const* argv)) {
  constexpr char kVariable[] = "OMP_WAIT_POLICY";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread yet
  if (std::getenv(kVariable) != nullptr || setenv(kVariable, "passive", /*overwrite=*/0) != 0) {
    return;
  }
  // With the link itself as the path, ps and top would show the name "exe".
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) exec(program.c_str(), argv);
}

}  // namespace aft
