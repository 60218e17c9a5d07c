// aftctl as a process: what it prints, and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class AftctlTest : public testing::Test {
 protected:
  // `arguments` come after `aftctl --address ADDRESS`.
  std::vector<std::string> Command(const std::vector<std::string>& arguments) const {
    std::vector<std::string> command = {AFTCTL, "--address", server_.address()};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return command;
  }

  FakeServer server_;
};

std::vector<nlohmann::json> ParseLines(const std::string& text) {
  std::vector<nlohmann::json> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    lines.push_back(nlohmann::json::parse(line.begin(), line.end()));
  }
  return lines;
}

TEST_F(AftctlTest, GenerateStreamsTheTextAndSumsUpOnStandardError) {
  server_.SetScript(TextScript({"It is ", "a truth"}));
  Process aftctl(Command({"generate", "--prompt", "hello"}));
  EXPECT_EQ(aftctl.Wait(), 0);
  EXPECT_EQ(aftctl.out(), "It is a truth");
  EXPECT_THAT(aftctl.err(), AllOf(StartsWith("[limit stop.max_tokens=13 | 13 tokens"),
                                  HasSubstr("first token after"), HasSubstr("12000.0 tokens/s"),
                                  HasSubstr("seed 7")));
}

TEST_F(AftctlTest, GenerateShowsTextBeforeTheStreamEnds) {
  Script script;
  script.events = {StartedEvent(), DeltaEvent(0, "no newline yet")};
  script.end = Script::End::kStall;
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "hello"}));
  EXPECT_TRUE(aftctl.WaitForOutput("no newline yet"));
}

TEST_F(AftctlTest, GenerateSendsEveryOption) {
  server_.SetScript(TextScript({"a"}));
  Process aftctl(Command({"generate",
                          "--prompt",
                          "hello",
                          "--model",
                          "austen",
                          "--max-tokens",
                          "9",
                          "--temperature",
                          "0.5",
                          "--top-k",
                          "3",
                          "--top-p",
                          "0.25",
                          "--min-p",
                          "0.125",
                          "--repetition-penalty",
                          "1.25",
                          "--presence-penalty",
                          "-0.5",
                          "--frequency-penalty",
                          "0.75",
                          "--seed",
                          "18446744073709551615",
                          "--stop",
                          "\n\n",
                          "--stop",
                          "[END]",
                          "--stop-token",
                          "10",
                          "--stop-token",
                          "13",
                          "--include-stop",
                          "--ignore-eos",
                          "--logprobs",
                          "2",
                          "--json",
                          "--request-id",
                          "r1",
                          "--deadline",
                          "100"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  const v1::GenerateRequest request = server_.last_request();
  EXPECT_EQ(request.text(), "hello");
  EXPECT_EQ(request.model(), "austen");
  EXPECT_EQ(request.stop().max_tokens(), 9u);
  EXPECT_FLOAT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 3u);
  EXPECT_FLOAT_EQ(request.sampling().top_p(), 0.25f);
  EXPECT_FLOAT_EQ(request.sampling().min_p(), 0.125f);
  EXPECT_FLOAT_EQ(request.sampling().repetition_penalty(), 1.25f);
  EXPECT_FLOAT_EQ(request.sampling().presence_penalty(), -0.5f);
  EXPECT_FLOAT_EQ(request.sampling().frequency_penalty(), 0.75f);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_THAT(request.stop().strings(), ElementsAre("\n\n", "[END]"));
  EXPECT_THAT(request.stop().token_ids(), ElementsAre(10, 13));
  EXPECT_TRUE(request.stop().include_stop_string());
  EXPECT_TRUE(request.stop().ignore_eos());
  EXPECT_EQ(request.output().top_logprobs(), 2u);
}

TEST_F(AftctlTest, GenerateLeavesUnsetWhatWasNotAsked) {
  server_.SetScript(TextScript({"a"}));
  Process aftctl(Command({"generate", "--prompt", "hello"}));
  EXPECT_EQ(aftctl.Wait(), 0);
  const v1::GenerateRequest request = server_.last_request();
  EXPECT_FALSE(request.sampling().has_temperature() || request.sampling().has_top_k() ||
               request.sampling().has_top_p() || request.sampling().has_seed() ||
               request.sampling().has_min_p() || request.sampling().has_repetition_penalty() ||
               request.sampling().has_presence_penalty() ||
               request.sampling().has_frequency_penalty() || request.stop().has_max_tokens() ||
               request.output().has_top_logprobs());
}

TEST_F(AftctlTest, GenerateReadsThePromptFromStandardInputAsItIs) {
  server_.SetScript(TextScript({"a"}));
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"generate"}, {"generate", "--prompt", "-"}}) {
    Process aftctl(Command(arguments));
    aftctl.SendInput(" two\nlines\n");
    EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
    EXPECT_EQ(server_.last_request().text(), " two\nlines\n");
  }
}

