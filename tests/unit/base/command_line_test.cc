#include "base/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/command_line_pages.h"
#include "base/nearest.h"

namespace aft {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Tool {
  Tool() {
    app.add_option("--model", model, "Folder of the model");
    CLI::App& copy = *app.add_subcommand("copy", "Copies a model");
    copy.add_option("--format", format, "It's a format")->check(CLI::IsMember({"fp32", "int8"}));
    copy.add_flag("--force", force, "Overwrites");
  }

  std::optional<int> Parse(std::vector<std::string> arguments) {
    std::vector<char*> argv;
    arguments.insert(arguments.begin(), "tool");
    for (std::string& argument : arguments) argv.push_back(argument.data());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const auto code = ParseCommandLine(
        app, static_cast<int>(argv.size()), argv.data(),
        {.usage_code = 9, .hints = {{"--port", "--address=:PORT"}}, .libraries = "LibTest 1"});
    out = testing::internal::GetCapturedStdout();
    err = testing::internal::GetCapturedStderr();
    return code;
  }

  CLI::App app{"Does things", "tool"};
  std::string model, format, out, err;
  bool force = false;
};

TEST(CommandLineTest, AGoodCommandLineRuns) {
  Tool tool;
  EXPECT_EQ(tool.Parse({"--model=m", "copy", "--format", "int8"}), std::nullopt);
  EXPECT_EQ(tool.model, "m");
  EXPECT_EQ(tool.format, "int8");
  EXPECT_EQ(tool.out + tool.err, "");
}

TEST(CommandLineTest, ARangeHasItsEndsAndNoNan) {
  const CLI::Validator range = Between(0.5, 2);
  for (const char* text : {"0.5", "1", "2"}) EXPECT_EQ(range(std::string(text)), "") << text;
  for (const char* text : {"0.4", "2.1", "nan", "-NAN", "nan(1)", "inf", "x", ""}) {
    EXPECT_NE(range(std::string(text)), "") << text;
  }
  EXPECT_EQ(range.get_description(), "FLOAT in [0.5 - 2]");
}

TEST(CommandLineTest, HelpIsPrintedWithExitCodeZero) {
  Tool tool;
  EXPECT_EQ(tool.Parse({"--help"}), 0);
  EXPECT_THAT(tool.out, HasSubstr("--model"));
}

TEST(CommandLineTest, TheVersionNamesTheRevisionAndTheLibraries) {
  Tool tool;
  EXPECT_EQ(tool.Parse({"--version"}), 0);
  EXPECT_THAT(tool.out,
              AllOf(HasSubstr("tool "), HasSubstr("\ngit revision "), HasSubstr("\nLibTest 1\n")));
}

TEST(CommandLineTest, AMistakeNamesWhatWasProbablyMeant) {
  struct Case {
    std::vector<std::string> arguments;
    std::string error;
  };
  const std::vector<Case> cases = {
      {{"--modl=m"}, "tool: unknown flag --modl; did you mean --model? (see tool --help)\n"},
      {{"cpoy"}, "tool: unknown subcommand cpoy; did you mean copy? (see tool --help)\n"},
      {{"copy", "--fromat", "int8"},
       "tool: unknown flag --fromat; did you mean --format? (see tool copy --help)\n"},
      {{"--port=1"},
       "tool: unknown flag --port; did you mean --address=:PORT? (see tool --help)\n"},
      {{"--nothing-like-it"}, "tool: unknown flag --nothing-like-it (see tool --help)\n"},
      {{"copy", "x"}, "tool: unexpected argument x (see tool copy --help)\n"},
  };
  for (const Case& one : cases) {
    Tool tool;
    EXPECT_EQ(tool.Parse(one.arguments), 9);
    EXPECT_EQ(tool.err, one.error);
    EXPECT_EQ(tool.out, "");
  }
}

TEST(NearestTest, IsTheFirstWordWithinTwoChangesOrAThirdOfTheLetters) {
  EXPECT_EQ(Nearest("copx", {"copy", "cope"}), "copy");
  EXPECT_EQ(Nearest("copyis", {"copy"}), "copy");
  EXPECT_EQ(Nearest("copyist", {"copy"}), "");
  EXPECT_EQ(Nearest("copying-it", {"copying"}), "copying");  // three of ten letters
  EXPECT_EQ(Nearest("copying-it", {"copyin"}), "");
}

TEST(CommandLineTest, TheManualPageHasEveryFlagAndEscapesRoff) {
  Tool tool;
  const std::string page = ManualPage(tool.app, "1.2");
  EXPECT_THAT(
      page, AllOf(HasSubstr(".TH tool 1 \"\" \"tool 1.2\"\n"), HasSubstr("\\fB\\&\\-\\-model\\fR"),
                  HasSubstr("\n.SH NAME\n\\&tool \\- \\&Does things\n"),
                  HasSubstr("\n.SS\\& copy\n\\&Copies a model\n"), HasSubstr("It's a format"),
                  HasSubstr("(\\&fp32, int8)")));
}

TEST(CommandLineTest, ZshGetsTheDescriptionsOfTheCommandsFlags) {
  Tool tool;
  const std::string script = ZshCompletion(tool.app);
  EXPECT_THAT(script,
              AllOf(HasSubstr("#compdef tool\n"), HasSubstr("'copy:Copies a model'"),
                    HasSubstr("'--format:It'\\''s a format'"), HasSubstr("compadd -- fp32 int8")));
}

}  // namespace
}  // namespace aft
