// States in a folder that outlive their server.

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/states/state_fixture.h"
#include "tests/support/captured_log.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

namespace fs = std::filesystem;

class StateFolderServerTest : public StateTest {
 protected:
  StateFolderServerTest() { UseStateFolder(folder_, config_); }

  // Stops the server and starts the next one.
  void Restart() {
    server_.reset();
    Start();
  }
  std::string FileOf(const std::string& id) const {
    return config_.states.folder + "/" + id + ".state";
  }
};

TEST_F(StateFolderServerTest, TheNextServerContinuesTheConversation) {
  Start();
  const v1::State state = Run(Turn("hello", 10)).finished.state();
  ASSERT_TRUE(fs::exists(FileOf(state.id())));
  const GenerateStream expected = Run(Turn(" you", 5, state.id()));
  const double bytes = server_->Metric("aft_states_bytes");
  Restart();
  EXPECT_EQ(server_->Metric("aft_states"), 2);
  EXPECT_EQ(server_->Metric("aft_states_bytes"), bytes);
  v1::StateServiceGetResponse found;
  ASSERT_TRUE(Get(state.id(), found).ok());
  EXPECT_EQ(found.state().model(), "fake");
  EXPECT_EQ(found.state().tokens(), state.tokens());
  EXPECT_EQ(found.state().history(), state.history());
  EXPECT_EQ(found.state().bytes(), state.bytes());
  EXPECT_EQ(found.state().pending(), state.pending());
  EXPECT_LE(found.state().ttl_ms(), state.ttl_ms());
  EXPECT_GT(found.state().ttl_ms(), 0);
  const GenerateStream again = Run(Turn(" you", 5, state.id()));
  EXPECT_EQ(again.tokens, expected.tokens);
  EXPECT_EQ(again.finished.state().history(), expected.finished.state().history());
}

TEST_F(StateFolderServerTest, AnExpiredFileIsRemovedWithoutACall) {
  Start();
  v1::GenerateRequest request = Turn("hello", 10);
  request.mutable_store()->set_ttl_ms(1);
  const std::string id = Run(request).finished.state().id();
  // A sweep once a second checks states first and files after that. So when the second state has
  // expired, the first one's file has been checked.
  server_->WaitForMetric("aft_states_expired_total", 1);
  Run(request);
  server_->WaitForMetric("aft_states_expired_total", 2);
  server_.reset();
  EXPECT_FALSE(fs::exists(FileOf(id)));
}

TEST_F(StateFolderServerTest, AStateWhoseFileCannotBeRemovedStays) {
  Start();
  const std::string id = Run(Turn("hello", 10)).finished.state().id();
  const std::string bytes = ReadBytes(FileOf(id));
  fs::remove(FileOf(id));
  fs::create_directory(FileOf(id));
  EXPECT_THAT(Delete(id), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.folder")));
  EXPECT_TRUE(Get(id).ok());
  fs::remove(FileOf(id));
  EXPECT_TRUE(Delete(id).ok());
  EXPECT_EQ(Get(id).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(StateFolderServerTest, AFolderThatCannotBeWrittenFailsOnlyCallsThatStore) {
  Start();
  const std::string id = Run(Turn("hello", 10)).finished.state().id();
  const double bytes = server_->Metric("aft_states_bytes");
  fs::rename(config_.states.folder, folder_.File("away"));
  GenerateStream stores(server_->inference(), Turn("hello", 5));
  EXPECT_THAT(stores.Finish(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("states.folder")));
  EXPECT_EQ(Run(Request("hello", 5)).tokens.size(), 5);  // stores nothing
  EXPECT_TRUE(Get(id).ok());
  EXPECT_EQ(server_->Metric("aft_states"), 1);
  server_->WaitForMetric("aft_states_bytes", bytes);
  EXPECT_EQ(server_->Metric("aft_states_refused_total{reason=\"unwritten\"}"), 1);
  fs::rename(folder_.File("away"), config_.states.folder);
  Run(Turn("hello", 5));
  EXPECT_EQ(server_->Metric("aft_states"), 2);
}

TEST_F(StateFolderServerTest, StatesBeyondTheNextServersBudgetStayInTheFolder) {
  Start();
  std::vector<v1::State> states;
  for (int i = 0; i < 3; ++i) states.push_back(Run(Turn("hello", 10)).finished.state());
  // There is room for two of the states, or for a new one and its sealed copy.
  config_.states.max_client_bytes = static_cast<int64_t>(5 * states[0].bytes() / 2);
  const CapturedLog log;
  Restart();
  const std::string lines = log.Text();
  EXPECT_THAT(lines, HasSubstr("event=states.skipped "));
  // An id gives access to its state, so the log must not show it.
  for (const v1::State& state : states) EXPECT_THAT(lines, Not(HasSubstr(state.id())));
  EXPECT_EQ(server_->Metric("aft_states"), 2);
  EXPECT_EQ(server_->Metric("aft_states_skipped_total"), 1);
  // The states that were loaded still count for the client that stored them.
  const auto used = static_cast<int64_t>(server_->Metric("aft_states_bytes"));
  EXPECT_THAT(Refused(Turn("hello", 10)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr(absl::StrCat("more than ", used, " of this client's"))));
  config_.states.max_client_bytes = 0;
  Restart();
  EXPECT_EQ(server_->Metric("aft_states"), 3);
  EXPECT_EQ(server_->Metric("aft_states_skipped_total"), 0);
}

TEST_F(StateFolderServerTest, NoStateLivesLongerThanTheNextServerAllows) {
  Start();
  const std::string id = Run(Turn("hello", 10)).finished.state().id();
  config_.states.max_ttl = config_.states.default_ttl = std::chrono::milliseconds(60'000);
  Restart();
  v1::StateServiceGetResponse found;
  ASSERT_TRUE(Get(id, found).ok());
  EXPECT_LE(found.state().ttl_ms(), 60'000);
}

}  // namespace
}  // namespace aft::server
