// Runs aftctl chat as a process, with lines from a pipe and on a terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/terminal_process.h"

namespace aft::client {
namespace {

using testing::HasSubstr;

std::vector<std::string> ChatCommand(const FakeServer& server,
                                     const std::vector<std::string>& more = {}) {
  std::vector<std::string> command = {AFTCTL, "--address", server.address(), "chat"};
  command.insert(command.end(), more.begin(), more.end());
  return command;
}

class ChatTest : public testing::Test {
 protected:
  ChatTest() { Answer("abc", "s1"); }

  // From now on every turn gets this answer and stores a state with this id.
  void Answer(const std::string& text, const std::string& state) {
    Script script = TextScript({text});
    script.events.back().mutable_finished()->mutable_state()->set_id(state);
    server_.SetScript(script);
  }

  // Runs a chat with these lines as its input, until it ends.
  Ended Run(const std::string& lines, const std::vector<std::string>& more = {}) const {
    return RunToEnd(ChatCommand(server_, more), lines);
  }
  // Sends a line and waits for its answer. Every turn gets this answer from now on.
  void Say(Process& chat, const std::string& line, const std::string& answer,
           const std::string& state) {
    Answer(answer, state);
    chat.Send(line + "\n");
    EXPECT_TRUE(chat.WaitForOutput(answer));
  }
  v1::GenerateRequest last() const { return server_.last<v1::GenerateRequest>(); }
  std::string deleted() const { return server_.last<v1::StateServiceDeleteRequest>().id(); }

