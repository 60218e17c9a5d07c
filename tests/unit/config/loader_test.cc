#include "server/config/loader.h"

#include <filesystem>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

namespace fs = std::filesystem;

TEST(LoadServerConfigTest, APathMayLeadUpFromTheFolderOfALink) {
  const TempFolder folder;
  fs::create_directories(folder.File("releases/42"));
  fs::create_directories(folder.File("releases/models/a"));
  fs::create_directory_symlink("releases/42", folder.File("current"));
  WriteBytes(folder.File("releases/42/server.textproto"), "models { path: '../models/a/' }");
  const auto config = LoadServerConfig(folder.File("current/server.textproto"));
  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_TRUE(fs::is_directory(config->models[0].checkpoint_dir));
  EXPECT_EQ(config->models[0].name, "a");
}

TEST(ParseServerConfigTest, AnEmptyNameMeansThatOfTheFolder) {
  const auto config = ParseServerConfig("models { name: '' path: 'b/m' }", "x.textproto", "/etc");
  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_EQ(config->models[0].name, "m");
}

}  // namespace
}  // namespace aft::server
