#include "server/registry/checksums.h"

#include <openssl/evp.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace aft::server {
namespace {

constexpr size_t kHexDigits = 64;
constexpr size_t kMaxLineBytes = 4096;
constexpr uintmax_t kMaxBytes = uintmax_t{1} << 20;

absl::Status Lost(const std::string& path, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(path, ": ", what));
}

absl::StatusOr<std::string> Sha256Of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL has no SHA-256");
  }
  std::vector<char> piece(size_t{1} << 20);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    EVP_DigestUpdate(context.get(), piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (!file.eof()) return Lost(path, "cannot be read");
  std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
  unsigned size = 0;
  EVP_DigestFinal_ex(context.get(), hash.data(), &size);
  return absl::BytesToHexString({reinterpret_cast<const char*>(hash.data()), size});
}

bool ParseLine(absl::string_view line, std::string& hash, std::string& name) {
  if (line.size() < kHexDigits + 3) return false;
  hash = absl::AsciiStrToLower(line.substr(0, kHexDigits));
  for (const char c : hash) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  const char mode = line[kHexDigits + 1];
  if (line[kHexDigits] != ' ' || (mode != ' ' && mode != '*')) return false;
  name = std::string(absl::StripPrefix(line.substr(kHexDigits + 2), "./"));
  return !name.empty();
}

absl::StatusOr<std::map<std::string, std::string>> ReadChecksums(const std::string& path) {
  // A line is read whole before its length is known.
  std::error_code error;
  if (std::filesystem::file_size(path, error) > kMaxBytes && !error) {
    return Lost(path, absl::StrCat("has more than ", kMaxBytes, " bytes"));
  }
  std::ifstream file(path, std::ios::binary);
  std::map<std::string, std::string> sums;
  size_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    std::string hash;
    std::string name;
    if (line.size() > kMaxLineBytes || !ParseLine(line, hash, name)) {
      return Lost(path, absl::StrCat("line ", number, " is not as sha256sum writes it"));
    }
    if (!sums.emplace(name, hash).second) {
      return Lost(path, absl::StrCat("line ", number, " names a file for the second time"));
    }
  }
  if (!file.eof()) return Lost(path, "cannot be read");
  return sums;
}

}  // namespace

absl::Status CheckChecksums(const std::string& folder, const std::vector<std::string>& files) {
  const std::string path = absl::StrCat(folder, "/", kChecksumsName);
  AFT_ASSIGN_OR_RETURN(auto sums, ReadChecksums(path));
  for (const std::string& name : files) {
    const auto found = sums.find(name);
    if (found == sums.end()) return Lost(path, absl::StrCat("does not name \"", name, "\""));
    AFT_ASSIGN_OR_RETURN(const std::string hash, Sha256Of(absl::StrCat(folder, "/", name)));
    if (hash != found->second) {
      return Lost(absl::StrCat(folder, "/", name),
                  absl::StrCat("its SHA-256 is ", hash, ", and not the one in ", kChecksumsName));
    }
    sums.erase(found);
  }
  if (sums.empty()) return absl::OkStatus();
  return Lost(path,
              absl::StrCat("names \"", sums.begin()->first, "\", which is no file of this folder"));
}

}  // namespace aft::server