  FakeServer server_;
};

TEST_F(ChatTest, ALineBeginsTheTextAndTheNextOneContinuesItsState) {
  const Ended one = Run("one\n", {"--model", "austen", "--max-tokens=7", "--temperature=0.5"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, "abc");
  EXPECT_THAT(one.err, HasSubstr("to continue: aftctl chat --previous s1"));
  EXPECT_EQ(last().text(), "one\n");
  EXPECT_EQ(last().model(), "austen");
  EXPECT_EQ(last().stop().max_tokens(), 7u);
  EXPECT_EQ(last().sampling().temperature(), 0.5F);
  EXPECT_TRUE(last().has_store());
  EXPECT_FALSE(last().has_previous());

  EXPECT_EQ(Run("one\ntwo\n").out, "abcabc");
  EXPECT_EQ(last().text(), "two\n");
  EXPECT_EQ(last().previous().state_id(), "s1");
  EXPECT_EQ(deleted(), "");

  EXPECT_EQ(Run("one\n", {"--previous", "given"}).code, 0);
  EXPECT_EQ(last().previous().state_id(), "given");
}

TEST_F(ChatTest, OnlyTheFirstTurnBeginsFromTheTunedState) {
  Run("one\n/retry\n", {"--initial-state=tuned"});
  EXPECT_EQ(last().initial_state(), "tuned");
  Run("one\ntwo\n", {"--initial-state=tuned"});
  EXPECT_EQ(last().previous().state_id(), "s1");
  EXPECT_EQ(last().initial_state(), "");
}

// The model's own stop string begins the next message.
TEST_F(ChatTest, ALineIsAMessageInTheModelsFormat) {
  v1::Model other, model;
  other.set_name("other");
  model.set_name("austen");
  v1::ChatFormat& format = *model.mutable_chat_format();
  format.set_user_prefix("User: ");
  format.set_user_suffix("\n\n");
  format.set_assistant_suffix("\n\n");
  format.set_answer("Assistant:");
  format.add_stop("\n\nUser:");
  server_.SetModels({other, model});
  EXPECT_EQ(Run(" one \n", {"--model=austen"}).out, "abc");
  EXPECT_EQ(last().text(), "User: one\n\nAssistant:");
  EXPECT_THAT(last().stop().strings(), testing::ElementsAre("\n\nUser:"));
  Run("one\ntwo\n", {"--model=austen", "--stop=x"});
  EXPECT_EQ(last().text(), "\n\nUser: two\n\nAssistant:");
  EXPECT_THAT(last().stop().strings(), testing::ElementsAre("x"));

  Script script = TextScript({"abc"});
  v1::Finished& finished = *script.events.back().mutable_finished();
  finished.set_stop_string("\n\nUser:");
  finished.mutable_state()->set_id("s1");
  server_.SetScript(script);
  const TempFolder folder;
  const std::string path = folder.path() + "/text";
  Run("one\ntwo\n/retry\n/save " + path + "\n", {"--model=austen"});
  EXPECT_EQ(last().text(), " two\n\nAssistant:");
  EXPECT_EQ(ReadBytes(path), "User: one\n\nAssistant:abc\n\nUser: two\n\nAssistant:abc\n\nUser:");
  EXPECT_THAT(Run("one\n/retry\n", {"--model=austen"}).err,
              HasSubstr(R"(aftctl chat --previous s1 --ended-by '\n\nUser:')"));
  EXPECT_EQ(last().text(), "User: one\n\nAssistant:");
  finished.set_stop_string("it's\n");
  server_.SetScript(script);
  EXPECT_THAT(Run("one\n", {"--model=austen"}).err, HasSubstr(R"(--ended-by 'it\047s\n')"));
  finished.set_stop_string("\n\nUser:");
  server_.SetScript(script);
  Run("two\n", {"--model=austen", "--previous=s1", R"(--ended-by=\n\nUser:)"});
  EXPECT_EQ(last().text(), " two\n\nAssistant:");
  script.events[1] = DeltaEvent(0, "abc\n\nUser:");
  server_.SetScript(script);
  Run("one\n/save " + path + "\n", {"--model=austen", "--include-stop"});
  EXPECT_EQ(ReadBytes(path), "User: one\n\nAssistant:abc\n\nUser:");

  for (const char* flag : {"--raw", "--model=other"}) {
    Run("one\n", {flag});
    EXPECT_EQ(last().text(), "one\n");
    EXPECT_TRUE(last().stop().strings().empty());
  }
  server_.SetModels({model});
  Run("one\n");
  EXPECT_EQ(last().text(), "User: one\n\nAssistant:");
}

TEST_F(ChatTest, ABrokenAnswerIsResumed) {
  server_.SetAnswer([](const v1::GenerateRequest& request) {
    Script script = TextScript({"abc"});
    script.events[0] = StartedEvent(7, 1);
    script.events[2].mutable_finished()->mutable_state()->set_id("s1");
    if (!request.has_resume()) {
      return FailedScript({grpc::UNAVAILABLE, "gone"}, {script.events[0], script.events[1]});
    }
    script.events[0].mutable_started()->set_exact(true);
    script.events.erase(script.events.begin() + 1);
    return script;
  });
  const Ended ended = Run("one\n");
  EXPECT_EQ(ended.code, 0);
  EXPECT_EQ(ended.out, "abc");
  EXPECT_THAT(ended.err, HasSubstr("[the stream was resumed after 3 tokens: "));
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("computes differently")));
  EXPECT_THAT(ended.err, HasSubstr("to continue: aftctl chat --previous s1"));
}

TEST_F(ChatTest, AStateThatNoCommandCanUseAnyMoreIsDeleted) {
  EXPECT_EQ(Run("one\ntwo\n", {"--previous", "given"}).code, 0);
  EXPECT_EQ(deleted(), "");  // "given" stays, because the chat did not store it
  Process chat(ChatCommand(server_));
  Say(chat, "one", "first", "s1");
  Say(chat, "two", "second", "s2");
  Say(chat, "three", "third", "s3");
  Say(chat, "four", "fourth", "s4");
  chat.Send("/save /dev/null\n");
  ASSERT_TRUE(chat.WaitForError("the state is s4"));
  EXPECT_EQ(deleted(), "s2");  // s1 was deleted before
  chat.Send("/quit\n");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_THAT(chat.err(), HasSubstr("to continue: aftctl chat --previous s4"));
  EXPECT_EQ(deleted(), "s3");  // an ended chat takes no turn back
  EXPECT_EQ(last().previous().state_id(), "s3");
}

TEST_F(ChatTest, AfterAFailedTurnTheStateThatTheChatContinuesFromStays) {
  Process chat(ChatCommand(server_));
  Say(chat, "one", "first", "s1");
  Say(chat, "two", "second", "s2");
  server_.SetScript(FailedScript({grpc::NOT_FOUND, "gone"}));
  chat.Send("three\n");
  ASSERT_TRUE(chat.WaitForError("gone"));
  Say(chat, "four", "fourth", "s4");
  chat.Send("/save /dev/null\n");
  ASSERT_TRUE(chat.WaitForError("the state is s4"));
  EXPECT_EQ(deleted(), "s1");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_EQ(deleted(), "s2");
  EXPECT_EQ(last().previous().state_id(), "s2");
}

TEST_F(ChatTest, RetryRepeatsTheTurnFromTheStateBeforeIt) {
  EXPECT_EQ(Run("one\n/retry\n", {"--seed=3"}).out, "abcabc");
  EXPECT_EQ(server_.requests(), 2);
  EXPECT_EQ(last().text(), "one\n");
  EXPECT_FALSE(last().has_previous());
  EXPECT_FALSE(last().sampling().has_seed());  // the same seed would give the same answer
  EXPECT_EQ(deleted(), "s1");                  // the state of the rejected answer

  EXPECT_EQ(Run("one\n/retry\n", {"--previous=given"}).code, 0);
  EXPECT_EQ(last().previous().state_id(), "given");
  EXPECT_THAT(Run("/retry\n").err, HasSubstr("no turn to take back"));
  EXPECT_EQ(server_.requests(), 4);
}

TEST_F(ChatTest, EditReplacesTheTurn) {
  const TempFolder folder;
  const std::string path = folder.path() + "/text";
  EXPECT_EQ(Run("one\n/edit\nother\n/save " + path + "\n").out, "abcabc");
  EXPECT_EQ(last().text(), "other\n");
  EXPECT_FALSE(last().has_previous());
  EXPECT_EQ(ReadBytes(path), "other\nabc");
  EXPECT_THAT(Run("one\n/edit\n/edit\n").err, HasSubstr("no turn to take back"));
}

TEST_F(ChatTest, ReportsErrorsAndContinues) {
  EXPECT_THAT(Run("/nix\n").err, HasSubstr("no command /nix"));
  EXPECT_THAT(Run("/save /nowhere/x\n").err, HasSubstr("cannot write /nowhere/x"));
  EXPECT_THAT(Run("/help\n").out, HasSubstr("/save FILE"));
  EXPECT_EQ(server_.requests(), 0);
  Run("//slash\n");
  EXPECT_EQ(last().text(), "/slash\n");
  Run("\xFF\n");
  EXPECT_EQ(last().raw(), "\xFF\n");
}

TEST_F(ChatTest, AnErrorLeavesTheTextAsItWas) {
  Process chat(ChatCommand(server_));
  chat.Send("one\n");
  ASSERT_TRUE(chat.WaitForOutput("abc"));
  server_.SetScript(FailedScript({grpc::NOT_FOUND, "previous.state_id: this state has expired"}));
  chat.Send("two\n");
  ASSERT_TRUE(chat.WaitForError("has expired"));
  Say(chat, "/retry", "def", "s2");
  EXPECT_EQ(last().text(), "two\n");
  EXPECT_EQ(last().previous().state_id(), "s1");
  chat.Send("/save /dev/null\n");
  ASSERT_TRUE(chat.WaitForError("the state is s2"));
  EXPECT_EQ(deleted(), "");
  EXPECT_EQ(chat.Wait(), 0);

  server_.SetScript(FailedScript({grpc::INVALID_ARGUMENT, "bad"}));
  EXPECT_EQ(Run("one\n").code, 4);
  server_.SetScript(TextScript({"abc"}));
  const Ended without = Run("one\ntwo\n");
  EXPECT_EQ(without.code, 1);
  EXPECT_THAT(without.err, HasSubstr("without its state"));
}

TEST_F(ChatTest, AStateThatDoesNotExistIsNotOneToContinueFrom) {
  server_.SetScript(FailedScript({grpc::NOT_FOUND, "no state of this id"}));
  const Ended ended = Run("one\n", {"--previous=gone"});
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.err, testing::Not(HasSubstr("to continue")));
}

