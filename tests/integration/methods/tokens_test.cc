// Tokenize and Detokenize over real gRPC, with a fake model.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class TokensTest : public StateTest {
 protected:
  grpc::Status Tokenize(const v1::TokenizeRequest& request, v1::TokenizeResponse& response) {
    grpc::ClientContext context;
    return server_->inference().Tokenize(&context, request, &response);
  }
  grpc::Status Detokenize(const v1::DetokenizeRequest& request, v1::DetokenizeResponse& response) {
    grpc::ClientContext context;
    return server_->inference().Detokenize(&context, request, &response);
  }
};

TEST_F(TokensTest, TextBecomesIdsAndIdsTheSameBytes) {
  Start();
  v1::TokenizeRequest request;
  request.set_raw("h\xFF\xC3");
  v1::TokenizeResponse ids;
  ASSERT_TRUE(Tokenize(request, ids).ok());
  EXPECT_EQ(ids.model(), "fake");
  EXPECT_THAT(ids.token_ids(), ElementsAre('h', 255, 0xC3));
  EXPECT_THAT(ids.byte_ends(), ElementsAre(1, 2, 3));
  v1::DetokenizeRequest back;
  *back.mutable_token_ids() = ids.token_ids();
  v1::DetokenizeResponse text;
  ASSERT_TRUE(Detokenize(back, text).ok());
  EXPECT_EQ(text.raw(), request.raw());
  EXPECT_EQ(text.text(), "h\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Tokenize")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Detokenize")), 1);
  server_->WaitForMetric("aft_memory_used_bytes", 0);
}

// No engine has a part in it: they work while all slots and places of the queue are taken.
TEST_F(TokensTest, NeedNoPlaceInTheQueue) {
  config_.limits.max_queued_requests = 1;
  Start();
  server_->control().Hold();
  std::vector<std::unique_ptr<GenerateStream>> running;
  for (int i = 0; i < 4; ++i) {
    running.push_back(
        std::make_unique<GenerateStream>(server_->inference(), Request("x", 1'000'000)));
    if (i == 0) server_->control().WaitUntilBlocked();
  }
  v1::TokenizeRequest request;
  request.set_model("fake");
  request.set_text("abc");
  v1::TokenizeResponse ids;
  EXPECT_TRUE(Tokenize(request, ids).ok());
  EXPECT_EQ(ids.token_ids_size(), 3);
  for (const auto& stream : running) stream->context().TryCancel();
  server_->control().Resume();
}

TEST_F(TokensTest, RefusalsNameTheField) {
  Start();
  v1::DetokenizeRequest request;
  request.add_token_ids(1);
  request.add_token_ids(257);
  v1::DetokenizeResponse text;
  EXPECT_THAT(Detokenize(request, text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token_ids[1]: must be")));
  request.set_model("no");
  EXPECT_THAT(Detokenize(request, text), StatusIs(absl::StatusCode::kNotFound, HasSubstr("no")));
  v1::TokenizeResponse ids;
  EXPECT_THAT(Tokenize({}, ids),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("text_to_tokenize: ")));
  EXPECT_EQ(server_->Metric(RequestsTotal("INVALID_ARGUMENT", "Detokenize")), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("INVALID_ARGUMENT", "Tokenize")), 1);
}

}  // namespace
}  // namespace aft::server
