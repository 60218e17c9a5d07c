// Runs aftload as a process: how it resumes streams that break, and compares answers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tests/unit/client/aftload_fixture.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"

namespace aft::client {
namespace {

using testing::Contains;
using testing::HasSubstr;

// Answers with "abcdef". Every other call breaks with `status`: after two more tokens or, if
// `unbegun`, before it has begun.
std::function<Script(const v1::GenerateRequest&)> Breaking(grpc::Status status, bool unbegun) {
  return [calls = 0, status, unbegun](const v1::GenerateRequest& request) mutable {
    const auto first = static_cast<uint32_t>(request.resume().token_ids_size());
    v1::GenerateResponse started = StartedEvent(7, 1);
    started.mutable_started()->set_exact(request.has_resume());
    if (++calls % 2 == 0) {
      if (unbegun) return Script{.status = status, .request_id = ""};
      return FailedScript(status,
                          {started, DeltaEvent(first, std::string("abcdef").substr(first, 2))});
    }
    Script script = TextScript({});
    script.events = {started, DeltaEvent(first, std::string("abcdef").substr(first)),
                     FinishedEvent(6)};
    return script;
  };
}

TEST_F(AftloadTest, BrokenStreamsAreResumedAndCompared) {
  server_.SetAnswer(Breaking({grpc::UNAVAILABLE, "draining"}, /*unbegun=*/false));
  const auto report = RunJson({"--resume", "--verify", "3", "--requests", "10"}, 0);
  EXPECT_EQ(report["completed"], 10);
  EXPECT_EQ(report["resumes"], 10);  // every stream but the first one, a reference, breaks once
  EXPECT_EQ(report["most_resumes"], 1);
  ASSERT_EQ(report["breaks"].size(), 10u);
  EXPECT_EQ(report["breaks"][0]["tokens"], 2);
  EXPECT_THAT(server_.request_ids(),
              Contains(report["breaks"][0]["request_id"].get<std::string>()));
  EXPECT_EQ(report["inexact_streams"], 0);
  EXPECT_EQ(report["total_output_tokens"], 60);
  for (const char* name : {"lost_tokens", "repeated_tokens", "changed_tokens", "changed_texts"}) {
    EXPECT_EQ(report[name], 0) << name;
  }
  EXPECT_TRUE(server_.last<v1::GenerateRequest>().resumable());
}

TEST_F(AftloadTest, WithoutResumeABrokenStreamIsAnError) {
  server_.SetAnswer(Breaking({grpc::UNAVAILABLE, "draining"}, /*unbegun=*/false));
  const auto report = RunJson({"--requests", "2"}, 1);
  EXPECT_EQ(report["errors"], nlohmann::json({{"UNAVAILABLE", 1}}));
  EXPECT_EQ(report["completed"], 1);
  EXPECT_FALSE(server_.last<v1::GenerateRequest>().resumable());
}

TEST_F(AftloadTest, AnotherAnswerThanTheReferenceFailsTheRun) {
  server_.SetAnswer([calls = 0](const v1::GenerateRequest&) mutable {
    return TextScript({++calls <= 2 ? "abcd" : "abxd"});
  });
  const auto report = RunJson({"--verify", "2", "--requests", "4"}, 1);
  EXPECT_EQ(report["completed"], 4);
  EXPECT_EQ(report["changed_tokens"], 4);
  EXPECT_EQ(report["changed_texts"], 4);
  EXPECT_EQ(report["lost_tokens"], 0);
}

TEST_F(AftloadTest, VerifiedRequestsAreThoseOfTheReferences) {
  Mutex mutex;
  std::vector<std::string> prompts;
  server_.SetAnswer([&](const v1::GenerateRequest& request) {
    MutexLock lock(mutex);
    prompts.push_back(request.text());
    return TextScript({request.text()});
  });
  RunJson({"--verify", "3", "--requests", "7", "--prompt-bytes", "50"}, 0);
  MutexLock lock(mutex);
  ASSERT_EQ(prompts.size(), 10u);
  for (size_t i = 3; i < prompts.size(); ++i) EXPECT_EQ(prompts[i], prompts[i - 3]);
  EXPECT_NE(prompts[0], prompts[1]);
}

TEST_F(AftloadTest, EveryRateIsVerified) {
  server_.SetAnswer(
      [](const v1::GenerateRequest& request) { return TextScript({request.text()}); });
  const Ended ended = RunToEnd(Command({"--rate", "500,1000", "--requests", "4", "--verify", "2"}));
  EXPECT_EQ(ended.code, 0) << ended.out << ended.err;
}

TEST_F(AftloadTest, WithoutReferencesThereIsNoLoad) {
  server_.SetAnswer([](const v1::GenerateRequest&) {
    return FailedScript({grpc::NOT_FOUND, "no model"});
  });
  const Ended ended = RunToEnd(Command({"--verify", "3"}));
  EXPECT_EQ(ended.code, 4);
  EXPECT_THAT(ended.err, HasSubstr("no model"));
  EXPECT_EQ(server_.requests(), 1);
}

TEST_F(AftloadTest, WithResumeACallThatBreaksBeforeItBeginsIsSentAgain) {
  server_.SetAnswer(Breaking({grpc::UNAVAILABLE, "Connection reset by peer"}, /*unbegun=*/true));
  const auto report = RunJson({"--resume", "--requests", "3"}, 0);
  EXPECT_EQ(report["completed"], 3);
  EXPECT_EQ(report["refused"], 2);
  EXPECT_EQ(RunJson({"--requests", "2"}, 1)["errors"], nlohmann::json({{"UNAVAILABLE", 1}}));
}

}  // namespace
}  // namespace aft::client