TEST_F(ChatTest, AnInterruptStopsTheAnswerAndNotTheChat) {
  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "abc")}));
  Process chat(ChatCommand(server_));
  chat.Send("one\n");
  ASSERT_TRUE(chat.WaitForOutput("abc"));
  chat.Signal(SIGINT);
  ASSERT_TRUE(chat.WaitForError("as it was before this turn"));
  server_.WaitForCancellations(1);
  Say(chat, "two", "def", "s2");
  EXPECT_FALSE(last().has_previous());
  EXPECT_EQ(chat.Wait(), 0);

  server_.SetScript(StalledScript({StartedEvent(), DeltaEvent(0, "abc")}));
  Process ended(ChatCommand(server_));
  ended.Send("one\n");
  ASSERT_TRUE(ended.WaitForOutput("abc"));
  ended.Signal(SIGTERM);
  EXPECT_EQ(ended.Wait(), 143);
}

TEST_F(ChatTest, AnInterruptAndTheDeadlineEndTheQuestionForTheFormat) {
  server_.SetScript(StalledScript());
  Process chat(ChatCommand(server_));
  chat.Send("one\n");
  server_.WaitFor<v1::ListRequest>();
  chat.Signal(SIGINT);
  ASSERT_TRUE(chat.WaitForError("as it was before this turn"));
  EXPECT_EQ(chat.Wait(), 0);
  const Ended late = Run("one\n", {"--deadline=0.1"});
  EXPECT_EQ(late.code, 6);
  EXPECT_THAT(late.err, HasSubstr("0.1 s"));
}

