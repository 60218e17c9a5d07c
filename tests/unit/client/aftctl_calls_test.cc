// Runs aftctl as a process: complete, tokenize and detokenize; several texts and several answers;
// and a server that is lost in the middle of a stream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "inference/grpc_service.pb.h"
#include "tests/support/proto_text.h"
#include "tests/unit/client/aftctl_fixture.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/tcp_gate.h"
#include "tests/unit/client/terminal_process.h"

namespace aft::client {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class AftctlCallsTest : public AftctlFixture {
 protected:
  // Returns a shell that waits for a line of input and then becomes aftctl.
  Arguments Later(const char* arguments) const {
    Arguments later = {"sh", "-c", "read -r line && exec \"$@\"", "sh"};
    const Arguments command = Command(arguments);
    later.insert(later.end(), command.begin(), command.end());
    return later;
  }

  // The answers to Tokenize and Detokenize.
  static Script TokensScript(const char* tokens, const char* pieces) {
    Script script = StreamScript<v1::TokenizeResponse>({tokens});
    const Script back = StreamScript<v1::DetokenizeResponse>({pieces});
    script.other_events.push_back(back.other_events.front());
    return script;
  }

  // Runs a generation whose server is lost after the text "abc" and never comes back.
  Ended LoseTheServer(const std::string& max_resumes) {
    server_.SetScript(StalledScript({StartedEvent(7, 1), DeltaEvent(0, "abc")}));
    TcpGate gate(server_.port());
    Process aftctl({AFTCTL, "--address", gate.address(), "generate", "--prompt", "hello",
                    "--max-resumes", max_resumes});
    EXPECT_TRUE(aftctl.WaitForOutput("abc"));
    gate.Cut();
    const int code = aftctl.Wait();
    EXPECT_EQ(aftctl.out(), "abc");
    return {code, aftctl.out(), aftctl.err()};
  }
};

TEST_F(AftctlCallsTest, CompletePrintsTheWholeAnswer) {
  server_.SetScript(StreamScript<v1::CompleteResponse>(
      {"started { seed: 7 prompt { text: 'It is' } }"
       "answers { text: ' a truth' finished { limit: 'stop.max_tokens=2'"
       "          usage { generated_tokens: 2 } } }"}));
  const Ended ended = Run("complete --prompt hello --max-tokens 2 --n 1 --model austen");
  EXPECT_EQ(ended.out, "It is a truth");
  EXPECT_THAT(ended.err, StartsWith("[limit stop.max_tokens=2 | 2 tokens"));
  ExpectText(server_.last<v1::GenerateRequest>(),
             "text: 'hello' model: 'austen' n: 1 stop { max_tokens: 2 }");
  EXPECT_EQ(nlohmann::json::parse(Run("complete --prompt x --json").out)["answers"][0]["text"],
            " a truth");
  Run("complete --prompt hello --priority batch");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().priority(), v1::PRIORITY_BATCH);
}

TEST_F(AftctlCallsTest, AFailedStreamIsReportedWithTheServersCount) {
  Script script = FailedScript(grpc::Status(grpc::UNAVAILABLE, "draining"),
                               {StartedEvent(), DeltaEvent(0, "a")});
  v1::Usage usage;
  usage.set_generated_tokens(2);
  usage.set_scored_tokens(1);
  v1::Timings timings;
  timings.set_total_us(2500);
  script.trailers = {{"aft-usage-bin", usage.SerializeAsString()},
                     {"aft-timings-bin", timings.SerializeAsString()}};
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt hello", "", 5).err,
              HasSubstr("[server's count: 3 tokens in 2.5 ms]"));
  const std::string out = Run("generate --prompt hello --json", "", 5).out;
  const auto line = nlohmann::json::parse(out.substr(out.rfind('\n', out.size() - 2) + 1));
  EXPECT_EQ(line["error"]["timings"]["total_us"], "2500");
}

TEST_F(AftctlCallsTest, CompletePrintsSeveralAnswersOneAfterTheOther) {
  server_.SetScript(
      StreamScript<v1::CompleteResponse>({"started { seed: 7 } answers { text: 'one' finished {} } "
                                          "answers { text: 'two' finished {} }"}));
  const Ended ended = Run("complete --prompt hello --n 2");
  EXPECT_EQ(ended.out, "== 1 of 2, seed 7 ==\none\n\n== 2 of 2, seed 8 ==\ntwo");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("seed 7"), HasSubstr("seed 8")));
}

