#pragma once

#include <string>

namespace aft {

// A certificate and its key in PEM. Both are newly made for a test, so the key is not a secret.
struct Certificate {
  std::string certificate;
  std::string key;
};

// Makes a certificate authority, which signs itself.
Certificate MakeAuthority(const std::string& name);
// Makes a certificate whose common name and subject alternative (DNS) name is `name`. Other
// alternative names can be given: "email:a@b.example,IP:127.0.0.9".
Certificate MakeCertificate(const Certificate& authority, const std::string& name,
                            const std::string& alternative_names = "");

}  // namespace aft
