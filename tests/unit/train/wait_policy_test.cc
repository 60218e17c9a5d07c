#include "model/train/wait_policy.h"

#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace aft {
namespace {

std::string started;

int Exec(const char* path, char* const* argv) {
  absl::StrAppend(&started, path, " ", argv[1], " ", std::getenv("OMP_WAIT_POLICY"));
  return -1;
}

TEST(WaitPolicyTest, StartsTheProgramAgainUnlessThePolicyIsSet) {
  char name[] = "aft-train", option[] = "--help";
  char* argv[] = {name, option, nullptr};
  unsetenv("OMP_WAIT_POLICY");
  WaitPassively(argv, Exec);
  EXPECT_THAT(started, testing::EndsWith("train_test --help passive"));
  started.clear();
  WaitPassively(argv, Exec);
  EXPECT_EQ(started, "");
  unsetenv("OMP_WAIT_POLICY");
}

}  // namespace
}  // namespace aft
