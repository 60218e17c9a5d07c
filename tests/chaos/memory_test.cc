// The memory of the real program, with the shipped model, under many concurrent requests.
#include <signal.h>

#include <deque>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/chaos/program.h"
#include "tests/integration/http/fixture.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

constexpr int kRounds = 4;
constexpr int kConcurrent = 120;  // over gRPC, and the same number over HTTP
// Resident memory differs by 1 MB from round to round. When snapshots came from the heaps of the
// allocator (mallopt in server/app/main.cc), it grew by 86 MB from the second round to the last.
constexpr double kMostMegabytes = 24;

// No two prompts begin alike, so each of them leaves a state in the prefix cache.
std::string NextPrompt(int& prompts) {
  ++prompts;
  return absl::StrCat(prompts, " is the number of a truth ") +
         std::string(static_cast<size_t>(50 + prompts * 37 % 150), 'x');
}

TEST(MemoryTest, DoesNotGrowWithTheRequestsThatWereServed) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "AddressSanitizer keeps memory that was freed";
#endif
  const TempFolder folder;
  std::ofstream(folder.File("server.textproto")) << R"(metrics_address: "127.0.0.1:0"
      http_address: "127.0.0.1:0"
      models { path: ")" << AFT_MODEL << R"(" slots: 16 prefix_cache_bytes: 16777216 }
      limits { max_queued_requests: 1000 }
      scheduling { max_client_queued_requests: 1000 }
      drain { lame_duck_ms: 0 })";
  Program program(folder.File("server.textproto"));
  program.Start();
  const auto inference = v1::InferenceService::NewStub(TestServer::Connect(program.address()));
  std::vector<double> megabytes;  // after each round
  for (int prompts = 0; prompts < kRounds * 2 * kConcurrent;) {
    std::deque<GenerateStream> streams;
    std::deque<TcpConnection> connections;
    for (int i = 0; i < kConcurrent; ++i) {
      v1::GenerateRequest request = Request(NextPrompt(prompts), 8);
      request.clear_model();
      streams.emplace_back(*inference, request);
      const Json body = {{"prompt", NextPrompt(prompts)}, {"max_tokens", 8}};
      connections.emplace_back(program.http_address())
          .Send(HttpPost("/v1/completions", body.dump()));
    }
    for (GenerateStream& stream : streams) EXPECT_TRUE(stream.Finish().ok());
    for (const TcpConnection& connection : connections) {
      EXPECT_EQ(ParseReply(connection.ReadAll()).status, 200);
    }
    megabytes.push_back(program.ResidentMegabytes());
  }
  // The first two rounds fill the prefix cache and the caches of libraries.
  EXPECT_LE(megabytes.back() - megabytes[1], kMostMegabytes) << testing::PrintToString(megabytes);
  program.Stop(SIGTERM);
}

}  // namespace
}  // namespace aft::server
