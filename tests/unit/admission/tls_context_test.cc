// TLS contexts from the files of the config, also after these files have changed.
#include "server/admission/tls_context.h"

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <time.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/config.h"
#include "server/observability/log.h"
#include "tests/support/certificates.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(TlsContextTest, SaysWhyAFileCannotBeUsed) {
  const TempFolder folder;
  std::ofstream(folder.File("junk")) << "junk";
  for (const auto& [name, why] :
       {std::pair("missing", "No such file"), std::pair("junk", "no start line")}) {
    TlsConfig tls;
    tls.cert_file = folder.File(name);
    // A connection that the same thread served before may have left its error.
    ERR_raise(ERR_LIB_SSL, SSL_R_NO_SHARED_CIPHER);
    EXPECT_THAT(MakeTlsContext(tls).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  }
}

class TlsFilesTest : public testing::Test {
 protected:
  TlsFilesTest() {
    config_.tls.cert_file = folder_.File("cert");
    config_.tls.key_file = folder_.File("key");
    config_.reload = std::chrono::hours(1);
    std::ofstream(config_.tls.key_file) << own_.key;
    Write(own_.certificate);
    auto files = TlsFiles::Load(config_);
    EXPECT_TRUE(files.ok()) << files.status();
    files_ = *std::move(files);
  }
  void Write(const std::string& certificate) const {
    std::ofstream(config_.tls.cert_file) << certificate;
  }

  // Replaces the key by one in PEM format.
  void WriteKey(EVP_PKEY* key, const EVP_CIPHER* cipher, char* password) const {
    const std::unique_ptr<BIO, decltype(&BIO_free)> file(
        BIO_new_file(config_.tls.key_file.c_str(), "w"), &BIO_free);
    EXPECT_EQ(PEM_write_bio_PrivateKey(file.get(), key, cipher, nullptr, 0, nullptr, password), 1);
  }

  const TempFolder folder_;
  const Certificate own_ = MakeCertificate(MakeAuthority("authority"), "localhost");
  SecurityConfig config_;
  std::unique_ptr<TlsFiles> files_;
};

TEST_F(TlsFilesTest, TheOldestProtocolIsTls12) {
  const auto context = MakeTlsContext(config_.tls);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(SSL_CTX_get_min_proto_version(context->get()), TLS1_2_VERSION);
}

TEST_F(TlsFilesTest, AKeyOfAnotherKindThanTheCertificateIsRefused) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(
      EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519"), &EVP_PKEY_free);
  WriteKey(key.get(), nullptr, nullptr);
  EXPECT_THAT(MakeTlsContext(config_.tls).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("security.tls.key_file"), HasSubstr("is not that of"))));
  files_->Refresh();
  EXPECT_TRUE(files_->rejected());
}

// If OpenSSL asked for the password, this test would wait for its terminal.
TEST_F(TlsFilesTest, AnEncryptedKeyIsRefused) {
  const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"),
                                                                &EVP_PKEY_free);
  char password[] = "secret";
  WriteKey(key.get(), EVP_aes_128_cbc(), password);
  EXPECT_THAT(MakeTlsContext(config_.tls).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("security.tls.key_file"), HasSubstr("password"))));
}

TEST_F(TlsFilesTest, ReadingThemAgainLeavesNoFileOpen) {
  const auto open_files = [] {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return std::distance(begin(files), end(files));
  };
  const auto before = open_files();
  for (int i = 0; i < 10; ++i) files_->Refresh();
  EXPECT_EQ(open_files(), before);
}

TEST_F(TlsFilesTest, TheCertificateInUseSaysWhenItExpires) {
  const std::unique_ptr<BIO, decltype(&BIO_free)> text(BIO_new_mem_buf(own_.certificate.data(), -1),
                                                       &BIO_free);
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr), &X509_free);
  const time_t expires = files_->expires();
  EXPECT_EQ(ASN1_TIME_cmp_time_t(X509_get0_notAfter(certificate.get()), expires), 0);
  Write("junk");
  files_->Refresh();
  EXPECT_EQ(files_->expires(), expires);
}

TEST_F(TlsFilesTest, ABadFileIsLoggedOnceAndAgainAfterAGoodOne) {
  const auto logs = [this] {
    testing::internal::CaptureStderr();
    files_->Refresh();
    log::Flush(std::chrono::hours(1));
    return absl::StrContains(testing::internal::GetCapturedStderr(), "event=tls.files_rejected");
  };
  for (int round = 0; round < 2; ++round) {
    Write("junk");
    EXPECT_TRUE(logs()) << round;
    EXPECT_FALSE(logs()) << round;
    EXPECT_TRUE(files_->rejected()) << round;
    Write(own_.certificate);
    EXPECT_FALSE(logs()) << round;
    EXPECT_FALSE(files_->rejected()) << round;
  }
}

}  // namespace
}  // namespace aft::server