// The times are those of the last server, so tokens from before the break do not count.
TEST_F(AftctlCallsTest, TheRateIsOfTheTokensThatTheLastServerGenerated) {
  for (const auto& [resumed, rate] :
       std::vector<std::pair<uint32_t, const char*>>{{0, " ms | 12000.0 tokens/s | seed 7]"},
                                                     {6, " ms | 6000.0 tokens/s | seed 7]"},
                                                     {13, " ms | seed 7]"},
                                                     {14, " ms | seed 7]"}}) {
    Script script = TextScript({"It is a truth"});
    script.events.back().mutable_finished()->mutable_usage()->set_resumed_tokens(resumed);
    server_.SetScript(script);
    EXPECT_THAT(Run("generate --prompt hello").err, AllOf(HasSubstr("13 tokens"), HasSubstr(rate)));
  }
}

TEST_F(AftctlCallsTest, TokenizePrintsALineForEachId) {
  server_.SetScript(TokensScript("model: 'm' token_ids: [5, 6] byte_ends: [2, 5]",
                                 "raw: 'h\\377llo' byte_ends: [2, 5]"));
  EXPECT_EQ(Run("tokenize --prompt hello --model m").out, "5\t\"h\\xff\"\n6\t\"llo\"\n");
  ExpectText(server_.last<v1::TokenizeRequest>(), "model: 'm' text: 'hello'");
  ExpectText(server_.last<v1::DetokenizeRequest>(), "model: 'm' token_ids: [5, 6]");
  EXPECT_EQ(Run("tokenize", "h\xFFllo").out, "5\t\"h\\xff\"\n6\t\"llo\"\n");
  EXPECT_EQ(server_.last<v1::TokenizeRequest>().raw(), "h\xFFllo");
  EXPECT_EQ(nlohmann::json::parse(Run("tokenize --prompt hello --json").out)["byte_ends"][1], 5);
}

TEST_F(AftctlCallsTest, DetokenizePrintsTheBytes) {
  server_.SetScript(StreamScript<v1::DetokenizeResponse>(
      {"text: 'h\\357\\277\\275' raw: 'h\\377' byte_ends: [2]"}));
  EXPECT_EQ(Run("detokenize 5 6 --model m").out, "h\xFF");
  ExpectText(server_.last<v1::DetokenizeRequest>(), "model: 'm' token_ids: [5, 6]");
  EXPECT_EQ(nlohmann::json::parse(Run("detokenize 5 --json").out)["text"], "h\xEF\xBF\xBD");
}

TEST_F(AftctlCallsTest, FailedUnaryCallsReportTheError) {
  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "token_ids[0]: must be below 3"}));
  EXPECT_THAT(Run("detokenize 5", "", 4).err, HasSubstr("token_ids[0]: must be below 3"));
  EXPECT_THAT(Run("complete --prompt x", "", 4).err, HasSubstr("token_ids[0]"));
}

TEST_F(AftctlCallsTest, NoAnswerControlsTheTerminal) {
  const std::string text = "\x1B[2Jx\xC2\x9By";
  Script script = TextScript({text});
  v1::CompleteResponse complete;
  complete.add_answers()->set_text(text);
  const auto infer = FromText<inference::ModelInferResponse>(
      "outputs { name: 'logits' contents { fp32_contents: 0 } }");
  v1::DetokenizeResponse pieces;
  pieces.set_text(text);
  pieces.set_raw(text);
  script.other_events = {std::make_shared<v1::CompleteResponse>(complete),
                         std::make_shared<v1::DetokenizeResponse>(pieces),
                         std::make_shared<inference::ModelInferResponse>(infer)};
  server_.SetScript(script);
  auto model = FromText<v1::Model>("name: 'm' versions { version: '1' }");
  model.set_error(text);
  model.add_labels(text);
  model.mutable_versions(0)->set_error(text);
  server_.SetModels({model});
  for (const char* arguments : {"generate x", "complete x", "detokenize 5", "models", "models m",
                                "repository list", "infer --model m --text x"}) {
    TerminalProcess aftctl(Command(arguments));
    EXPECT_TRUE(aftctl.WaitFor("\xEF\xBF\xBD[2Jx\xEF\xBF\xBDy")) << arguments;
  }
}

