// Tests how the client and the server prove who they are.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "client/lib/aft_client.h"
#include "client/lib/error_details.h"
#include "tests/support/certificates.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/client/fake_server.h"

namespace aft::client {
namespace {

using testing::_;
using testing::HasSubstr;

class TlsTest : public testing::Test {
 protected:
  TlsTest() { server_.SetScript(TextScript({"ab"})); }

  std::shared_ptr<grpc::ServerCredentials> Credentials() const {
    grpc::SslServerCredentialsOptions options(
        GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_root_certs = authority_.certificate;
    options.pem_key_cert_pairs = {{of_server_.key, of_server_.certificate}};
    return grpc::SslServerCredentials(options);
  }

  absl::Status Generate(const ClientTls& tls) const {
    ClientOptions options;
    options.address = absl::StrCat("localhost:", server_.port());
    options.max_attempts = 1;
    options.tls = tls;
    v1::GenerateRequest request;
    request.set_text("x");
    return (*Client::Create(options))->Generate(request).status();
  }

  const Certificate authority_ = MakeAuthority("authority");
  const Certificate of_server_ = MakeCertificate(authority_, "localhost");
  const Certificate of_client_ = MakeCertificate(authority_, "client");
  const Certificate stranger_ = MakeAuthority("stranger");
  FakeServer server_{0, Credentials()};
};

TEST_F(TlsTest, BothSidesAcceptEachOther) {
  EXPECT_TRUE(Generate({authority_.certificate, of_client_.certificate, of_client_.key}).ok());
}

TEST_F(TlsTest, AServerOfAnotherAuthorityGetsNoRequest) {
  EXPECT_THAT(Generate({stranger_.certificate, of_client_.certificate, of_client_.key}),
              StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_EQ(server_.requests(), 0);
}

TEST_F(TlsTest, AClientWithoutACertificateCannotReachTheServer) {
  EXPECT_THAT(Generate({authority_.certificate, "", ""}),
              StatusIs(absl::StatusCode::kUnavailable, _));
  EXPECT_EQ(server_.requests(), 0);
}

TEST_F(TlsTest, CertificatesAndKeysThatGrpcCannotUseAreNamed) {
  const ClientTls unusable[] = {{"garbage", "", ""},
                                {authority_.certificate, "garbage", "garbage"},
                                {authority_.certificate, of_client_.certificate, of_server_.key}};
  for (const ClientTls& tls : unusable) {
    const absl::Status status = Generate(tls);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnavailable,
                                 HasSubstr("cannot use the certificates or the key")));
    EXPECT_EQ(GetErrorDetails(status).origin, ErrorOrigin::kUnreachable);
  }
}

TEST_F(TlsTest, ACertificateAndItsKeyNeedEachOther) {
  const ClientTls halves[] = {{authority_.certificate, of_client_.certificate, ""},
                              {authority_.certificate, "", of_client_.key}};
  for (const ClientTls& tls : halves) {
    EXPECT_THAT(Client::Create({.tls = tls}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("need each other")));
  }
}

TEST(TokenTest, IsSentToTheServer) {
  FakeServer server;
  server.SetScript(TextScript({"ab"}));
  v1::GenerateRequest request;
  request.set_text("x");
  ClientOptions options;
  options.address = server.address();
  EXPECT_TRUE((*Client::Create(options))->Generate(request).ok());
  EXPECT_EQ(server.authorization(), "");
  options.token = "abc123";
  EXPECT_TRUE((*Client::Create(options))->Generate(request).ok());
  EXPECT_EQ(server.authorization(), "Bearer abc123");
  options.token = "two\nlines";
  EXPECT_THAT(Client::Create(options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("token")));
}

}  // namespace
}  // namespace aft::client
