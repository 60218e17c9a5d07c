// One model is replaced repeatedly while many clients use it.
#include <array>
#include <atomic>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/oip/repository_fixture.h"

namespace aft::server {
namespace {

using ::testing::ElementsAre;
namespace fs = std::filesystem;

size_t Entries(const std::string& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder)) ++count;
  return count;
}
size_t Lines(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  return lines.size();
}

// New versions replace old ones while 64 clients generate over three methods. No request fails, and
// nothing of the old versions is left.
TEST_F(OipRepositoryTest, AHundredSwapsUnder64Streams) {
  constexpr int kClients = 64;
  constexpr int kTokens = 8;
  constexpr int kSwaps = 100;
  fakes_.control->DropInputs();
  Start();
  std::atomic<bool> stop{false};
  std::atomic<int> failed{0};
  std::array<std::atomic<int>, 3> done{};
  std::vector<std::thread> clients;
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const size_t way = static_cast<size_t>(i) % done.size();
      const ModelInferRequest infer =
          InferBuilder("m").Text("text_input", "x").Tokens(kTokens).request();
      while (!stop) {
        bool ok = false;
        if (way == 0) {
          v1::GenerateRequest request = Request("x", kTokens);
          request.set_model("m");
          GenerateStream stream(server_->inference(), request);
          ok = stream.Finish().ok() && stream.tokens.size() == kTokens;
        } else if (way == 1) {
          ok = server_->Infer(infer).status.ok();
        } else {
          InferStream stream(oip());
          ok = stream.Send(infer);
          size_t tokens = 0;
          for (const ModelStreamInferResponse& response : stream.ReadAll()) {
            ok = ok && response.error_message().empty();
            tokens += response.infer_response().outputs_size() > 0 ? 1 : 0;
          }
          ok = ok && stream.Finish().ok() && tokens > 0;
        }
        ++(ok ? done[way] : failed);
      }
    });
  }
  const auto sum = [&] { return done[0] + done[1] + done[2]; };
  const auto wait_for = [&](int more) {
    const int from = sum();
    while (sum() < from + more && failed == 0) std::this_thread::yield();
  };
  size_t threads = 0;
  size_t files = 0;
  size_t lines = 0;
  for (int i = 2; i <= kSwaps + 1 && failed == 0; ++i) {
    AddVersion(absl::StrCat("m/", i));
    ASSERT_TRUE(Load().ok());
    fs::remove_all(folder_.File(absl::StrCat("m/", i - 1)));
    wait_for(kClients / 4);
    if (i == 11) {  // by now gRPC has all its threads and connections
      threads = Entries("/proc/self/task");
      files = Entries("/proc/self/fd");
      lines = Lines(server_->Metrics());
    }
  }
  while (alive_ > 1 && failed == 0) std::this_thread::yield();
  EXPECT_LE(Entries("/proc/self/task"), threads + kSwaps / 2);
  EXPECT_LE(Entries("/proc/self/fd"), files + kSwaps / 2);
  EXPECT_EQ(Lines(server_->Metrics()), lines);
  stop = true;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(Infer(), std::to_string(kSwaps + 1));
  ++done[1];

  server_->WaitForMetric("aft_model_versions{model=\"m\"}", 1);
  server_->WaitForMetric("aft_requests_running{model=\"m\"}", 0);
  EXPECT_EQ(server_->Metric("aft_requests_waiting{model=\"m\"}"), 0);
  EXPECT_EQ(server_->Metric("aft_slots_used{model=\"m\"}"), 0);
  EXPECT_EQ(server_->Metric("aft_slots{model=\"m\"}"), 4);
  EXPECT_EQ(server_->Metric("aft_model_loads_total{model=\"m\",result=\"ok\"}"), kSwaps + 1);
  EXPECT_EQ(server_->Metric("aft_model_state{model=\"m\",state=\"ready\"}"), 1);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "Generate", "m")), done[0]);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "ModelInfer", "m")), done[1]);
  EXPECT_EQ(server_->Metric(RequestsTotal("OK", "ModelStreamInfer", "m")), done[2]);
  const double tokens = (sum() - 1) * kTokens + 2;
  EXPECT_EQ(server_->Metric("aft_generated_tokens_total{model=\"m\"}"), tokens);
  EXPECT_THAT(Index(), ElementsAre(absl::StrCat("m ", kSwaps + 1, " READY ")));
}

}  // namespace
}  // namespace aft::server
