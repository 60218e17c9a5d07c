// Several texts in one scoring: what the client makes of them, also when the stream breaks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "tests/support/proto_text.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/resume_fixture.h"

namespace aft::client {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::SizeIs;

const std::vector<std::string> kTexts = {"abcdef", "gh", "i", "jklmn"};

float ScoreOf(char token, size_t at) {
  return -0.1F * static_cast<float>(token - 'a') - static_cast<float>(at);
}

class ResumeTextsTest : public testing::Test {
 protected:
  // What one server answers: two scores of each text in turn.
  Script Answer(const v1::ScoreRequest& request) {
    std::optional<Break> planned;
    if (requests_.size() < breaks_.size()) planned = breaks_[requests_.size()];
    requests_.push_back(request);
    Script script;
    if (planned) {
      script.status = planned->status;
      script.trailers = planned->trailers;
    }
    size_t left = planned ? planned->after + 1 : SIZE_MAX;  // events, with Started
    const auto add = [&](const v1::ScoreResponse& event) {
      if (left == 0) return;
      --left;
      script.other_events.push_back(std::make_shared<v1::ScoreResponse>(event));
    };
    v1::ScoreResponse started;
    started.mutable_started()->set_fingerprint(kFingerprint);
    started.mutable_started()->set_numerics(numerics_[std::min(requests_.size() - 1, size_t{1})]);
    add(started);
    std::vector<size_t> next(static_cast<size_t>(request.texts_size()), 1);
    for (int ended = 0; ended < request.texts_size();) {
      for (int i = 0; i < request.texts_size(); ++i) {
        const std::string& text = request.texts(i).text();
        size_t& at = next[static_cast<size_t>(i)];
        if (at > text.size()) continue;
        v1::ScoreResponse event;
        event.set_index(wrong_index_ && requests_.size() > 1 ? 7 : static_cast<uint32_t>(i));
        event.mutable_chunk()->set_first_index(static_cast<uint32_t>(at));
        for (int k = 0; k < 2 && at < text.size(); ++k, ++at) {
          event.mutable_chunk()->add_token_ids(static_cast<uint32_t>(text[at]));
          event.mutable_chunk()->add_logprobs()->set_logprob(ScoreOf(text[at], at));
        }
        if (event.chunk().token_ids_size() > 0) add(event);
        if (at < text.size()) continue;
        ++at;
        ++ended;
        event.mutable_finished()->set_scored_tokens(static_cast<uint32_t>(text.size()) - 1);
        add(event);
      }
    }
    return script;
  }

  absl::StatusOr<ScoreResult> Score(std::vector<Break> breaks) {
    breaks_ = std::move(breaks);
    requests_.clear();
    events_.clear();
    resumed_.clear();
    server_.SetScores([this](const v1::ScoreRequest& request) { return Answer(request); });
    v1::ScoreRequest request;
    for (const std::string& text : kTexts) request.add_texts()->set_text(text);
    return client_->Score(request,
                          [this](const v1::ScoreResponse& event) { events_.push_back(event); },
                          {.on_resumed = [this](const Resumed& one) { resumed_.push_back(one); }});
  }

  void ExpectWhole(const absl::StatusOr<ScoreResult>& result) {
    ASSERT_TRUE(result.ok()) << result.status();
    ASSERT_THAT(result->others, SizeIs(kTexts.size() - 1));
    for (size_t i = 0; i < kTexts.size(); ++i) {
      const ScoreOutput& output = i == 0 ? *result : result->others[i - 1];
      const std::string& text = kTexts[i];
      EXPECT_EQ(output.finished.scored_tokens(), text.size() - 1);
      ASSERT_THAT(output.token_ids, SizeIs(text.size() - 1));
      ASSERT_THAT(output.logprobs, SizeIs(text.size() - 1));
      for (size_t at = 1; at < text.size(); ++at) {
        EXPECT_EQ(output.token_ids[at - 1], static_cast<uint32_t>(text[at]));
        EXPECT_EQ(output.logprobs[at - 1].logprob(), ScoreOf(text[at], at));
      }
    }
    // What the application hears adds up to the same.
    int started = 0;
    std::vector<uint32_t> next(kTexts.size(), 1);
    for (const v1::ScoreResponse& event : events_) {
      if (event.has_started()) ++started;
      if (!event.has_chunk()) continue;
      EXPECT_EQ(event.chunk().first_index(), next[event.index()]);
      next[event.index()] += static_cast<uint32_t>(event.chunk().token_ids_size());
    }
    EXPECT_EQ(started, 1);
    EXPECT_THAT(next, ElementsAreArray({6U, 2U, 1U, 5U}));
  }

