// Generations that break, and go on by themselves: what the application sees, and what servers get.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/resume_fixture.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(BlockingOrNot, ResumeTest, testing::Bool(), [](const auto& suite) {
  return std::string(suite.param ? "Blocking" : "OnThreadsOfGrpc");
});

TEST_P(ResumeTest, TheApplicationSeesOneStreamWhereverItBreaks) {
  for (const grpc::StatusCode code :
       {grpc::UNAVAILABLE, grpc::CANCELLED, grpc::INTERNAL, grpc::UNKNOWN}) {
    for (uint32_t at = 0; at <= kTokens; ++at) {
      SCOPED_TRACE(absl::StrCat("code ", code, " after ", at));
      const Seen seen = Generate({{.after = at, .status = {code, "broken"}}});
      ExpectWhole(seen);
      ASSERT_EQ(seen.resumed.size(), 1u);
      EXPECT_EQ(static_cast<int>(seen.resumed[0].cause.code()), code);
      EXPECT_THAT(seen.resumed[0].cause.message(), HasSubstr("broken"));
      EXPECT_EQ(seen.resumed[0].tokens, at);
      EXPECT_TRUE(seen.resumed[0].exact);
    }
  }
}

TEST_P(ResumeTest, EachServerGetsTheRequestAndWhatHasCome) {
  ExpectWhole(Generate({{.after = 3}, {.after = 2}}));
  const std::vector<v1::GenerateRequest> requests = model_->requests();
  ASSERT_EQ(requests.size(), 3u);
  const std::vector<std::vector<uint32_t>> had = {{}, {'a', 'b', 'c'}, {'a', 'b', 'c', 'd', 'e'}};
  for (size_t i = 0; i < 3; ++i) {
    v1::GenerateRequest request = requests[i];
    EXPECT_TRUE(request.resumable());
    EXPECT_EQ(request.has_resume(), i > 0);
    if (i > 0) {
      EXPECT_EQ(request.sampling().seed(), 7u);
      EXPECT_THAT(request.resume().token_ids(), testing::ElementsAreArray(had[i]));
      EXPECT_EQ(request.resume().fingerprint(), kFingerprint);
      EXPECT_EQ(request.resume().numerics(), absl::StrCat("numerics ", i - 1));
      EXPECT_EQ(request.resume().resume_id(), absl::StrCat("resume ", i - 1));
    }
    request.clear_resume();
    request.clear_resumable();
    request.mutable_sampling()->clear_seed();
    ExpectText(request, Request().ShortDebugString());
  }
  // The server's name for the first call is that of them all.
  EXPECT_THAT(server_.request_ids(), ElementsAre("", "fake-1", "fake-1"));
}

TEST_P(ResumeTest, TheRequestsOwnSeedAndIdStay) {
  model_ = std::make_unique<Model>(std::vector<Break>{{.after = 1}});
  model_->Attach(server_);
  v1::GenerateRequest request = Request();
  request.mutable_sampling()->set_seed(7);
  ExpectWhole(Generate(request, {.request_id = "mine"}));
  EXPECT_EQ(model_->requests()[0].sampling().seed(), 7u);
  EXPECT_THAT(server_.request_ids(), ElementsAre("mine", "mine"));
}

TEST_P(ResumeTest, OtherErrorsEndIt) {
  const std::multimap<std::string, std::string> own_word = {{"aft-usage-bin", ""}};
  const Break cases[] = {
      {.after = 2, .status = {grpc::INVALID_ARGUMENT, "why"}},
      {.after = 2, .status = {grpc::FAILED_PRECONDITION, "why"}},
      {.after = 2, .status = {grpc::NOT_FOUND, "why"}},
      {.after = 2, .status = {grpc::PERMISSION_DENIED, "why"}},
      {.after = 2, .status = {grpc::UNAUTHENTICATED, "why"}},
      {.after = 2, .status = {grpc::DEADLINE_EXCEEDED, "why"}},
      {.after = 2, .status = {grpc::DATA_LOSS, "why"}},
      {.after = 2, .status = {grpc::UNIMPLEMENTED, "why"}},
      {.after = 2, .status = {grpc::ABORTED, "why"}},
      {.after = 2, .status = {grpc::OUT_OF_RANGE, "why"}},
      {.after = 2, .status = {grpc::ALREADY_EXISTS, "why"}},
      {.after = 2, .status = {grpc::RESOURCE_EXHAUSTED, "slow client"}},  // it has begun
      {.after = 2, .status = {grpc::INTERNAL, "a defect"}, .trailers = own_word},
      {.after = 2, .status = {grpc::UNKNOWN, "a defect"}, .trailers = own_word},
      {.after = 2, .trailers = {{"grpc-retry-pushback-ms", "-1"}}},
  };
  for (const Break& broken : cases) {
    SCOPED_TRACE(broken.status.error_code());
    const Seen seen = Generate({broken});
    EXPECT_EQ(static_cast<int>(seen.status.code()), broken.status.error_code());
    EXPECT_EQ(GetErrorDetails(seen.status).received_tokens, 2u);
    EXPECT_EQ(seen.text(), "ab");
    EXPECT_EQ(model_->requests().size(), 1u);
  }
}

