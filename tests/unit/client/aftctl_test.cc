// Runs aftctl as a process, and checks its output and its exit codes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "aft/v1/generation_options.pb.h"
#include "tests/support/certificates.h"
#include "tests/support/proto_text.h"
#include "tests/support/tcp.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/aftctl_fixture.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class AftctlTest : public AftctlFixture {
 protected:
  Ended Fail(const char* arguments, int code) const { return Run(arguments, "", code); }

  // Returns the lines of JSON that a command prints before it exits with `code`.
  std::vector<nlohmann::json> RunJson(const char* arguments, int code = 0) const {
    const std::string out = Fail(arguments, code).out;
    std::vector<nlohmann::json> lines;
    for (const absl::string_view line : absl::StrSplit(out, '\n', absl::SkipEmpty())) {
      lines.push_back(nlohmann::json::parse(line.begin(), line.end()));
    }
    return lines;
  }
};

TEST_F(AftctlTest, GenerateStreamsTheTextAndSumsUpOnStandardError) {
  server_.SetScript(TextScript({"It is ", "a truth"}));
  const Ended ended = Run("generate --prompt hello");
  EXPECT_EQ(ended.out, "It is a truth");
  EXPECT_THAT(ended.err, AllOf(StartsWith("[limit stop.max_tokens=13 | 13 tokens"),
                               HasSubstr("first token after"), HasSubstr("12000.0 tokens/s"),
                               HasSubstr("seed 7")));
}

TEST_F(AftctlTest, GenerateResumesABrokenStreamAndReportsThat) {
  server_.SetAnswer([](const v1::GenerateRequest& request) {
    Script script = TextScript({"It is ", "a truth"});
    script.events[0] = StartedEvent(7, 1);
    if (request.has_resume()) {
      script.events.erase(script.events.begin() + 1);
    } else {
      script = FailedScript({grpc::UNAVAILABLE, "draining"}, {script.events[0], script.events[1]});
    }
    return script;
  });
  const Ended ended = Run("generate --prompt hello");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "It is a truth");
  EXPECT_THAT(ended.err, AllOf(StartsWith("[the stream broke, resuming (1 of 10): "),
                               HasSubstr("[the stream was resumed after 6 tokens: "),
                               HasSubstr("draining; that server computes differently"),
                               HasSubstr("[limit stop.max_tokens=13 | 13 tokens")));
}

TEST_F(AftctlTest, GenerateShowsTextBeforeTheStreamEnds) {
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "no newline yet")}));
  Process aftctl(Command("generate --prompt hello"));
  EXPECT_TRUE(aftctl.WaitForOutput("no newline yet"));
}