TEST_F(ChatTest, ALineIsAnsweredAgainWhenTheQuestionForTheFormatHasFailed) {
  for (const auto& [commands, text] : std::vector<std::pair<std::string, std::string>>{
           {"/retry\n", "one\n"}, {"/edit\nother\n", "other\n"}}) {
    Process chat(ChatCommand(server_));
    server_.SetScript(FailedScript({grpc::PERMISSION_DENIED, "not yet"}));
    chat.Send("one\n");
    ASSERT_TRUE(chat.WaitForError("not yet"));
    Answer("abc", "s1");
    chat.Send(commands);
    EXPECT_EQ(chat.Wait(), 0);
    EXPECT_EQ(chat.out(), "abc");
    EXPECT_EQ(last().text(), text);
    EXPECT_THAT(chat.err(), testing::Not(HasSubstr("no turn to take back")));
  }
}

// A server that no longer answers does not delete states either.
TEST_F(ChatTest, AnInterruptDoesNotWaitForTheDeletionOfStates) {
  Process chat(ChatCommand(server_));
  const auto stop = [&](const std::string& line, int requests) {
    chat.Send(line + "\n");
    server_.WaitForRequests(requests);
    chat.Signal(SIGINT);
    server_.WaitForCancellations(requests - 2);
  };
  Say(chat, "one", "first", "s1");
  Say(chat, "two", "second", "s2");
  server_.SetScript(StalledScript());
  stop("three", 3);
  ASSERT_TRUE(chat.WaitForError("as it was before this turn"));
  stop("/retry", 4);
  chat.Send("/save /dev/null\n");
  ASSERT_TRUE(chat.WaitForError("the state is s2"));
  EXPECT_EQ(deleted(), "");
  Say(chat, "four", "fourth", "s4");
  chat.Send("/save /dev/null\n");
  ASSERT_TRUE(chat.WaitForError("the state is s4"));
  EXPECT_EQ(deleted(), "s1");
  EXPECT_EQ(chat.Wait(), 0);
  EXPECT_EQ(deleted(), "s2");
}

