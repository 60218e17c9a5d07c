// Tests how aftctl checks, completes and documents its command line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

TEST(AftctlUsageTest, ExitsWithTwoAndSaysWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"genrate"}, "unknown subcommand genrate; did you mean generate?"},
      {{"zzzzzzz"}, "unknown subcommand zzzzzzz (see aftctl --help)"},
      {{"generate", "--max-tokns=1"}, "unknown flag --max-tokns; did you mean --max-tokens?"},
      {{"health", "--no-such-flag"}, "--no-such-flag"},
      {{"generate", "--max-tokens", "many"}, "--max-tokens"},
      {{"generate", "--max-tokens", "-1"}, "--max-tokens"},
      {{"generate", "--max-tokens", "4294967296"}, "--max-tokens"},
      {{"generate", "--seed", "18446744073709551616"}, "--seed"},
      {{"generate", "--top-k", "1.5"}, "--top-k"},
      {{"generate", "--logit-bias", "5"}, "5 is not ID:BIAS"},
      {{"generate", "--logit-bias", "x:1"}, "x:1 is not ID:BIAS"},
      {{"generate", "--logit-bias", "1:"}, "1: is not ID:BIAS"},
      {{"generate", "--logit-bias", "5:1:2"}, "5:1:2 is not ID:BIAS"},
      {{"generate", "--stop", "caf\xE9"}, "caf\xEF\xBF\xBD is not UTF-8"},
      {{"chat", "--ended-by", "x"}, "--previous"},
      {{"chat", "--previous", "x", "--ended-by", R"(\y)"}, "wrong escape"},
      {{"generate", "--deadline", "-1"}, "--deadline"},
      {{"generate", "--deadline", "nan"}, "--deadline"},
      {{"generate", "--logprobs", "1"}, "--json"},
      {{"generate", "--prompt-logprobs"}, "--json"},
      {{"score", "--prompt", "x", "--logprobs", "1"}, "--tokens or --json"},
      {{"generate", "--prompt", "x", "--file", "y"}, "--file"},
      {{"encode", "--prompt", "x", "--pooling", "max"}, "--pooling"},
      {{"score", "--prompt", "x", "--priority", "high"}, "--priority"},
      {{"generate", "--prompt", "x", "--address", "nowhere"}, "the port is missing"},
      {{"generate", "--prompt", "x", "--request-id", "a b"}, "the request id must be"},
      {{"generate", "--prompt", "x", "--traceparent", "00-1"}, "the traceparent must be"},
      {{"models", "a", "b"}, "b"},
      {{"models", "--max-resumes", "-1"}, "--max-resumes"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> command = {AFTCTL};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const Ended ended = RunToEnd(command);
    EXPECT_EQ(ended.code, 2) << message;
    EXPECT_THAT(ended.err, AllOf(StartsWith("aftctl: "), HasSubstr(message)));
    EXPECT_THAT(ended.out, IsEmpty());
  }
}

// Returns what bash offers for a command line whose last word is being typed.
std::string Completed(const std::string& line) {
  return RunToEnd({"bash", "-c",
                   absl::StrCat("source <(", AFTCTL, " --completion bash); COMP_WORDS=(", line,
                                "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _aftctl; "
                                "echo \"${COMPREPLY[*]}\"")})
      .out;
}

TEST(AftctlUsageTest, BashCompletesSubcommandsFlagsAndValues) {
  EXPECT_EQ(Completed("aftctl gen"), "generate\n");
  EXPECT_EQ(Completed("aftctl generate --temp"), "--temperature --temperature-last\n");
  EXPECT_EQ(Completed("aftctl --tls generate --addr"), "--address\n");
  EXPECT_EQ(Completed("aftctl generate --priority i"), "interactive\n");
  // In these words bash passes --priority=i and --priority=.
  EXPECT_EQ(Completed("aftctl generate --priority = i"), "interactive\n");
  EXPECT_EQ(Completed("aftctl generate --priority ="), "batch interactive normal\n");
  EXPECT_EQ(Completed("aftctl generate --file = gen"), "\n");  // the shell completes files
  EXPECT_EQ(Completed("aftctl infer --im"), "--image\n");
  EXPECT_EQ(Completed("aftctl models --temp"), "\n");
}

TEST(AftctlUsageTest, ZshCompletesSubcommandsFlagsAndValues) {
  if (RunToEnd({"sh", "-c", "command -v zsh"}).code != 0) GTEST_SKIP() << "no zsh";
  const TempFolder folder;
  WriteBytes(folder.File("_aftctl"), RunToEnd({AFTCTL, "--completion", "zsh"}).out);
  WriteBytes(folder.File("the prompt"), "");
  const std::string file = "aftctl generate --file " + folder.File("the");
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"aftctl gen", "aftctl generate "},
      {"aftctl generate --freq", "aftctl generate --frequency-penalty "},
      {"aftctl --tls generate --addr", "aftctl --tls generate --address "},
      {"aftctl generate --priority i", "aftctl generate --priority interactive "},
      {"aftctl generate --priority=i", "aftctl generate --priority=interactive "},
      {"aftctl infer --im", "aftctl infer --image "},
      {"aftctl models --temp", "aftctl models --temp"},
      {file, file + "\\ prompt "},
  };
  std::vector<std::string> command = {"zsh", "-f", COMPLETE_ZSH, folder.path()};
  std::string completed;
  for (const auto& [line, expected] : cases) {
    command.push_back(line);
    absl::StrAppend(&completed, expected, "\n");
  }
  EXPECT_EQ(RunToEnd(command).out, completed);
}

TEST(AftctlUsageTest, HelpDocumentsTheExitCodes) {
  const Ended ended = RunToEnd({AFTCTL, "--help"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_THAT(ended.out, AllOf(HasSubstr("Exit codes:"), HasSubstr("130")));
}

}  // namespace
}  // namespace aft::client