TEST_F(AftctlCallsTest, AnErrorDoesNotControlTheTerminal) {
  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "bad \x1B[2J \xC2\x9Bm"}));
  EXPECT_THAT(Run("generate x", "", 4).err, HasSubstr("bad \xEF\xBF\xBD[2J \xEF\xBF\xBDm"));
}

TEST_F(AftctlCallsTest, ASummaryDoesNotControlTheTerminal) {
  server_.SetAnswer([calls = 0](const v1::GenerateRequest&) mutable {
    if (++calls == 1) {
      return FailedScript({grpc::UNAVAILABLE, "bad \x1B[2J"},
                          {StartedEvent(7, 1), DeltaEvent(0, "a")});
    }
    Script rest;
    rest.events = {StartedEvent(7, 1), DeltaEvent(1, "b"), FinishedEvent(2)};
    return rest;
  });
  const Ended ended = Run("generate --prompt x");
  EXPECT_EQ(ended.out, "ab");
  EXPECT_THAT(ended.err, AllOf(HasSubstr("bad \xEF\xBF\xBD[2J"), Not(HasSubstr("\x1B"))));
}

TEST_F(AftctlCallsTest, AnOutputThatCannotBeWrittenIsNoSuccess) {
  server_.SetModels({FromText<v1::Model>("name: 'm' versions { version: '1' }")});
  for (const char* arguments :
       {"health", "models", "repository list", "state list", "tokenize x", "chat"}) {
    server_.SetScript(TokensScript("token_ids: 5", "raw: 'x' byte_ends: 1"));
    Process unread(Later(arguments));
    unread.CloseOutput();
    unread.Send("go\n/help\n");
    EXPECT_EQ(unread.Wait(), 141) << arguments;
    EXPECT_EQ(unread.err(), "") << arguments;
    Arguments full = {"sh", "-c", "exec \"$@\" >/dev/full", "sh"};
    const Arguments command = Command(arguments);
    full.insert(full.end(), command.begin(), command.end());
    const Ended ended = RunToEnd(full, "/help\n");
    EXPECT_EQ(ended.code, 1) << arguments;
    EXPECT_EQ(ended.err, "aftctl: cannot write the output: No space left on device\n");
  }
}

TEST_F(AftctlCallsTest, AFolderIsNoFileToRead) {
  for (const char* arguments : {"health --token-file /", "health --tls --ca /", "generate --file /",
                                "infer --image /", "state import /"}) {
    EXPECT_THAT(Run(arguments, "", 2).err, HasSubstr("cannot read /: Is a directory"));
  }
}

TEST_F(AftctlCallsTest, ScoreAcceptsAContext) {
  server_.SetScript(StreamScript<v1::ScoreResponse>({
      "started { model: 'fake' tokens: 3 }",
      "chunk { first_index: 2 token_ids: 99 logprobs { logprob: -2 } }",
      "finished { scored_tokens: 1 scored_bytes: 1 logprob: -2 perplexity: 7.25 }",
  }));
  const Ended ended = Run("score --prompt abc --context-tokens 2 --tokens");
  ExpectText(server_.last<v1::ScoreRequest>(), "text: 'abc' context_tokens: 2 resumable: true");
  EXPECT_EQ(ended.out.substr(0, ended.out.find("log-probability")),
            "  INDEX   TOKEN    LOGPROB\n"
            "      2      99    -2.0000\n"
            "tokens           3, of them scored 1\n");
  Run("score --prompt abc --context-tokens 2 --tokens --initial-state tuned");
  EXPECT_EQ(server_.last<v1::ScoreRequest>().initial_state(), "tuned");
}

