#include "tests/support/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <memory>

#include "base/check.h"

namespace aft {
namespace {

template <auto kFree>
struct Free {
  template <typename Object>
  void operator()(Object* object) const {
    kFree(object);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Free<&EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Free<&X509_free>>;
using Bio = std::unique_ptr<BIO, Free<&BIO_free>>;

std::string Text(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<size_t>(size)};
}

Bio Read(const std::string& text) {
  return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

void AddExtension(X509* certificate, int nid, const std::string& value) {
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value.c_str());
  AFT_CHECK(extension != nullptr);
  X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
}

// Makes a certificate that `issuer` signs; it signs itself when `issuer` is null.
Certificate Make(const Certificate* issuer, const std::string& name,
                 const std::string& alternative_names) {
  const Key key(EVP_EC_gen("P-256"));
  const Cert certificate(X509_new());
  X509* const x509 = certificate.get();
  X509_set_version(x509, 2);
  static long serial = 0;
  ASN1_INTEGER_set(X509_get_serialNumber(x509), ++serial);
  X509_gmtime_adj(X509_getm_notBefore(x509), -3600);
  X509_gmtime_adj(X509_getm_notAfter(x509), 3600);
  X509_set_pubkey(x509, key.get());
  X509_NAME_add_entry_by_txt(X509_get_subject_name(x509), "CN", MBSTRING_UTF8,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  if (issuer == nullptr) {
    X509_set_issuer_name(x509, X509_get_subject_name(x509));
    AddExtension(x509, NID_basic_constraints, "critical,CA:TRUE");
    X509_sign(x509, key.get(), EVP_sha256());
  } else {
    const Cert parent(
        PEM_read_bio_X509(Read(issuer->certificate).get(), nullptr, nullptr, nullptr));
    const Key parent_key(
        PEM_read_bio_PrivateKey(Read(issuer->key).get(), nullptr, nullptr, nullptr));
    X509_set_issuer_name(x509, X509_get_subject_name(parent.get()));
    AddExtension(x509, NID_subject_alt_name, alternative_names);
    X509_sign(x509, parent_key.get(), EVP_sha256());
  }
  const Bio certificate_text(BIO_new(BIO_s_mem()));
  const Bio key_text(BIO_new(BIO_s_mem()));
  AFT_CHECK(PEM_write_bio_X509(certificate_text.get(), x509) == 1);
  AFT_CHECK(PEM_write_bio_PrivateKey(key_text.get(), key.get(), nullptr, nullptr, 0, nullptr,
                                     nullptr) == 1);
  return {Text(certificate_text.get()), Text(key_text.get())};
}

}  // namespace

Certificate MakeAuthority(const std::string& name) { return Make(nullptr, name, ""); }

Certificate MakeCertificate(const Certificate& authority, const std::string& name,
                            const std::string& alternative_names) {
  return Make(&authority, name, alternative_names.empty() ? "DNS:" + name : alternative_names);
}

}  // namespace aft
