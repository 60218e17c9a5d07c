// The line that the log has of each call, over real gRPC with a fake model.
#include "server/observability/log.h"

#include <chrono>
#include <string>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class RequestLogTest : public testing::Test {
 protected:
  RequestLogTest() {
    EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
    testing::internal::CaptureStderr();
  }
  ~RequestLogTest() override { testing::internal::GetCapturedStderr(); }

  template <typename Stream, typename Request>
  Stream Open(const Request& request) {
    return Stream(server_.inference(), request,
                  [](grpc::ClientContext& context) { context.AddMetadata("x-request-id", "r-1"); });
  }

  // What the log says of the only call since the last, from its level on.
  template <typename Stream>
  std::string LogOf(Stream&& stream) {
    stream.Finish();
    EXPECT_TRUE(log::Flush(std::chrono::hours(1)));
    const std::string text = testing::internal::GetCapturedStderr();
    testing::internal::CaptureStderr();
    constexpr char kEvent[] = " event=request.done ";
    const size_t event = text.find(kEvent);
    if (event == std::string::npos || text.rfind(kEvent) != event) {
      ADD_FAILURE() << "not one line: " << text;
      return "";
    }
    const size_t level = text.rfind("level=", event);
    return text.substr(level, text.find('\n', event) - level);
  }

  TestServer server_;
};

TEST_F(RequestLogTest, SaysWhoAskedForWhatAndHowItEnded) {
  const std::string line = LogOf(Open<GenerateStream>(Request("hello", 3)));
  EXPECT_THAT(line, StartsWith("level=info event=request.done id=r-1 peer=ipv4:127.0.0.1:"));
  EXPECT_THAT(line, HasSubstr(" client=127.0.0.1 method=Generate model=fake code=OK reason=length "
                              "n=1 prompt_tokens=5 generated_tokens=3 resumed_tokens=0 queue_ms="));
}

TEST_F(RequestLogTest, TheReasonIsWhyItEnded) {
  v1::GenerateRequest request = Request("hello", 100);
  request.mutable_stop()->add_token_ids(static_cast<uint32_t>(Expected(request)[1]));
  EXPECT_THAT(LogOf(Open<GenerateStream>(request)), HasSubstr(" code=OK reason=stop "));
  v1::ScoreRequest score;
  score.set_text("hello");
  EXPECT_THAT(LogOf(Open<ScoreStream>(score)),
              HasSubstr(" method=Score model=fake code=OK reason=done n=1 prompt_tokens=5 "));
}

TEST_F(RequestLogTest, TheReasonOfARefusalIsItsMessage) {
  EXPECT_THAT(
      LogOf(Open<GenerateStream>(Request("", 3))),
      AllOf(StartsWith("level=info "),
            HasSubstr(
                " model=fake code=INVALID_ARGUMENT reason=\"text: must not be empty\" "
                "n=1 prompt_tokens=0 generated_tokens=0 resumed_tokens=0 queue_ms=0 ttft_ms=0 ")));
  v1::GenerateRequest request = Request("hello", 3);
  request.set_model("other");
  EXPECT_THAT(LogOf(Open<GenerateStream>(request)),
              HasSubstr(" model=other code=NOT_FOUND reason=\"no model is called \\\"other\\\"; "
                        "there is \\\"fake\\\"\" "));
}

TEST_F(RequestLogTest, ADefectIsAnErrorWithItsReason) {
  server_.control().FailNextCollect(absl::InternalError("why"));
  EXPECT_THAT(LogOf(Open<GenerateStream>(Request("hello", 3))),
              AllOf(StartsWith("level=error "),
                    HasSubstr(" code=INTERNAL reason=\"request r-1: a model step failed\" ")));
}

TEST_F(RequestLogTest, TimesAreThoseThatTheClientGets) {
  auto stream = Open<GenerateStream>(Request("hello", 3));
  const std::string line = LogOf(stream);
  const auto expect = [&line](const std::string& field, uint64_t microseconds) {
    const size_t begin = line.find(" " + field + "=") + field.size() + 2;
    double milliseconds = -1;
    EXPECT_TRUE(absl::SimpleAtod(line.substr(begin, line.find(' ', begin) - begin), &milliseconds));
    const auto expected = static_cast<double>(microseconds);
    EXPECT_NEAR(1000 * milliseconds, expected, 1 + 1e-5 * expected) << line;
  };
  const v1::Timings& timings = stream.finished.timings();
  expect("queue_ms", timings.queue_us());
  expect("ttft_ms", timings.first_token_us());
  expect("total_ms", timings.total_us());
  EXPECT_GT(timings.total_us(), 0U);
}

}  // namespace
}  // namespace aft::server
