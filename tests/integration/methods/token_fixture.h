#pragma once

#include <openssl/sha.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/temp_files.h"

// A server that knows its clients by their tokens.
namespace aft::server {

inline std::string Sha256(const std::string& token) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return absl::BytesToHexString(hash);
}

inline void Replace(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
}

inline GenerateStream::Prepare Authorization(const std::string& value) {
  return [value](grpc::ClientContext& context) { context.AddMetadata("authorization", value); };
}

class TokenTest : public testing::Test {
 protected:
  TokenTest() {
    const std::string path = folder_.File("clients.textproto");
    Replace(path, absl::StrCat("clients { name: 'team-a' token_sha256: '", Sha256("token a"),
                               "' }\nclients { name: 'team-b' models: 'other' token_sha256: '",
                               Sha256("token b"), "' }"));
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