// Sends every option of generation_options.proto, and the other options of a request.
TEST_F(AftctlTest, GenerateSendsEveryOption) {
  server_.SetScript(TextScript({"a"}));
  Arguments arguments = {"generate", "--prompt", "hello", "--model", "austen", "--json"};
  for (const char* more : {"--request-id", "r1", "--deadline", "100", "--traceparent",
                           "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}) {
    arguments.push_back(more);
  }
  std::map<std::string, std::string> parts;
  std::string alone;  // options that are fields of the request itself
  const auto& options = v1::GenerationOption::descriptor()->file()->options();
  for (const auto& about : options.GetRepeatedExtension(v1::generation_option)) {
    const std::pair<std::string, std::string> path = absl::StrSplit(about.field(), '.');
    const auto* field = v1::GenerateRequest::descriptor()->FindFieldByName(path.first);
    const bool of_part = !path.second.empty();
    if (of_part) field = field->message_type()->FindFieldByName(path.second);
    // Arguments, and the same values as text proto.
    std::vector<std::pair<std::string, std::string>> values = {{"3", ": 3"}};
    if (field->cpp_type() == field->CPPTYPE_FLOAT) values = {{"-0.5", ": -0.5"}};
    if (field->cpp_type() == field->CPPTYPE_BOOL) values = {{"", ": true"}};
    if (field->cpp_type() == field->CPPTYPE_UINT64) {
      values = {{"18446744073709551615", ": 18446744073709551615"}};
    }
    if (field->is_repeated()) values.emplace_back("4", ": 4");
    if (field->cpp_type() == field->CPPTYPE_STRING) {
      values = {{"[END]", ": '[END]'"}};
      if (field->is_repeated()) values.emplace_back("\n\n", ": '\\n\\n'");
    }
    if (field->is_map()) {
      values = {{"5:-1.5", " { key: 5 value: -1.5 }"}, {"6:100", " { key: 6 value: 100 }"}};
    }
    for (const auto& [argument, text] : values) {
      arguments.push_back(about.flag());
      if (!argument.empty()) arguments.push_back(argument);
      of_part ? absl::StrAppend(&parts[path.first], " ", path.second, text)
              : absl::StrAppend(&alone, " ", path.first, text);
    }
  }
  Run(arguments);
  EXPECT_EQ(server_.traceparent(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
  std::string expected = "text: 'hello' model: 'austen' resumable: true" + alone;
  for (const auto& [part, text] : parts) absl::StrAppend(&expected, " ", part, " {", text, " }");
  ExpectText(server_.last<v1::GenerateRequest>(), expected);
}

TEST_F(AftctlTest, GenerateEchoesThePromptFirst) {
  Script script = TextScript({" a truth"});
  script.events[0].mutable_started()->mutable_prompt()->set_text("It is");
  server_.SetScript(std::move(script));
  EXPECT_EQ(Run("generate --prompt x --echo").out, "It is a truth");
}

TEST_F(AftctlTest, GenerateSetsNoOptionThatIsNotGiven) {
  server_.SetScript(TextScript({"a"}));
  Run("generate --prompt hello");
  ExpectText(server_.last<v1::GenerateRequest>(), "text: 'hello' resumable: true");
}

TEST_F(AftctlTest, GenerateReadsThePromptFromStandardInputAsItIs) {
  server_.SetScript(TextScript({"a"}));
  for (const char* arguments : {"generate", "generate --prompt -"}) {
    Run(arguments, " two\nlines\n");
    EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), " two\nlines\n");
  }
}

TEST_F(AftctlTest, GenerateSendsAPromptThatIsNotUtf8AsRawBytes) {
  server_.SetScript(TextScript({"a"}));
  const std::string bytes("a\xFF\0b", 4);
  Run("generate", bytes);
  EXPECT_EQ(server_.last<v1::GenerateRequest>().prompt_case(), v1::GenerateRequest::kRaw);
  EXPECT_EQ(server_.last<v1::GenerateRequest>().raw(), bytes);
}

TEST_F(AftctlTest, GenerateAcceptsPromptsThatLookLikeOptionsOrAreEmpty) {
  server_.SetScript(TextScript({"a"}));
  for (const std::string prompt : {"--seed", "", "{}", "[a,b]", "%%", "a=b"}) {
    Run(prompt.empty() ? Arguments{"generate", "--prompt", ""}
                       : Arguments{"generate", "--prompt=" + prompt});
    EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), prompt);
  }
}

TEST_F(AftctlTest, GenerateJsonHasOneObjectForEachEvent) {
  Script script = TextScript({"ab"});
  script.events[0] = StartedEvent(18446744073709551615u);
  v1::TokenLogprobs& logprobs = *script.events[1].mutable_delta()->add_logprobs();
  logprobs.set_logprob(-0.5f);
  logprobs.add_top()->set_token_id(98);
  server_.SetScript(script);
  const auto lines = RunJson("generate --prompt hello --json");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0]["started"]["seed"], "18446744073709551615");
  const nlohmann::json& delta = lines[1]["delta"];
  EXPECT_EQ(delta["first_index"], 0);  // zeros are printed too
  EXPECT_EQ(delta["text"], "ab");
  EXPECT_EQ(delta["token_ids"], nlohmann::json({97, 98}));
  EXPECT_EQ(delta["logprobs"][0]["logprob"], -0.5);
  EXPECT_EQ(delta["logprobs"][0]["top"][0]["token_id"], 98);
  const nlohmann::json& finished = lines[2]["finished"];
  EXPECT_EQ(finished["reason"], "FINISH_REASON_LENGTH");
  EXPECT_EQ(finished["limit"], "stop.max_tokens=2");
  EXPECT_EQ(finished["usage"]["generated_tokens"], 2);
  EXPECT_EQ(finished["timings"]["total_us"], "2000");
}