TEST_F(AftctlTest, GenerateSendsAPromptThatIsNotUtf8AsRawBytes) {
  server_.SetScript(TextScript({"a"}));
  Process aftctl(Command({"generate"}));
  const std::string bytes("a\xFF\0b", 4);
  aftctl.SendInput(bytes);
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  EXPECT_EQ(server_.last_request().prompt_case(), v1::GenerateRequest::kRaw);
  EXPECT_EQ(server_.last_request().raw(), bytes);
}

TEST_F(AftctlTest, GenerateTakesPromptsThatLookLikeOptionsOrAreEmpty) {
  server_.SetScript(TextScript({"a"}));
  for (const std::string& prompt : {std::string("--seed"), std::string(""), std::string("{}"),
                                    std::string("[a,b]"), std::string("%%"), std::string("a=b")}) {
    Process aftctl(prompt.empty() ? Command({"generate", "--prompt", ""})
                                  : Command({"generate", "--prompt=" + prompt}));
    EXPECT_EQ(aftctl.Wait(), 0) << prompt << aftctl.err();
    EXPECT_EQ(server_.last_request().text(), prompt);
  }
}

TEST_F(AftctlTest, GenerateJsonHasOneObjectForEachEvent) {
  Script script = TextScript({"ab"});
  script.events[0] = StartedEvent(18446744073709551615u);
  v1::TokenLogprobs& logprobs = *script.events[1].mutable_delta()->add_logprobs();
  logprobs.set_logprob(-0.5f);
  logprobs.add_top()->set_token_id(98);
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "hello", "--json"}));
  EXPECT_EQ(aftctl.Wait(), 0);
  const auto lines = ParseLines(aftctl.out());
  ASSERT_EQ(lines.size(), 3u) << aftctl.out();
  EXPECT_EQ(lines[0]["event"], "started");
  EXPECT_EQ(lines[0]["seed"], "18446744073709551615");
  EXPECT_EQ(lines[1]["event"], "delta");
  EXPECT_EQ(lines[1]["text"], "ab");
  EXPECT_EQ(lines[1]["token_ids"], nlohmann::json({97, 98}));
  EXPECT_EQ(lines[1]["logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(lines[1]["logprobs"][0]["top"][0]["token_id"], 98);
  EXPECT_EQ(lines[2]["event"], "finished");
  EXPECT_EQ(lines[2]["reason"], "length");
  EXPECT_EQ(lines[2]["limit"], "stop.max_tokens=2");
  EXPECT_EQ(lines[2]["usage"]["generated_tokens"], 2);
  EXPECT_EQ(lines[2]["timings"]["total_us"], 2000);
}

TEST_F(AftctlTest, GenerateJsonEndsWithTheError) {
  Script script;
  script.events = {StartedEvent(), DeltaEvent(0, "a")};
  script.status = grpc::Status(grpc::INTERNAL, "a defect");
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "hello", "--json"}));
  EXPECT_EQ(aftctl.Wait(), 1);
  const auto lines = ParseLines(aftctl.out());
  ASSERT_EQ(lines.size(), 3u) << aftctl.out();
  EXPECT_EQ(lines[2]["event"], "error");
  EXPECT_EQ(lines[2]["code"], "INTERNAL");
  EXPECT_EQ(lines[2]["request_id"], "fake-1");
}

TEST_F(AftctlTest, GenerateNamesStopStringsAndEndOfText) {
  Script script = TextScript({"a"});
  v1::Finished& finished = *script.events.back().mutable_finished();
  finished.set_reason(v1::FINISH_REASON_STOP);
  finished.set_stop_string("\n\n");
  server_.SetScript(script);
  Process stopped(Command({"generate", "--prompt", "x"}));
  EXPECT_EQ(stopped.Wait(), 0);
  EXPECT_THAT(stopped.err(), HasSubstr("[stop string \"\\n\\n\" | 1 token |"));

  finished.set_reason(v1::FINISH_REASON_EOS);
  finished.clear_stop_string();
  server_.SetScript(script);
  Process ended(Command({"generate", "--prompt", "x"}));
  EXPECT_EQ(ended.Wait(), 0);
  EXPECT_THAT(ended.err(), HasSubstr("[end of text | 1 token |"));
}