  FakeServer server_;
  const std::unique_ptr<Client> client_ = *Client::Create({.address = server_.address()});
  std::vector<std::string> numerics_ = {"numerics",
                                        "numerics"};  // of the first call, of the others
  bool wrong_index_ = false;
  std::vector<Break> breaks_;
  std::vector<v1::ScoreRequest> requests_;
  std::vector<v1::ScoreResponse> events_;
  std::vector<Resumed> resumed_;
};

TEST_F(ResumeTextsTest, TheApplicationHearsEachScoreOnceWhereverItBreaks) {
  constexpr uint32_t kEvents = 10;  // six chunks, and four ends
  for (uint32_t at = 0; at < kEvents; ++at) {
    for (uint32_t again = 0; again < 4; ++again) {
      SCOPED_TRACE(absl::StrCat("after ", at, " and ", again));
      const auto result = Score({{.after = at}, {.after = again}});
      ExpectWhole(result);
      EXPECT_TRUE(result->exact);
      EXPECT_EQ(result->resumes, resumed_.size());
      EXPECT_GE(result->resumes, 1U);
    }
  }
  ExpectWhole(Score({}));
  EXPECT_THAT(requests_, SizeIs(1));
}

TEST_F(ResumeTextsTest, OnlyWhatHasNotFinishedIsAskedForAgain) {
  // ab, gh and its end, i's end, kl, cd
  ExpectWhole(Score({{.after = 5}, {.after = 3}}));
  std::vector<std::vector<std::string>> asked;
  for (const v1::ScoreRequest& request : requests_) {
    EXPECT_FALSE(request.has_resume());
    EXPECT_TRUE(request.resumable());
    asked.emplace_back();
    for (const v1::Text& text : request.texts()) asked.back().push_back(text.text());
  }
  EXPECT_THAT(asked, ElementsAre(ElementsAreArray(kTexts), ElementsAre("abcdef", "jklmn"),
                                 ElementsAre("abcdef", "jklmn")));
  EXPECT_THAT(server_.request_ids(), ElementsAre("", "fake-1", "fake-1"));
  ExpectWhole(Score({{.after = 9}}));
  ASSERT_THAT(requests_, SizeIs(2));
  EXPECT_EQ(requests_[1].texts_size(), 1);
}

TEST_F(ResumeTextsTest, WhoComputesOtherwiseIsTold) {
  numerics_[1] = "others";
  const auto result = Score({{.after = 3}});
  ExpectWhole(result);
  EXPECT_FALSE(result->exact);
  ASSERT_THAT(resumed_, SizeIs(1));
  EXPECT_FALSE(resumed_[0].exact);
  numerics_ = {"", ""};  // a GPU
  EXPECT_FALSE(Score({{.after = 3}})->exact);
}

TEST_F(ResumeTextsTest, ATextThatWasNotAskedForIsAnError) {
  wrong_index_ = true;
  EXPECT_THAT(Score({{.after = 3}}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("there is no sequence")));
}

TEST_F(ResumeTextsTest, VectorsOfEachTextAreInItsPlace) {
  server_.SetScript(StreamScript<v1::EncodeResponse>({
      "started { width: 2 tokens: 3 text_tokens: [1, 2] }",
      "index: 1 vectors { values: [1, 2] }",
      "index: 0 vectors { values: [3, 4] }",
      "index: 1 vectors { first_index: 1 values: [5, 6] }",
      "index: 1 finished { batch_rows: 2 }",
      "index: 0 finished { batch_rows: 1 }",
  }));
  v1::EncodeRequest request;
  request.add_texts()->set_text("a");
  request.add_texts()->set_text("bc");
  const auto result = client_->Encode(request);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->values, ElementsAre(3, 4));
  ASSERT_THAT(result->others, SizeIs(1));
  EXPECT_THAT(result->others[0].values, ElementsAre(1, 2, 5, 6));
  EXPECT_EQ(result->finished.batch_rows(), 1U);
  EXPECT_EQ(result->others[0].finished.batch_rows(), 2U);
  // One of them is missing.
  request.add_texts()->set_text("d");
  EXPECT_EQ(client_->Encode(request).status().code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace aft::client