TEST_F(ChatTest, AnInterruptEndsTheDeletionAtTheEnd) {
  for (const auto& [signal, code] : {std::pair(SIGINT, 0), std::pair(SIGTERM, 143)}) {
    FakeServer server;
    Process chat(ChatCommand(server));
    for (const char* state : {"s1", "s2"}) {
      Script script = TextScript({state});
      script.events.back().mutable_finished()->mutable_state()->set_id(state);
      server.SetScript(script);
      chat.Send("a\n");
      ASSERT_TRUE(chat.WaitForOutput(state));
    }
    server.SetScript(StalledScript());
    chat.Send("/quit\n");
    server.WaitFor<v1::StateServiceDeleteRequest>();
    chat.Signal(signal);
    EXPECT_EQ(chat.Wait(), code);
  }
}

TEST_F(ChatTest, AnInterruptEndsTheDeletionOfAState) {
  for (const int signal : {SIGINT, SIGTERM}) {
    FakeServer server;
    Process chat(ChatCommand(server));
    server.SetAnswer([](const v1::GenerateRequest& request) {
      Script script = TextScript({absl::StrCat("after ", request.text())});
      script.events.back().mutable_finished()->mutable_state()->set_id("s");
      return script;
    });
    chat.Send("one\n");
    ASSERT_TRUE(chat.WaitForOutput("after one"));
    server.SetScript(StalledScript());
    chat.Send("/edit\n");
    server.WaitFor<v1::StateServiceDeleteRequest>();
    chat.Signal(signal);
    if (signal == SIGINT) {
      server.WaitForCancellations(1);
      chat.Send("/save /dev/null\n");
      EXPECT_TRUE(chat.WaitForError("the state is none yet"));
    }
    EXPECT_EQ(chat.Wait(), signal == SIGINT ? 0 : 143);
  }
}

TEST_F(ChatTest, AnAnswerDoesNotControlTheTerminal) {
  Answer("\x1B[2Jx\xC2\x9By", "s1");
  TerminalProcess chat(ChatCommand(server_));
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("one\r");
  EXPECT_TRUE(chat.WaitFor("\xEF\xBF\xBD[2Jx\xEF\xBF\xBDy"));
}

TEST_F(ChatTest, LinesAreEditedOnATerminal) {
  TerminalProcess chat(ChatCommand(server_));
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type(
      "onf\x7F"
      "e\r");
  ASSERT_TRUE(chat.WaitFor("abc"));
  ASSERT_TRUE(chat.WaitFor("> "));
  EXPECT_EQ(last().text(), "one\n");
  chat.Type("/edit\r");
  ASSERT_TRUE(chat.WaitFor("> one"));
  chat.Type("s\r");
  ASSERT_TRUE(chat.WaitFor("abc"));
  ASSERT_TRUE(chat.WaitFor("> "));
  EXPECT_EQ(last().text(), "ones\n");
  chat.Type("\x1B[A\r");  // the previous line
  ASSERT_TRUE(chat.WaitFor("abc"));
  ASSERT_TRUE(chat.WaitFor("> "));
  EXPECT_EQ(last().text(), "ones\n");
  EXPECT_EQ(last().previous().state_id(), "s1");
  chat.Type("//a\r");
  ASSERT_TRUE(chat.WaitFor("abc"));
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("/edit\r");
  ASSERT_TRUE(chat.WaitFor("> //a"));
  chat.Type("b\r");
  ASSERT_TRUE(chat.WaitFor("abc"));
  ASSERT_TRUE(chat.WaitFor("> "));
  EXPECT_EQ(last().text(), "/ab\n");
  chat.Type("\x03");
  const int status = chat.Wait();
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT) << status;
}

TEST_F(ChatTest, ALineMayHaveAnyCharacterWithoutALocale) {
  std::vector<std::string> command = {"/usr/bin/env", "LC_ALL=C"};
  for (const std::string& argument : ChatCommand(server_)) command.push_back(argument);
  TerminalProcess chat(command);
  ASSERT_TRUE(chat.WaitFor("> "));
  chat.Type("\xC3\xA9\r");
  ASSERT_TRUE(chat.WaitFor("abc"));
  EXPECT_EQ(last().text(), "\xC3\xA9\n");
}

}  // namespace
}  // namespace aft::client