TEST_F(AftctlTest, ExitCodesFollowTheKindOfFailure) {
  const std::vector<std::pair<grpc::StatusCode, int>> cases = {
      {grpc::INVALID_ARGUMENT, 4}, {grpc::NOT_FOUND, 4},          {grpc::UNIMPLEMENTED, 4},
      {grpc::UNAVAILABLE, 5},      {grpc::RESOURCE_EXHAUSTED, 5}, {grpc::DEADLINE_EXCEEDED, 6},
      {grpc::DATA_LOSS, 1},        {grpc::INTERNAL, 1},           {grpc::UNKNOWN, 1},
      {grpc::CANCELLED, 1}};
  for (const auto& [code, exit_code] : cases) {
    Script script;
    script.status = grpc::Status(code, "the server's own words");
    server_.SetScript(script);
    Process aftctl(Command({"generate", "--prompt", "x"}));
    EXPECT_EQ(aftctl.Wait(), exit_code) << code;
    EXPECT_THAT(aftctl.out(), IsEmpty());
    EXPECT_THAT(aftctl.err(), AllOf(StartsWith("aftctl: "), HasSubstr("(request fake-1)"))) << code;
  }
}

TEST_F(AftctlTest, GenerateReportsLostTokensWithItsOwnCode) {
  Script script = TextScript({"a"});
  script.events.pop_back();
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "x"}));
  EXPECT_EQ(aftctl.Wait(), 7);
  EXPECT_THAT(aftctl.err(), HasSubstr("without Finished"));
}

TEST_F(AftctlTest, GenerateGivesUpAtItsDeadline) {
  Script script;
  script.end = Script::End::kStall;
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "x", "--deadline", "0.1"}));
  EXPECT_EQ(aftctl.Wait(), 6);
  EXPECT_THAT(aftctl.err(), HasSubstr("0.1 s"));
}

TEST_F(AftctlTest, InterruptCancelsOnTheServerAndSaysSo) {
  const std::vector<std::pair<int, int>> signals = {{SIGINT, 130}, {SIGTERM, 143}};
  int cancellations = 0;
  for (const auto& [signal, exit_code] : signals) {
    Script script;
    script.events = {StartedEvent(), DeltaEvent(0, "abc")};
    script.end = Script::End::kStall;
    server_.SetScript(script);
    Process aftctl(Command({"generate", "--prompt", "x"}));
    ASSERT_TRUE(aftctl.WaitForOutput("abc"));
    aftctl.Signal(signal);
    EXPECT_EQ(aftctl.Wait(), exit_code);
    EXPECT_EQ(aftctl.out(), "abc");
    EXPECT_THAT(aftctl.err(), HasSubstr("interrupted: cancelled on the server after 3 tokens"));
    server_.WaitForCancellations(++cancellations);
  }
}

TEST_F(AftctlTest, ABrokenPipeCancelsOnTheServerAndIsQuiet) {
  Script script;
  script.events = {StartedEvent()};
  script.end = Script::End::kEndlessText;
  server_.SetScript(script);
  Process aftctl(Command({"generate", "--prompt", "x"}));
  ASSERT_TRUE(aftctl.WaitForOutput("xxx"));
  aftctl.CloseOutput();
  EXPECT_EQ(aftctl.Wait(), 141);
  EXPECT_THAT(aftctl.err(), IsEmpty());
  server_.WaitForCancellations(1);
}

