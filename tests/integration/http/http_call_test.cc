// A call over HTTP without a connection: the test's thread takes the part of the server's thread.
#include "server/api/openai/http_call.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "gtest/gtest.h"
#include "server/api/openai/embeddings_exchange.h"
#include "server/api/openai/open_calls.h"
#include "server/api/openai/stored_response.h"
#include "server/call/carrier.h"
#include "server/config/config.h"
#include "server/http/http_handler.h"
#include "server/observability/methods.h"
#include "server/transport/client_identity.h"
#include "tests/support/captured_log.h"
#include "tests/unit/call/call_fixture.h"

namespace aft::server {
namespace {

// Keeps what is posted to the server's thread, and the answer.
class QueuedAnswer final : public HttpAnswer {
 public:
  void Post(std::function<void()> work) override {
    MutexLock lock(mutex_);
    posted_.push_back(std::move(work));
    changed_.NotifyAll();
  }
  void Send(HttpPage sent) override { page = std::move(sent); }
  void Begin(HttpPage /*page*/) override {}
  bool Write(absl::string_view /*part*/) override { return true; }
  void End(absl::string_view /*part*/) override {}
  void Abort() override {}

  // Blocks until there is posted work.
  std::function<void()> Next() {
    MutexLock lock(mutex_);
    while (posted_.empty()) changed_.Wait(mutex_);
    std::function<void()> work = std::move(posted_.front());
    posted_.pop_front();
    return work;
  }

  std::optional<HttpPage> page;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::deque<std::function<void()>> posted_ ABSL_GUARDED_BY(mutex_);
};

class HttpCallTest : public CallTest {
 protected:
  // Asks for vectors that are a large answer.
  void Ask() {
    CallerFacts facts;
    facts.peer = "ipv4:127.0.0.1:1";
    Caller caller;
    caller.client = *identity_->Find(facts);
    call_ = std::make_shared<openai::HttpCall>(
        *environment_, calls_, *identity_,
        std::make_unique<openai::EmbeddingsExchange>(/*classify=*/false, "id"), caller, facts,
        std::map<std::string, std::string>());
    answer_ = std::make_shared<QueuedAnswer>();
    call_->Start(R"({"model": "encoder", "input": ["a", "b", "c", "d"]})", answer_);
  }

  const std::unique_ptr<ClientIdentity> identity_ = *ClientIdentity::Create(SecurityConfig());
  openai::OpenCalls calls_;
  std::shared_ptr<openai::HttpCall> call_;
  std::shared_ptr<QueuedAnswer> answer_;
};

TEST_F(HttpCallTest, TheServersThreadMakesNoLargeAnswer) {
  const auto hint = [this] {
    return environment_->retry_hint.After({.waiting = 100, .slots = 1}).count();
  };
  const int64_t before = hint();
  Ask();
  const std::function<void()> send = answer_->Next();
  EXPECT_NE(hint(), before);  // it changes when a last message is made
  send();
  ASSERT_TRUE(answer_->page.has_value());
  EXPECT_EQ(answer_->page->status, 200) << answer_->page->body;
  EXPECT_GT(answer_->page->body.size(), size_t{16} << 10);
  call_->Done();
}

TEST_F(HttpCallTest, AClientMayGoWhileItsAnswerIsMade) {
  for (int round = 0; round < 50; ++round) {
    Ask();
    call_->Gone(/*stuck=*/false);
    answer_->Next()();
    EXPECT_FALSE(answer_->page.has_value());
    EXPECT_EQ(ledger_.used(), 0);
  }
}

TEST_F(HttpCallTest, AClientThatDoesNotReadAStoredResponseIsCountedAndLogged) {
  const CapturedLog log;
  CallerFacts facts;
  facts.peer = "ipv4:127.0.0.1:1";
  Caller caller;
  caller.ids.request = "mine";
  caller.client = *identity_->Find(facts);
  openai::StoredResponse response(*environment_, calls_, *identity_, Method::kGetState, "resp_x",
                                  caller, facts, {});
  response.Gone(/*stuck=*/false);
  EXPECT_EQ(metrics_.stuck_calls.Value(), 0);
  response.Gone(/*stuck=*/true);
  EXPECT_EQ(metrics_.stuck_calls.Value(), 1);
  const std::vector<LogLine> lines = log.Lines("request.stuck");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["id"], "mine");
}

}  // namespace
}  // namespace aft::server
