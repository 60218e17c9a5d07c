// Compares the description of every kind with the page about kinds and the keys of the config.

#include "model/config/kinds.h"

#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/config/config.h"
#include "tests/support/temp_files.h"

namespace aft {
namespace {

using testing::HasSubstr;

TEST(KindsTest, ThePageListsEveryKindAsItIsDescribed) {
  const std::string page = ReadBytes("model/README.md");
  for (const KindSpec& kind : AllKinds()) {
    EXPECT_THAT(page,
                HasSubstr(absl::StrCat("\n| `", kind.name, "` | ", kind.output, " | ", kind.bias,
                                       kind.bias[0] == '\0' ? "" : " ", "| ", kind.state, " |\n")));
  }
}

// The error for an unknown key lists all known keys. Every key that a kind names must be among
// them.
TEST(KindsTest, EveryFieldOfAKindIsAKeyOfTheConfig) {
  const std::string known(ParseNetworkConfig(R"({"format_version": 1, "architecture": "mixer",
      "d_model": 1, "n_layers": 1, "mixer": {"unknown": 1}})")
                              .status()
                              .message());
  ASSERT_THAT(known, HasSubstr("mixer.unknown: unknown key; known: kind, "));
  for (const KindSpec& kind : AllKinds()) {
    std::set<absl::string_view> keys;
    for (const auto& list : {kind.required, kind.optional}) {
      for (const absl::string_view key : list) {
        EXPECT_THAT(absl::StrCat(known, ","), HasSubstr(absl::StrCat(" ", key, ","))) << kind.name;
        EXPECT_TRUE(keys.insert(key).second) << kind.name << " names " << key << " twice";
      }
    }
  }
}

}  // namespace
}  // namespace aft