TEST_F(AftctlTest, GenerateJsonEndsWithTheError) {
  v1::Usage usage;
  usage.set_generated_tokens(1);
  Script script = FailedScript(grpc::Status(grpc::UNAVAILABLE, "draining"),
                               {StartedEvent(), DeltaEvent(0, "a")});
  script.trailers = {{"aft-usage-bin", usage.SerializeAsString()},
                     {"grpc-retry-pushback-ms", "1500"}};
  server_.SetScript(script);
  const auto lines = RunJson("generate --prompt hello --json", 5);
  ASSERT_EQ(lines.size(), 3u);
  const nlohmann::json& error = lines[2]["error"];
  EXPECT_EQ(error["code"], "UNAVAILABLE");
  EXPECT_EQ(error["message"], "draining; try again in 1.5 s");
  EXPECT_EQ(error["request_id"], "fake-1");
  EXPECT_EQ(error["retry_after_ms"], 1500);
  EXPECT_EQ(error["usage"]["generated_tokens"], 1);
  EXPECT_FALSE(error.contains("timings"));
}

TEST_F(AftctlTest, GenerateNamesStopStringsAndEndOfText) {
  Script script = TextScript({"a"});
  v1::Finished& finished = *script.events.back().mutable_finished();
  finished.set_reason(v1::FINISH_REASON_STOP);
  finished.set_stop_string("\n\n");
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt x").err, HasSubstr("[stop string \"\\n\\n\" | 1 token |"));

  finished.set_stop_token_id(5);
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt x").err, HasSubstr("[stop token 5 | 1 token |"));

  finished.set_reason(v1::FINISH_REASON_EOS);
  finished.clear_stopped_by();
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt x").err, HasSubstr("[end of text | 1 token |"));
}

TEST_F(AftctlTest, ExitCodesFollowTheKindOfFailure) {
  const std::vector<std::pair<grpc::StatusCode, int>> cases = {
      {grpc::INVALID_ARGUMENT, 4}, {grpc::NOT_FOUND, 4},          {grpc::UNIMPLEMENTED, 4},
      {grpc::UNAVAILABLE, 5},      {grpc::RESOURCE_EXHAUSTED, 5}, {grpc::DEADLINE_EXCEEDED, 6},
      {grpc::DATA_LOSS, 1},        {grpc::INTERNAL, 1},           {grpc::UNKNOWN, 1},
      {grpc::CANCELLED, 1},        {grpc::PERMISSION_DENIED, 4},  {grpc::UNAUTHENTICATED, 4},
      {grpc::OUT_OF_RANGE, 4}};
  for (const auto& [code, exit_code] : cases) {
    server_.SetScript(FailedScript(grpc::Status(code, "the server's own words")));
    const Ended ended = Fail("generate --prompt x", exit_code);
    EXPECT_THAT(ended.out, IsEmpty());
    EXPECT_THAT(ended.err, AllOf(StartsWith("aftctl: "), HasSubstr("(request fake-1)"))) << code;
  }
  Script final = FailedScript(grpc::Status(grpc::RESOURCE_EXHAUSTED, "too large"));
  final.trailers = {{"grpc-retry-pushback-ms", "-1"}};
  server_.SetScript(final);
  Fail("generate --prompt x", 4);  // another try would end in the same way
}

TEST_F(AftctlTest, GenerateReportsLostTokensWithItsOwnCode) {
  Script script = TextScript({"a"});
  script.events.pop_back();
  server_.SetScript(script);
  EXPECT_THAT(Fail("generate --prompt x", 7).err, HasSubstr("without Finished"));
}

TEST_F(AftctlTest, GenerateGivesUpAtItsDeadline) {
  server_.SetScript(StalledScript());
  EXPECT_THAT(Fail("generate --prompt x --deadline 0.1", 6).err, HasSubstr("0.1 s"));
}

TEST_F(AftctlTest, InterruptCancelsOnTheServerAndSaysSo) {
  const std::vector<std::pair<int, int>> signals = {{SIGINT, 130}, {SIGTERM, 143}};
  int cancellations = 0;
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "abc")}));
  for (const auto& [signal, exit_code] : signals) {
    Process aftctl(Command("generate --prompt x"));
    ASSERT_TRUE(aftctl.WaitForOutput("abc"));
    aftctl.Signal(signal);
    EXPECT_EQ(aftctl.Wait(), exit_code);
    EXPECT_EQ(aftctl.out(), "abc");
    EXPECT_THAT(aftctl.err(), HasSubstr("interrupted: cancelled on the server after 3 tokens"));
    server_.WaitForCancellations(++cancellations);
  }
}