TEST_F(AftctlCallsTest, ScorePrintsTheStateThatItStored) {
  server_.SetScript(StreamScript<v1::ScoreResponse>({
      "started { tokens: 2 text_tokens: [2] }",
      "finished { scored_tokens: 1 scored_bytes: 1 logprob: -2 perplexity: 7 state { id: 's1' } }",
  }));
  EXPECT_THAT(Run("score --prompt ab --store").out, HasSubstr("\nstate            s1\n"));
  EXPECT_TRUE(server_.last<v1::ScoreRequest>().has_store());
  EXPECT_THAT(Run("score --text ab --store").out, HasSubstr(" s1\n"));
}

TEST_F(AftctlCallsTest, ScoreAcceptsSeveralTextsAndPrintsALineForEach) {
  const Script script = StreamScript<v1::ScoreResponse>({
      "started { tokens: 5 text_tokens: [3, 2] fingerprint: 1 }",
      "index: 1 chunk { first_index: 1 token_ids: 99 logprobs { logprob: -2 } }",
      "index: 1 finished { scored_tokens: 1 logprob: -2 perplexity: 7.25 scored_bytes: 1 }",
      "chunk { first_index: 1 token_ids: 98 logprobs { logprob: -1 } }",
      "finished { scored_tokens: 2 logprob: -3 perplexity: 4.5 scored_bytes: 2 }",
  });
  const std::string table =
      "  TEXT  TOKENS  SCORED  LOGPROBABILITY  BITS/BYTE  PERPLEXITY\n"
      "     0       3       2         -3.0000     2.1640      4.5000\n"
      "     1       2       1         -2.0000     2.8854      7.2500\n";
  server_.SetScript(script);
  EXPECT_EQ(Run("score --text abc --text -x --model m --model-version 3").out, table);
  ExpectText(server_.last<v1::ScoreRequest>(),
             "texts { text: 'abc' } texts { text: '-x' } model: 'm' model_version: '3' "
             "resumable: true");
  EXPECT_EQ(Run("score --lines --tokens", "abc\n\xff\n").out,
            "  TEXT   INDEX   TOKEN    LOGPROB\n"
            "     1       1      99    -2.0000\n"
            "     0       1      98    -1.0000\n" +
                table);
  ExpectText(server_.last<v1::ScoreRequest>(),
             R"(texts { text: 'abc' } texts { raw: '\377' } resumable: true)");
  Run("score --lines --text abc", "", 2);
  Run("score --prompt abc --text abc", "", 2);
}

TEST_F(AftctlCallsTest, EncodePrintsTextsInTheirOrder) {
  server_.SetScript(StreamScript<v1::EncodeResponse>({
      "started { width: 2 tokens: 4 text_tokens: [1, 2, 1] }",
      "index: 1 vectors { values: [1, 2] }",
      "vectors { values: [3, 4] }",
      "index: 1 vectors { first_index: 1 values: [5, 6] }",
      "index: 1 finished { batch_rows: 2 }",
      "index: 2 vectors { values: [7, 8] }",
      "index: 0 finished { batch_rows: 2 }",
      "index: 2 finished { batch_rows: 1 }",
  }));
  const Ended ended = Run("encode --lines", "a\nbc\nd");
  ExpectText(server_.last<v1::EncodeRequest>(),
             "texts { text: 'a' } texts { text: 'bc' } texts { text: 'd' }");
  EXPECT_EQ(ended.out, "3 4\n\n1 2\n5 6\n\n7 8\n");
  EXPECT_THAT(ended.err, StartsWith("[3 texts | 4 tokens | 4 vectors of 2 | "));
  EXPECT_EQ(Run("encode --pooling last --text a --text bc --text d").out, "3 4\n1 2\n5 6\n7 8\n");
}

TEST_F(AftctlCallsTest, NamesOfPoolingsAndPrioritiesAreThoseOfTheProtocol) {
  const std::pair<std::string, v1::Pooling> poolings[] = {{"none", v1::POOLING_UNSPECIFIED},
                                                          {"mean", v1::POOLING_MEAN},
                                                          {"first", v1::POOLING_FIRST},
                                                          {"last", v1::POOLING_LAST},
                                                          {"model", v1::POOLING_MODEL}};
  server_.SetScript(EncodeScript());
  for (const auto& [name, pooling] : poolings) {
    Run(Arguments{"encode", "--prompt", "ab", "--pooling", name});
    EXPECT_EQ(server_.last<v1::EncodeRequest>().pooling(), pooling) << name;
  }
  const std::pair<std::string, v1::Priority> priorities[] = {
      {"interactive", v1::PRIORITY_INTERACTIVE},
      {"normal", v1::PRIORITY_NORMAL},
      {"batch", v1::PRIORITY_BATCH}};
  server_.SetScript(TextScript({"a"}));
  for (const auto& [name, priority] : priorities) {
    Run(Arguments{"generate", "--prompt", "x", "--priority", name});
    EXPECT_EQ(server_.last<v1::GenerateRequest>().priority(), priority) << name;
  }
}

