#pragma once

#include <openssl/sha.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

// The file of the clients that a server knows.
namespace aft::server {

inline std::string Sha256(const std::string& token) {
  std::string hash(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(hash.data()));
  return absl::BytesToHexString(hash);
}

// An entry of the file of clients. `fields` are further fields of the entry.
inline std::string ClientEntry(const std::string& name, const std::string& token,
                               const std::string& fields = "") {
  return absl::StrCat("clients { name: '", name, "' token_sha256: '", Sha256(token), "' ", fields,
                      " }\n");
}

// Replaces a file atomically, so that a server may read it at any time.
inline void Replace(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  ASSERT_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
}

}  // namespace aft::server