TEST_F(AftctlTest, ABrokenPipeCancelsOnTheServerAndIsQuiet) {
  server_.SetScript(EndlessScript());
  Process aftctl(Command("generate --prompt x"));
  ASSERT_TRUE(aftctl.WaitForOutput("xxx"));
  aftctl.CloseOutput();
  EXPECT_EQ(aftctl.Wait(), 141);
  EXPECT_THAT(aftctl.err(), IsEmpty());
  server_.WaitForCancellations(1);
}

TEST_F(AftctlTest, ScorePrintsTotals) {
  server_.SetScript(ScoreScript());
  const Ended ended = Run("score --prompt abc --model austen");
  ExpectText(server_.last<v1::ScoreRequest>(), "text: 'abc' model: 'austen' resumable: true");
  EXPECT_EQ(ended.out,
            "tokens           3, of them scored 2\n"
            "log-probability  -3.0000\n"
            "bits per byte    2.1640\n"
            "perplexity       4.4817\n");
}

TEST_F(AftctlTest, ScorePrintsATableOfTokens) {
  server_.SetScript(ScoreScript());
  const Ended ended = Run("score --prompt abc --tokens --logprobs 1");
  EXPECT_EQ(server_.last<v1::ScoreRequest>().output().top_logprobs(), 1u);
  EXPECT_THAT(ended.out, StartsWith("  INDEX   TOKEN    LOGPROB\n"
                                    "      1      98    -1.0000 5:-0.5000\n"
                                    "      2      99    -2.0000 5:-0.5000\n"
                                    "tokens "));
}

TEST_F(AftctlTest, ScorePrintsJsonLines) {
  server_.SetScript(ScoreScript());
  const auto lines = RunJson("score --prompt abc --json");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["started"]["tokens"], 3);
  EXPECT_EQ(lines[1]["chunk"]["token_ids"], nlohmann::json({98}));
  EXPECT_EQ(lines[2]["chunk"]["logprobs"][0]["logprob"], -2.0);
  EXPECT_EQ(lines[3]["finished"]["logprob"], -3.0);
  EXPECT_EQ(lines[3]["finished"]["scored_bytes"], "2");
}

TEST_F(AftctlTest, ScoreReadsTheTextFromAFileOrStandardInputAsItIs) {
  server_.SetScript(ScoreScript());
  const TempFolder folder;
  const std::string file = folder.File("text");
  std::ofstream(file, std::ios::binary) << "not \xff UTF-8\n";
  Run(Arguments{"score", "--file", file});
  EXPECT_EQ(server_.last<v1::ScoreRequest>().raw(), "not \xff UTF-8\n");
  Run("score", "piped\n");
  EXPECT_EQ(server_.last<v1::ScoreRequest>().text(), "piped\n");
  const Ended missing = Run(Arguments{"score", "--file", folder.File("missing")}, "", 2);
  EXPECT_THAT(missing.err, AllOf(HasSubstr("cannot read"), HasSubstr("No such file")));
}

TEST_F(AftctlTest, EncodePrintsALineForEachVector) {
  server_.SetScript(EncodeScript());
  const Ended ended = Run("encode --prompt ab --pooling mean --normalize --priority batch");
  ExpectText(server_.last<v1::EncodeRequest>(),
             "text: 'ab' pooling: POOLING_MEAN normalize: true priority: PRIORITY_BATCH");
  EXPECT_EQ(ended.out, "1 0.100000001\n-2.5 3\n");
  EXPECT_THAT(ended.err, StartsWith("[2 tokens | 2 vectors of 2 | in a batch of 4 | "));
}

TEST_F(AftctlTest, EncodePrintsJsonLines) {
  server_.SetScript(EncodeScript());
  const auto lines = RunJson("encode --prompt ab --json");
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0]["started"]["width"], 2);
  EXPECT_EQ(lines[2]["vectors"]["first_index"], 1);
  EXPECT_EQ(lines[2]["vectors"]["values"], nlohmann::json({-2.5, 3.0}));
  EXPECT_EQ(lines[3]["finished"]["batch_rows"], 4);
}

