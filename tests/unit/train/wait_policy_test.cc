#include "model/train/wait_policy.h"

#include <cstdlib>
#include <string>

#include "gtest/gtest.h"

namespace aft {
namespace {

int starts = 0;
std::string started;
std::string policy;

int Exec(const char* path, char* const* argv) {
  ++starts;
  started = std::string(path) + " " + argv[1];
  policy = std::getenv("OMP_WAIT_POLICY");
  return -1;
}

TEST(WaitPolicyTest, StartsTheProgramAgainUnlessTheUserHasSetThePolicy) {
  std::string name = "aft-train";
  std::string option = "--help";
  char* argv[] = {name.data(), option.data(), nullptr};
  unsetenv("OMP_WAIT_POLICY");
  WaitPassively(argv, Exec);
  EXPECT_EQ(starts, 1);
  EXPECT_EQ(policy, "passive");
  EXPECT_NE(started.find("train_test --help"), std::string::npos) << started;
  WaitPassively(argv, Exec);
  EXPECT_EQ(starts, 1) << "the program that was started again has the variable";
  setenv("OMP_WAIT_POLICY", "active", 1);
  WaitPassively(argv, Exec);
  EXPECT_EQ(starts, 1);
  EXPECT_STREQ(std::getenv("OMP_WAIT_POLICY"), "active");
  unsetenv("OMP_WAIT_POLICY");
}

}  // namespace
}  // namespace aft
