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

TEST(LoadServerConfigTest, APrintedConfigMeansTheSameFilesElsewhere) {
  const TempFolder folder;
  fs::create_directories(folder.File("conf"));
  fs::create_directories(folder.File("other"));
  WriteBytes(folder.File("conf/a.textproto"),
             "models { path: 'm' } states { redis { address: 'unix:redis.sock' } }");
  const fs::path relative = fs::relative(folder.File("conf/a.textproto"));
  const auto config = LoadServerConfig(relative.string());
  ASSERT_EQ(config.status(), absl::OkStatus());
  WriteBytes(folder.File("other/b.textproto"), FormatEffectiveConfig(*config));
  const auto again = LoadServerConfig(folder.File("other/b.textproto"));
  ASSERT_EQ(again.status(), absl::OkStatus());
  EXPECT_EQ(again->models[0].checkpoint_dir, config->models[0].checkpoint_dir);
  EXPECT_EQ(again->states.redis.address, config->states.redis.address);
}

TEST(ParseServerConfigTest, AnEmptyNameMeansThatOfTheFolder) {
  const auto config = ParseServerConfig("models { name: '' path: 'b/m' }", "x.textproto", "/etc");
  ASSERT_EQ(config.status(), absl::OkStatus());
  EXPECT_EQ(config->models[0].name, "m");
}

}  // namespace
}  // namespace aft::server