TEST_F(AftctlTest, AModelThatDoesNotSupportACallIsAnError) {
  server_.SetScript(FailedScript({grpc::FAILED_PRECONDITION, "model \"fake\" is an encoder"}));
  EXPECT_EQ(RunJson("score --prompt x --json", 4)[0]["error"]["code"], "FAILED_PRECONDITION");
  EXPECT_THAT(Fail("encode --prompt x", 4).err, HasSubstr("is an encoder"));
}

TEST_F(AftctlTest, GenerateSendsAndPrintsIdsOfStates) {
  Script script = TextScript({"abc"});
  script.events.back().mutable_finished()->mutable_state()->set_id("0123");
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt x --store --previous 89ab").err, HasSubstr("| state 0123]"));
  const auto request = server_.last<v1::GenerateRequest>();
  EXPECT_TRUE(request.has_store());
  EXPECT_EQ(request.previous().state_id(), "89ab");
  EXPECT_EQ(Run("generate --prompt x").code, 0);
  EXPECT_FALSE(server_.last<v1::GenerateRequest>().has_store());
  EXPECT_FALSE(server_.last<v1::GenerateRequest>().has_previous());
}

TEST_F(AftctlTest, StatesAreShownListedAndDeleted) {
  EXPECT_EQ(RunJson("state get b")[0]["id"], "b");
  const auto all = RunJson("state list");
  ASSERT_EQ(all.size(), 2u);
  EXPECT_EQ(all[0]["id"], "a");
  EXPECT_EQ(all[1]["id"], "b");
  EXPECT_EQ(Run("state delete a b").out, "");
  EXPECT_EQ(server_.last<v1::StateServiceDeleteRequest>().id(), "b");
  EXPECT_THAT(Fail("state delete c", 4).err, StartsWith("aftctl: no state of this id"));
  EXPECT_THAT(Fail("state delete a c", 4).err, StartsWith("aftctl: c: no state of this id"));
  EXPECT_THAT(Fail("state get a c", 4).err, StartsWith("aftctl: c: "));
  EXPECT_THAT(Fail("state get", 2).err, HasSubstr("need ids"));
  EXPECT_THAT(Fail("state export a b", 2).err, HasSubstr("export one"));
  EXPECT_THAT(Fail("state import no-such-file", 2).err, HasSubstr("cannot read no-such-file"));
  EXPECT_THAT(Fail("state list a", 2).err, HasSubstr("takes none"));
}

TEST_F(AftctlTest, ModelsListsAndDescribes) {
  server_.SetModels(
      {FromText<v1::Model>("name: 'austen' state: MODEL_STATE_READY parameters: 3000000 "
                           "state_bytes: 3145728"),
       FromText<v1::Model>("name: 'broken' state: MODEL_STATE_FAILED "
                           "error: 'model.safetensors: truncated'")});

  const Ended list = Run("models");
  EXPECT_THAT(list.out,
              AllOf(StartsWith("NAME"), HasSubstr("ready"), HasSubstr("3.0 MiB"),
                    HasSubstr("unlimited"), HasSubstr("broken: model.safetensors: truncated")));

  const Ended one = Run("models austen");
  EXPECT_THAT(one.out, AllOf(HasSubstr("3000000"), testing::Not(HasSubstr("broken"))));

  const auto lines = RunJson("models --json");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["state"], "MODEL_STATE_READY");
  EXPECT_EQ(lines[0]["parameters"], "3000000");
  EXPECT_EQ(lines[1]["error"], "model.safetensors: truncated");

  EXPECT_THAT(Fail("models eliot", 4).err, HasSubstr("no model \"eliot\""));
}

TEST_F(AftctlTest, HealthIsZeroOnlyWhenServing) {
  const Ended serving = Run("health");
  EXPECT_EQ(serving.out, "SERVING\n");
  const Ended down = Fail("health --service=down", 1);
  EXPECT_EQ(down.out, "NOT_SERVING\n");
  Fail("health --service=unknown", 4);
}

TEST_F(AftctlTest, HealthGivesUpOnAServerThatStalls) {
  server_.SetScript(StalledScript());
  Fail("health --deadline=0.1", 6);
}