TEST_F(AftctlCallsTest, ModelsDescribesWhatAModelServes) {
  server_.SetModels(
      {FromText<v1::Model>("name: 'austen' task: TASK_GENERATE vector_width: 192 "
                           "state_bytes_per_token: 2048 "
                           "load { requests_running: 2 requests_waiting: 3 utilization: 0.25 }"),
       FromText<v1::Model>("name: 'bert' task: TASK_ENCODE vector_width: 64"),
       FromText<v1::Model>("name: 'lines' task: TASK_CLASSIFY labels: ['a', 'b']")});
  EXPECT_THAT(Run("models austen").out,
              AllOf(HasSubstr("  generate, score, encode: vectors of 192\n"),
                    HasSubstr("0 B, 2.0 KiB per token\n"),
                    HasSubstr("  2 running, 3 waiting, 25 % of the slots\n")));
  EXPECT_THAT(Run("models bert").out, HasSubstr("  encode: vectors of 64\n"));
  EXPECT_THAT(Run("models lines").out, HasSubstr("  classify: 2 labels\n"));
}

TEST_F(AftctlCallsTest, AModelsVersionIsNamed) {
  server_.SetScript(TextScript({"x"}));
  Run("generate --prompt hello --model m --model-version 7");
  EXPECT_EQ(server_.last<v1::GenerateRequest>().model_version(), "7");
}

TEST_F(AftctlCallsTest, GeneratePrintsSequencesOneAfterTheOther) {
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
  server_.SetScript(script);
  const Ended ended = Run("generate --prompt hello --n 3");
  EXPECT_EQ(ended.out,
            "== 1 of 3, seed 7 ==\nfirst\n\n"
            "== 2 of 3, seed 8 ==\nsecond\n\n"
            "== 3 of 3, seed 9 ==\nthird");
  EXPECT_THAT(ended.err,
              AllOf(HasSubstr("5 tokens | first token"), HasSubstr("seed 7]"),
                    HasSubstr("7 tokens | 6000.0 tokens/s | seed 8]"), HasSubstr("seed 9]")));
  EXPECT_EQ(server_.last<v1::GenerateRequest>().n(), 3U);
  // JSON lines come in the order of the events.
  const std::vector<std::string> lines =
      absl::StrSplit(Run("generate --prompt hello --n 3 --json").out, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 9U);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["sequence"], 1);
  EXPECT_EQ(nlohmann::json::parse(lines[4])["sequence"], 1);
  EXPECT_TRUE(nlohmann::json::parse(lines[4]).contains("finished"));
  // A sequence that never ends is an error.
  script.events.pop_back();
  server_.SetScript(script);
  EXPECT_THAT(Run("generate --prompt hello --n 3", "", 7).err, HasSubstr("without Finished"));
  EXPECT_THAT(Run("generate --prompt hello --n 17", "", 2).err, HasSubstr("--n"));
}

TEST_F(AftctlCallsTest, WithoutResumesItEndsWithTheErrorOfTheLostServer) {
  const Ended ended = LoseTheServer("0");
  EXPECT_EQ(ended.code, 7);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("aftctl: "), Not(HasSubstr("resuming"))));
}

TEST_F(AftctlCallsTest, ItReportsEachAttemptToResume) {
  const Ended ended = LoseTheServer("2");
  EXPECT_EQ(ended.code, 3);
  EXPECT_THAT(ended.err, AllOf(HasSubstr("[the stream broke, resuming (1 of 2): "),
                               HasSubstr("[the stream broke, resuming (2 of 2) in 0.1 s: "),
                               HasSubstr("aftctl: ")));
}

}  // namespace
}  // namespace aft::client