TEST_P(ResumeTest, ARefusalIsTriedAgainAsTheServerSays) {
  const std::multimap<std::string, std::string> at_once = {{"grpc-retry-pushback-ms", "0"}};
  options_.max_attempts = 1;  // gRPC's own are beside the point
  for (const grpc::StatusCode code :
       {grpc::RESOURCE_EXHAUSTED, grpc::UNAVAILABLE, grpc::CANCELLED}) {
    const Break refusal = {.status = {code, "not now"}, .trailers = at_once, .refused = true};
    const Seen seen = Generate({{.after = 2}, refusal, refusal});
    ExpectWhole(seen);
    ASSERT_EQ(seen.resumed.size(), 1u);
    EXPECT_THAT(seen.resumed[0].cause.message(), HasSubstr("the server went away"));
    EXPECT_EQ(model_->requests().size(), 4u);
  }
}

TEST_P(ResumeTest, WhatBreaksBeforeItGoesOnIsTriedAgain) {
  options_.max_attempts = 1;
  for (const grpc::StatusCode code : {grpc::INTERNAL, grpc::UNKNOWN}) {
    ExpectWhole(Generate(
        {{.after = 2}, {.status = {code, "RST_STREAM"}, .refused = true, .anonymous = true}}));
    EXPECT_EQ(model_->requests().size(), 3u);
  }
}

TEST_P(ResumeTest, ARefusalThatIsFinalEndsItAndTellsBothReasons) {
  options_.max_attempts = 1;
  const Break cases[] = {
      {.status = {grpc::FAILED_PRECONDITION, "of another model"}, .refused = true},
      {.status = {grpc::NOT_FOUND, "no such state"}, .refused = true},
      {.status = {grpc::INTERNAL, "a defect"}, .refused = true},  // with the request's id
      {.status = {grpc::RESOURCE_EXHAUSTED, "never"},
       .trailers = {{"grpc-retry-pushback-ms", "-1"}},
       .refused = true},
  };
  for (const Break& refusal : cases) {
    const Seen seen = Generate({{.after = 2}, refusal});
    EXPECT_EQ(static_cast<int>(seen.status.code()), refusal.status.error_code());
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr(refusal.status.error_message()));
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr("the stream had to go on because "));
    EXPECT_THAT(std::string(seen.status.message()), HasSubstr("the server went away"));
    EXPECT_EQ(GetErrorDetails(seen.status).received_tokens, 2u);
    EXPECT_EQ(seen.text(), "ab");
    EXPECT_EQ(model_->requests().size(), 2u);
  }
}

TEST_P(ResumeTest, AStreamThatLostItsEndGetsIt) {
  ExpectWhole(Generate({{.after = kTokens}}));
  EXPECT_EQ(model_->requests()[1].resume().token_ids_size(), static_cast<int>(kTokens));
}

TEST_P(ResumeTest, AFinishedStreamIsWholeWhateverBecomesOfItsTrailers) {
  server_.SetAnswer([](const v1::GenerateRequest&) {
    Script script = TextScript({"ab"});
    script.status = {grpc::UNAVAILABLE, "gone"};
    return script;
  });
  const Seen seen = Generate(Request());
  EXPECT_TRUE(seen.status.ok()) << seen.status;
  EXPECT_EQ(server_.requests(), 1);
}

TEST_P(ResumeTest, WhatIsHandedOverGoesAlongUnseen) {
  const Break draining = {.after = 3, .hand_over = {"stat", "e of ", "three"}};
  ExpectWhole(Generate({draining, {.after = 1}, {.after = 1, .hand_over = {"newer"}}}));
  const std::vector<v1::GenerateRequest> requests = model_->requests();
  ASSERT_EQ(requests.size(), 4u);
  EXPECT_EQ(requests[1].resume().state(), "state of three");
  EXPECT_EQ(requests[2].resume().state(), "state of three");  // of the same text, still
  EXPECT_EQ(requests[3].resume().state(), "newer");
}

TEST_P(ResumeTest, AStateThatNoServerWouldTakeStaysBehind) {
  options_.max_attempts = 1;
  options_.max_resumes = 1;  // so it is not sent in vain either
  const std::string chunk(size_t{256} << 10, 's');
  const auto state_bytes = [&](size_t chunks) {
    ExpectWhole(Generate({{.after = 3, .hand_over = std::vector<std::string>(chunks, chunk)}}));
    return model_->requests()[1].resume().state().size();
  };
  EXPECT_EQ(state_bytes(15), 15 * chunk.size());
  EXPECT_EQ(state_bytes(16), 0u);  // 4 MiB, and the rest of the request
  EXPECT_EQ(state_bytes(40), 0u);
}

TEST_P(ResumeTest, AServerThatHasNoRoomForAStateMayHaveRoomForTheTokens) {
  options_.max_attempts = 1;
  const Break refusal = {.status = {grpc::RESOURCE_EXHAUSTED, "full"},
                         .trailers = {{"grpc-retry-pushback-ms", "0"}},
                         .refused = true};
  ExpectWhole(Generate({{.after = 3, .hand_over = {"state"}}, refusal}));
  EXPECT_EQ(model_->requests()[1].resume().state(), "state");
  EXPECT_EQ(model_->requests()[2].resume().state(), "");
}

}  // namespace
}  // namespace aft::client