TEST(AftctlTlsTest, UsesTlsAndSendsItsToken) {
  const Certificate authority = MakeAuthority("authority");
  const Certificate own = MakeCertificate(authority, "localhost");
  grpc::SslServerCredentialsOptions tls;
  tls.pem_key_cert_pairs = {{own.key, own.certificate}};
  FakeServer server(0, grpc::SslServerCredentials(tls));
  server.SetScript(TextScript({"ab"}));
  const TempFolder folder;
  const std::string ca = folder.File("ca.crt");
  const std::string token = folder.File("token");
  WriteBytes(ca, authority.certificate);
  WriteBytes(token, "abc123\n");
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {AFTCTL,      "generate",
                                        "--prompt",  "x",
                                        "--address", absl::StrCat("localhost:", server.port())};
    command.insert(command.end(), more.begin(), more.end());
    return RunToEnd(command).code;
  };
  EXPECT_EQ(run({"--tls", "--ca", ca, "--token-file", token}), 0);
  EXPECT_EQ(server.authorization(), "Bearer abc123");
  const Ended plain =
      RunToEnd({AFTCTL, "health", "--address", absl::StrCat("127.0.0.1:", server.port())});
  EXPECT_EQ(plain.code, 3);
  EXPECT_THAT(plain.err, HasSubstr("does it expect TLS"));
  const auto refused = [&](const char* host, const std::vector<std::string>& more) {
    std::vector<std::string> command = {AFTCTL, "health", "--tls", "--address",
                                        absl::StrCat(host, ":", server.port())};
    command.insert(command.end(), more.begin(), more.end());
    return RunToEnd(command).err;
  };
  EXPECT_THAT(refused("localhost", {}), HasSubstr("give the authority's certificate (--ca)"));
  EXPECT_THAT(refused("127.0.0.1", {"--ca", ca}), HasSubstr("is for another host name"));
  EXPECT_EQ(run({"--tls", "--ca", ca + ".absent"}), 2);
  const std::string empty = folder.File("empty");
  WriteBytes(empty, "\n");
  EXPECT_EQ(run({"--tls", "--ca", empty}), 2);
  EXPECT_EQ(run({"--tls", "--ca", ca, "--token-file", empty}), 2);
  EXPECT_EQ(run({"--tls", "--cert", ca}), 2);  // without its key
  EXPECT_EQ(run({"--ca", ca}), 2);             // without --tls
  EXPECT_EQ(server.requests(), 1);
}

TEST_F(AftctlTest, ReadsTheAddressTheTokenAndTheTraceFromTheEnvironment) {
  const TempFolder folder;
  WriteBytes(folder.File("token"), "abc123\n");
  const std::string trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
  server_.SetScript(TextScript({"a"}));
  const Ended ended = RunToEnd({AFTCTL, "generate", "--prompt", "x"}, "",
                               {"AFT_ADDRESS=" + server_.address(), "TRACEPARENT=" + trace,
                                "AFT_TOKEN_FILE=" + folder.File("token")});
  EXPECT_EQ(ended.code, 0) << ended.err;
  EXPECT_EQ(server_.traceparent(), trace);
  EXPECT_EQ(server_.authorization(), "Bearer abc123");
  const Ended ignored =
      RunToEnd(Command("generate --prompt x"), "", {absl::StrCat("TRACEPARENT=", trace, "-more")});
  EXPECT_EQ(ignored.code, 0) << ignored.err;
  EXPECT_EQ(server_.traceparent(), "");
}

TEST(AftctlUnreachableTest, ExitsWithThree) {
  const ClosedPort port;
  for (const char* subcommand : {"health", "models", "generate", "score", "encode"}) {
    const Ended ended = RunToEnd({AFTCTL, subcommand, "--address", port.address()}, "prompt");
    EXPECT_EQ(ended.code, 3) << subcommand;
    EXPECT_EQ(ended.err, absl::StrCat("aftctl: cannot reach ", port.address(),
                                      ": connection refused; is the server running?\n"));
  }
}

TEST_F(AftctlTest, SaysThatAServerDoesNotSpeakTls) {
  EXPECT_THAT(Fail("health --tls", 3).err, HasSubstr("the server does not speak TLS"));
}

TEST_F(AftctlTest, ReadsThePromptFromAPlainArgument) {
  server_.SetScript(TextScript({"ab"}));
  EXPECT_EQ(Run("generate hello --max-tokens 2").out, "ab");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().text(), "hello");
}

}  // namespace
}  // namespace aft::client
