#include "server/config/text_proto.h"

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

TEST(ReadConfigFileTest, AFileThatIsLongerThanAnyConfigIsNamedAndNotRead) {
  const TempFolder folder;
  const std::string path = folder.File("server.textproto");
  WriteBytes(path, "");
  std::filesystem::resize_file(path, kMaxConfigFileBytes);
  EXPECT_EQ(ReadConfigFile(path)->size(), kMaxConfigFileBytes);
  std::filesystem::resize_file(path, kMaxConfigFileBytes + 1);
  EXPECT_THAT(ReadConfigFile(path).status(),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       testing::HasSubstr(path + ": it has more than 16777216 bytes")));
  // The size of this file is reported as 0, but reading it never ends.
  EXPECT_FALSE(ReadConfigFile("/dev/zero").ok());
}

}  // namespace
}  // namespace aft::server
