// The repository's folders: which versions are found in them, and which files are trusted.
#include "server/registry/repository.h"

#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/registry/checksums.h"
#include "server/registry/without_paths.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
namespace fs = std::filesystem;

// SHA-256 of "one" and of nothing.
constexpr char kOne[] = "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed";
constexpr char kNothing[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

class RepositoryTest : public testing::Test {
 protected:
  RepositoryTest() {
    repository_.folder = folder_.File("repository");
    fs::create_directory(repository_.folder);
  }

  // NAME/VERSION with a file "weights".
  std::string Add(const std::string& path, const std::string& weights = "one") {
    const std::string folder = repository_.folder + "/" + path;
    fs::create_directories(folder);
    WriteBytes(folder + "/weights", weights);
    return folder;
  }
  std::vector<std::string> Versions(const std::string& name) {
    std::vector<std::string> versions;
    const auto models = FindVersions(repository_, name);
    if (!models.ok()) return versions;
    for (const ModelConfig& model : *models) versions.push_back(model.version);
    return versions;
  }
  absl::Status Check(const std::string& folder, const std::string& weight_format = "stored",
                     const std::string& device = "cpu") {
    ModelConfig model;
    model.checkpoint_dir = folder;
    model.device = device;
    model.weight_format = weight_format;
    return CheckVersionFolder(repository_.folder, model);
  }

  const TempFolder folder_;
  RepositoryConfig repository_;
};

TEST_F(RepositoryTest, ModelsAreFoldersWithNamesOfModels) {
  for (const char* name : {"b/1", "a/1", ".hidden/1", "lost+found/1", "c"}) Add(name);
  WriteBytes(repository_.folder + "/file", "");
  EXPECT_THAT(*ListModelFolders(repository_.folder), ElementsAre("a", "b", "c"));
  EXPECT_THAT(ListModelFolders(folder_.File("other")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(folder_.File("other"))));
}

TEST_F(RepositoryTest, VersionsAreNumbersAndAPolicyChooses) {
  for (const char* version : {"m/9", "m/10", "m/2", "m/0", "m/01", "m/1a", "m/-3", "m/latest",
                              "m/99999999999999999999", "m/9223372036854775807"}) {
    Add(version);
  }
  WriteBytes(repository_.folder + "/m/11", "");
  EXPECT_THAT(Versions("m"), ElementsAre("9223372036854775807"));
  repository_.latest_versions = 2;
  EXPECT_THAT(Versions("m"), ElementsAre("9223372036854775807", "10"));
  repository_.latest_versions = 0;
  EXPECT_THAT(Versions("m"), ElementsAre("9223372036854775807", "10", "9", "2"));
  repository_.latest_versions = 1;
  repository_.versions = {2, 9, 4};
  EXPECT_THAT(Versions("m"), ElementsAre("9", "2"));
  repository_.versions = {4};
  EXPECT_THAT(FindVersions(repository_, "m"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("repository.versions")));
}

TEST_F(RepositoryTest, AVersionIsLoadedAsTheSettingsSay) {
  const std::string folder = Add("m/3");
  repository_.settings.slots = 5;
  const auto found = FindVersions(repository_, "m");
  ASSERT_TRUE(found.ok()) << found.status();
  ModelConfig expected = repository_.settings;
  expected.name = "m";
  expected.version = "3";
  expected.checkpoint_dir = folder;
  EXPECT_EQ(found->front(), expected);
}

TEST_F(RepositoryTest, NothingButANameReachesTheFileSystem) {
  for (const char* version : {"m/1", ".m/1", "..m/1"}) Add(version);
  for (const char* name :
       {"", ".", "..", "../repository/m", "m/1", "/", "m\\", "m ", ".m", "..m"}) {
    EXPECT_THAT(FindVersions(repository_, name).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model_name: ")))
        << name;
  }
  EXPECT_THAT(FindVersions(repository_, std::string("m\0", 2)).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model_name: ")));
  EXPECT_EQ(FindVersions(repository_, "other").status().code(), absl::StatusCode::kNotFound);
}

TEST_F(RepositoryTest, LinksMayNotLeadOutside) {
  const std::string outside = folder_.File("repository-2");  // a name that begins alike
  fs::create_directories(outside + "/1");
  WriteBytes(outside + "/1/weights", "one");
  Add("m/1");
  fs::create_symlink(outside + "/1", repository_.folder + "/m/2");
  EXPECT_THAT(Check(repository_.folder + "/m/2"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/m/2: leads out")));
  fs::create_symlink(outside, repository_.folder + "/n");
  EXPECT_THAT(Check(repository_.folder + "/n/1"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/n/1: leads out")));
  fs::create_directory(outside + "/2");  // no file of it could lead out
  EXPECT_THAT(Check(repository_.folder + "/n/2"),
              StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/n/2: leads out")));

  const std::string folder = Add("file/1");
  fs::create_symlink(outside + "/1/weights", folder + "/more");
  EXPECT_THAT(Check(folder), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/more")));
}

TEST_F(RepositoryTest, ALinkOutsideHidesNoOtherVersion) {
  Add("m/2");
  fs::create_directory_symlink(folder_.path(), repository_.folder + "/m/1");
  fs::create_directory_symlink("3", repository_.folder + "/m/3");  // it leads to itself
  fs::create_directory_symlink("gone", repository_.folder + "/m/4");
  fs::create_directory_symlink("2/weights/x", repository_.folder + "/m/5");  // through a file
  EXPECT_THAT(Versions("m"), ElementsAre("2"));
  repository_.latest_versions = 2;
  EXPECT_THAT(Versions("m"), ElementsAre("2", "1"));
}

TEST_F(RepositoryTest, LinksInsideAreFollowed) {
  const std::string blobs = Add("blobs");
  fs::create_directories(repository_.folder + "/m/1");
  fs::create_symlink(blobs + "/weights", repository_.folder + "/m/1/weights");
  fs::create_symlink(repository_.folder + "/m/1", repository_.folder + "/m/2");
  EXPECT_THAT(Versions("m"), ElementsAre("2"));
  EXPECT_EQ(Check(repository_.folder + "/m/2"), absl::OkStatus());
  fs::create_symlink(repository_.folder, folder_.File("link"));  // the folder itself may be a link
  repository_.folder = folder_.File("link");
  EXPECT_THAT(Versions("m"), ElementsAre("2"));
}

TEST_F(RepositoryTest, SpecialFilesAreNotOpened) {
  const std::string folder = Add("m/1");
  ASSERT_EQ(mkfifo((folder + "/pipe").c_str(), 0600), 0);
  EXPECT_THAT(Check(folder), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("/pipe")));
}

// The file is sparse. It is loaded only if it has the name of the weights.
TEST_F(RepositoryTest, AModelThatCannotFitIsNotRead) {
  const std::string folder = Add("m/1");
  fs::resize_file(folder + "/weights", uintmax_t{1} << 42);
  EXPECT_EQ(Check(folder), absl::OkStatus());
  fs::rename(folder + "/weights", folder + "/model.safetensors");
  EXPECT_THAT(Check(folder), StatusIs(absl::StatusCode::kResourceExhausted,
                                      HasSubstr("/model.safetensors has 4398046511104 bytes")));
  EXPECT_EQ(Check(folder, "int8"), absl::OkStatus());  // it may take less than its files
  EXPECT_EQ(Check(folder, "stored", "cuda:0"), absl::OkStatus());
}

TEST_F(RepositoryTest, ChecksumsVouchForEveryFile) {
  const std::string folder = Add("m/1");
  EXPECT_EQ(Check(folder), absl::OkStatus());  // without checksums no file is checked
  const auto check = [&](const std::string& sums) {
    WriteBytes(folder + "/SHA256SUMS", sums);
    return Check(folder);
  };
  const std::string one = kOne;
  EXPECT_EQ(check(one + "  weights\n"), absl::OkStatus());
  EXPECT_EQ(check(one + " *./weights"), absl::OkStatus());
  EXPECT_EQ(check(absl::AsciiStrToUpper(one) + "  weights\n"), absl::OkStatus());
  const auto lost = [](const std::string& why) {
    return StatusIs(absl::StatusCode::kDataLoss, HasSubstr(why));
  };
  EXPECT_THAT(check(std::string(kNothing) + "  weights\n"),
              lost("/weights: its SHA-256 is " + one));
  EXPECT_THAT(check(""), lost("does not name \"weights\""));
  EXPECT_THAT(check(one + "  weights\n" + one + "  other\n"),
              lost("names \"other\", which is no file of this folder"));
  EXPECT_THAT(check(one + "  weights\n" + one + "  weights\n"), lost("line 2"));
  for (const std::string& line : {one + " weights", one + "weights", one.substr(1) + "  weights",
                                  "g" + one.substr(1) + "  w", one + "  ", std::string("x"),
                                  "\\" + one + "  weights", one + "  " + std::string(5000, 'w')}) {
    EXPECT_THAT(check(line + "\n"), lost("line 1")) << line;
  }
  EXPECT_THAT(check(std::string((size_t{1} << 20) + 1, 'w')), lost("more than 1048576 bytes"));
}

TEST_F(RepositoryTest, AFileThatCannotBeReadHasNoChecksum) {
  const std::string folder = Add("m/1");
  WriteBytes(folder + "/SHA256SUMS", std::string(kNothing) + "  gone\n");
  EXPECT_THAT(CheckChecksums(folder, {"gone"}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/gone: cannot be read")));
}

TEST_F(RepositoryTest, LongFilesAreHashedWhole) {
  const std::string folder = Add("m/1", std::string((size_t{1} << 20) + 1, 'a'));
  // This is the SHA-256 of 2^20 + 1 letters "a".
  WriteBytes(folder + "/SHA256SUMS",
             "4a3f0c0c213adea174f9a3d4c13177315b588bdb2e9c1012d3d0bf0453ca0f6a  weights\n");
  EXPECT_EQ(Check(folder), absl::OkStatus());
}

TEST_F(RepositoryTest, AStampDiffersWhenAFileDoes) {
  const std::string folder = Add("m/1");
  const std::string before = FolderStamp(folder);
  EXPECT_EQ(FolderStamp(folder), before);
  WriteBytes(folder + "/weights", "longer");
  const std::string longer = FolderStamp(folder);
  EXPECT_NE(longer, before);
  WriteBytes(folder + "/config", "");
  EXPECT_NE(FolderStamp(folder), longer);
  fs::rename(folder + "/config", folder + "/gifnoc");
  EXPECT_NE(FolderStamp(folder), longer);
  EXPECT_THAT(FolderStamp(folder_.File("other")), IsEmpty());
  EXPECT_NE(FolderStamp(folder_.path()), "");  // a folder that has only folders
}

// A checkpoint that was trained again has the same size.
TEST_F(RepositoryTest, AStampDiffersWhenAFileOfTheSameSizeDoes) {
  const std::string folder = Add("m/1");
  const std::string weights = folder + "/weights";
  const std::string before = FolderStamp(folder);
  const fs::file_time_type time = fs::last_write_time(weights);
  fs::last_write_time(weights, time + std::chrono::milliseconds(1));
  EXPECT_NE(FolderStamp(folder), before);
  fs::last_write_time(weights, time + std::chrono::seconds(1));
  EXPECT_NE(FolderStamp(folder), before);
  fs::last_write_time(weights, time);
  EXPECT_EQ(FolderStamp(folder), before);
  WriteBytes(folder_.File("new"), "one");
  fs::last_write_time(folder_.File("new"), time);
  fs::rename(folder_.File("new"), weights);
  EXPECT_NE(FolderStamp(folder), before);
}

TEST(WithoutPathsTest, LeavesTheLastNameOfEachPath) {
  const std::vector<std::string> folders = {"models", "", "/srv/my models"};
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"weights: are bad", "weights: are bad"},
      {"/srv/x/config.json:3:4: bad", "config.json:3:4: bad"},
      {"cannot read \"/srv/x/a.bin\": 1/2 of it", "cannot read \"a.bin\": 1/2 of it"},
      {"models/m/1/a.bin is no models", "a.bin is no models"},
      {"open /srv/my models/m/1/a.bin", "open a.bin"},
      {"path=/a/b/c", "path=c"},
      {"/ and //", "/ and "},
      {"a / b", "a / b"},
  };
  for (const auto& [text, told] : cases) EXPECT_EQ(WithoutPaths(text, folders), told) << text;
}

}  // namespace
}  // namespace aft::server
