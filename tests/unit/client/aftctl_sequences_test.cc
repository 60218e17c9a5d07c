// aftctl generate --n as a process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(AftctlSequencesTest, GeneratePrintsThemOneAfterTheOther) {
  FakeServer server;
  const auto run = [&](std::vector<std::string> more, int code) {
    std::vector<std::string> command = {AFTCTL,     "--address", server.address(),
                                        "generate", "--prompt",  "hello"};
    command.insert(command.end(), more.begin(), more.end());
    Ended ended = RunToEnd(command, "");
    EXPECT_EQ(ended.code, code) << ended.err;
    return ended;
  };
  const auto of = [](uint32_t sequence, v1::GenerateResponse event) {
    event.set_sequence(sequence);
    return event;
  };
  Script script;
  script.events = {StartedEvent(7),
                   of(1, DeltaEvent(0, "second\n")),
                   of(0, DeltaEvent(0, "fir")),
                   of(2, DeltaEvent(0, "thi")),
                   of(1, FinishedEvent(7)),
                   of(0, DeltaEvent(3, "st")),
                   of(0, FinishedEvent(5)),
                   of(2, DeltaEvent(3, "rd")),
                   of(2, FinishedEvent(5))};
  server.SetScript(script);
  const Ended ended = run({"--n", "3"}, 0);
  EXPECT_EQ(ended.out,
            "== 1 of 3, seed 7 ==\nfirst\n\n"
            "== 2 of 3, seed 8 ==\nsecond\n\n"
            "== 3 of 3, seed 9 ==\nthird");
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("5 tokens | first token"), HasSubstr("seed 7]"),
                    HasSubstr("7 tokens | 6000.0 tokens/s | seed 8]"), HasSubstr("seed 9]")));
  EXPECT_EQ(server.last<v1::GenerateRequest>().n(), 3U);
  // As they come.
  const std::vector<std::string> lines =
      absl::StrSplit(run({"--n", "3", "--json"}, 0).out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["sequence"], 1);
  EXPECT_EQ(nlohmann::json::parse(lines[4])["sequence"], 1);
  EXPECT_TRUE(nlohmann::json::parse(lines[4]).contains("finished"));
  // One that never ends is an error.
  script.events.pop_back();
  server.SetScript(script);
  EXPECT_THAT(run({"--n", "3"}, 7).err, HasSubstr("without Finished"));
  EXPECT_THAT(run({"--n", "17"}, 2).err, HasSubstr("--n"));
}

}  // namespace
}  // namespace aft::client
