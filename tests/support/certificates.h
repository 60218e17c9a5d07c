#pragma once

#include <string>

namespace aft {

// PEM, made anew: nothing of it is anybody's secret.
struct Certificate {
  std::string certificate;
  std::string key;
};

// Signed by itself, and an authority.
Certificate MakeAuthority(const std::string& name);
// For `name`, which is its common name and its subject alternative (DNS) name; or with other
// alternative names: "email:a@b.example,IP:127.0.0.9".
Certificate MakeCertificate(const Certificate& authority, const std::string& name,
                            const std::string& alternative_names = "");

}  // namespace aft
