// Ordinary clients of OpenAI's API, unmodified, call this server (client.py).
#include <cstdlib>
#include <fstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/integration/http/fixture.h"
#include "tests/support/temp_files.h"
#include "tests/unit/client/process.h"

namespace aft::server {
namespace {

TEST(HttpClientTest, OrdinaryClientsWorkUnmodified) {
  const char* const site = std::getenv("AFT_OPENAI");
  if (site == nullptr) GTEST_SKIP() << "no openai: AFT_OPENAI is not set";
  HttpApi server(WithHttp(TestConfigWithEncoder()), Letters());
  Json answers;
  for (const char* prompt : {"hello", "hello\n\n"}) {
    v1::GenerateRequest request;
    request.set_model("fake");
    request.set_text(prompt);
    request.set_n(2);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stop()->set_max_tokens(6);
    const v1::CompleteResponse response = server.OverGrpc(request);
    for (const v1::Answer& answer : response.answers()) answers[prompt].push_back(answer.text());
  }
  const TempFolder folder;
  const std::string file = folder.File("answers.json");
  std::ofstream(file) << answers.dump();
  const client::Ended python = client::RunToEnd(
      {"python3", "tests/integration/http/client.py", server.address(), file}, "",
      {std::string("PYTHONPATH=") + site, "PYTHONDONTWRITEBYTECODE=1", "no_proxy=127.0.0.1"});
  EXPECT_EQ(python.code, 0) << python.err;
}

}  // namespace
}  // namespace aft::server
