#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/integration/known_clients.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/temp_files.h"

// A server that identifies its clients by their tokens.
namespace aft::server {

inline GenerateStream::Prepare Authorization(const std::string& value) {
  return [value](grpc::ClientContext& context) { context.AddMetadata("authorization", value); };
}

class TokenTest : public testing::Test {
 protected:
  TokenTest() {
    const std::string path = folder_.File("clients.textproto");
    Replace(path,
            ClientEntry("team-a", "token a") + ClientEntry("team-b", "token b", "models: 'other'"));
    config_.security.clients_file = path;
    config_.security.max_client_labels = 1;
    server_ = std::make_unique<TestServer>(config_);
  }

  grpc::Status Call(const GenerateStream::Prepare& prepare = {}) {
    return GenerateStream(server_->inference(), Request("x", 3), prepare).Finish();
  }

  const TempFolder folder_;
  ServerConfig config_ = TestConfigWithMetrics();
  std::unique_ptr<TestServer> server_;
};

}  // namespace aft::server