TEST_F(AftctlTest, ScorePrintsTotals) {
  server_.SetScript(ScoreScript());
  Process aftctl(Command({"score", "--prompt", "abc", "--model", "austen"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  EXPECT_EQ(server_.last_score().text(), "abc");
  EXPECT_EQ(server_.last_score().model(), "austen");
  EXPECT_FALSE(server_.last_score().output().has_top_logprobs());
  EXPECT_EQ(aftctl.out(),
            "tokens           3, of them scored 2\n"
            "log-probability  -3.0000\n"
            "bits per byte    2.1640\n"
            "perplexity       4.4817\n");
}

TEST_F(AftctlTest, ScorePrintsATableOfTokens) {
  server_.SetScript(ScoreScript());
  Process aftctl(Command({"score", "--prompt", "abc", "--tokens", "--logprobs", "1"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  EXPECT_EQ(server_.last_score().output().top_logprobs(), 1u);
  EXPECT_THAT(aftctl.out(), StartsWith("  INDEX   TOKEN    LOGPROB\n"
                                       "      1      98    -1.0000 5:-0.5000\n"
                                       "      2      99    -2.0000 5:-0.5000\n"
                                       "tokens "));
}

TEST_F(AftctlTest, ScorePrintsJsonLines) {
  server_.SetScript(ScoreScript());
  Process aftctl(Command({"score", "--prompt", "abc", "--json"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  const auto lines = ParseLines(aftctl.out());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["event"], "started");
  EXPECT_EQ(lines[1]["token_ids"], nlohmann::json({98}));
  EXPECT_EQ(lines[2]["logprobs"][0]["logprob"], -2.0);
  EXPECT_EQ(lines[3]["logprob"], -3.0);
  EXPECT_NEAR(lines[3]["bits_per_byte"].get<double>(), 2.164, 1e-3);
}

TEST_F(AftctlTest, ScoreTakesTheTextFromAFileOrStandardInputAsItIs) {
  server_.SetScript(ScoreScript());
  const TempFolder folder;
  const std::string file = folder.File("text");
  std::ofstream(file, std::ios::binary) << "not \xff UTF-8\n";
  Process from_file(Command({"score", "--file", file}));
  EXPECT_EQ(from_file.Wait(), 0) << from_file.err();
  EXPECT_EQ(server_.last_score().raw(), "not \xff UTF-8\n");
  Process from_input(Command({"score"}));
  from_input.SendInput("piped\n");
  EXPECT_EQ(from_input.Wait(), 0) << from_input.err();
  EXPECT_EQ(server_.last_score().text(), "piped\n");
  Process missing(Command({"score", "--file", folder.File("missing")}));
  EXPECT_EQ(missing.Wait(), 2);
  EXPECT_THAT(missing.err(), AllOf(HasSubstr("cannot read"), HasSubstr("No such file")));
}

TEST_F(AftctlTest, EncodePrintsALineForEachVector) {
  server_.SetScript(EncodeScript());
  Process aftctl(Command({"encode", "--prompt", "ab", "--pooling", "mean", "--normalize"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  EXPECT_EQ(server_.last_encode().pooling(), v1::POOLING_MEAN);
  EXPECT_TRUE(server_.last_encode().normalize());
  EXPECT_EQ(aftctl.out(), "1 0.100000001\n-2.5 3\n");
  EXPECT_THAT(aftctl.err(), StartsWith("[2 tokens | 2 vectors of 2 | in a batch of 4 | "));
}

TEST_F(AftctlTest, EncodePrintsJsonLines) {
  server_.SetScript(EncodeScript());
  Process aftctl(Command({"encode", "--prompt", "ab", "--json"}));
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
  const auto lines = ParseLines(aftctl.out());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["width"], 2);
  EXPECT_EQ(lines[2]["vectors"][0][1], 3.0);
  EXPECT_EQ(lines[3]["batch_rows"], 4);
}

TEST_F(AftctlTest, AModelThatCannotDoItIsARefusal) {
  Script script;
  script.status = {grpc::FAILED_PRECONDITION, "model \"fake\" is an encoder"};
  server_.SetScript(script);
  Process score(Command({"score", "--prompt", "x", "--json"}));
  EXPECT_EQ(score.Wait(), 4);
  EXPECT_EQ(ParseLines(score.out())[0]["code"], "FAILED_PRECONDITION");
  Process encode(Command({"encode", "--prompt", "x"}));
  EXPECT_EQ(encode.Wait(), 4);
  EXPECT_THAT(encode.err(), HasSubstr("is an encoder"));
}

TEST_F(AftctlTest, ModelsListsAndDescribes) {
  v1::Model model;
  model.set_name("austen");
  model.set_state(v1::MODEL_STATE_READY);
  model.set_parameters(3'000'000);
  model.set_state_bytes(3 << 20);
  v1::Model broken;
  broken.set_name("broken");
  broken.set_state(v1::MODEL_STATE_FAILED);
  broken.set_error("model.safetensors: truncated");
  server_.SetModels({model, broken});

  Process list(Command({"models"}));
  EXPECT_EQ(list.Wait(), 0) << list.err();
  EXPECT_THAT(list.out(),
              AllOf(StartsWith("NAME"), HasSubstr("ready"), HasSubstr("3.0 MiB"),
                    HasSubstr("unlimited"), HasSubstr("broken: model.safetensors: truncated")));

  Process one(Command({"models", "austen"}));
  EXPECT_EQ(one.Wait(), 0) << one.err();
  EXPECT_THAT(one.out(), AllOf(HasSubstr("3000000"), testing::Not(HasSubstr("broken"))));

  Process json(Command({"models", "--json"}));
  EXPECT_EQ(json.Wait(), 0);
  const auto lines = ParseLines(json.out());
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["state"], "ready");
  EXPECT_EQ(lines[1]["error"], "model.safetensors: truncated");

  Process missing(Command({"models", "eliot"}));
  EXPECT_EQ(missing.Wait(), 4);
  EXPECT_THAT(missing.err(), HasSubstr("no model \"eliot\""));
}

TEST_F(AftctlTest, HealthIsZeroOnlyWhenServing) {
  Process serving(Command({"health"}));
  EXPECT_EQ(serving.Wait(), 0);
  EXPECT_EQ(serving.out(), "SERVING\n");
  Process down(Command({"health", "--service=down"}));
  EXPECT_EQ(down.Wait(), 1);
  EXPECT_EQ(down.out(), "NOT_SERVING\n");
  Process unknown(Command({"health", "--service=unknown"}));
  EXPECT_EQ(unknown.Wait(), 4);
}

TEST_F(AftctlTest, HealthGivesUpOnAServerThatStalls) {
  Script script;
  script.end = Script::End::kStall;
  server_.SetScript(script);
  Process aftctl(Command({"health", "--deadline=0.1"}));
  EXPECT_EQ(aftctl.Wait(), 6);
}

TEST_F(AftctlTest, TakesTheAddressFromTheEnvironment) {
  Process aftctl({AFTCTL, "health"}, {"AFT_ADDRESS=" + server_.address()});
  EXPECT_EQ(aftctl.Wait(), 0) << aftctl.err();
}

TEST(AftctlUnreachableTest, ExitsWithThree) {
  const ClosedPort port;
  for (const char* subcommand : {"health", "models", "generate", "score", "encode"}) {
    Process aftctl({AFTCTL, subcommand, "--address", port.address()});
    aftctl.SendInput("prompt");
    EXPECT_EQ(aftctl.Wait(), 3) << subcommand;
    EXPECT_EQ(aftctl.err(), absl::StrCat("aftctl: cannot reach ", port.address(),
                                         ": connection refused; is the server running?\n"));
  }
}

TEST(AftctlUsageTest, ExitsWithTwoAndSaysWhatIsWrong) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"sing"}, "subcommand"},
      {{"health", "--no-such-flag"}, "--no-such-flag"},
      {{"generate", "--max-tokens", "many"}, "--max-tokens"},
      {{"generate", "--max-tokens", "-1"}, "--max-tokens"},
      {{"generate", "--max-tokens", "4294967296"}, "--max-tokens"},
      {{"generate", "--seed", "18446744073709551616"}, "--seed"},
      {{"generate", "--top-k", "1.5"}, "--top-k"},
      {{"generate", "--deadline", "-1"}, "--deadline"},
      {{"generate", "--logprobs", "1"}, "--json"},
      {{"generate", "--prompt", "x", "--file", "y"}, "--file"},
      {{"encode", "--prompt", "x", "--pooling", "max"}, "--pooling"},
      {{"generate", "--prompt", "x", "--address", "nowhere"}, "the port is missing"},
      {{"models", "a", "b"}, "b"},
  };
  for (const auto& [arguments, message] : cases) {
    std::vector<std::string> command = {AFTCTL};
    command.insert(command.end(), arguments.begin(), arguments.end());
    Process aftctl(command);
    EXPECT_EQ(aftctl.Wait(), 2) << message;
    EXPECT_THAT(aftctl.err(), AllOf(StartsWith("aftctl: "), HasSubstr(message)));
    EXPECT_THAT(aftctl.out(), IsEmpty());
  }
}

TEST(AftctlUsageTest, HelpDocumentsTheExitCodes) {
  Process aftctl({AFTCTL, "--help"});
  EXPECT_EQ(aftctl.Wait(), 0);
  EXPECT_THAT(aftctl.out(), AllOf(HasSubstr("Exit codes:"), HasSubstr("130")));
}

}  // namespace
}  // namespace aft::client
