#include "server/config/clients_file.h"

#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "aft/config/v1/clients.pb.h"
#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/config/fields.h"
#include "server/config/text_proto.h"

namespace aft::server {
namespace {

namespace pb = aft::config::v1;

// The names, tokens and certificates of all clients so far. None may occur twice.
using Seen = std::set<std::string>;

absl::Status CheckNew(const std::string& path, const std::string& value, Seen& seen) {
  if (seen.insert(value).second) return absl::OkStatus();
  return BadField(path, "occurs twice in the file");
}

absl::StatusOr<std::string> DecodeSha256(const std::string& path, const std::string& hex) {
  bool ok = hex.size() == 64;
  for (const char c : hex) ok = ok && absl::ascii_isxdigit(static_cast<unsigned char>(c));
  if (ok) return absl::HexStringToBytes(hex);
  return BadField(path, "must be 64 hexadecimal digits, the SHA-256 of a token");
}

absl::StatusOr<KnownClient> DecodeClient(const std::string& path, const pb::ClientConfig& message,
                                         Seen& seen) {
  AFT_RETURN_IF_ERROR(CheckName(path + ".name", message.name()));
  AFT_RETURN_IF_ERROR(CheckNew(path + ".name", "name " + message.name(), seen));
  if (message.token_sha256_size() + message.certificate_size() == 0) {
    return BadField(path, "must have a token_sha256 or a certificate");
  }
  KnownClient known;
  for (int i = 0; i < message.token_sha256_size(); ++i) {
    const std::string field = absl::StrCat(path, ".token_sha256[", i, "]");
    AFT_ASSIGN_OR_RETURN(std::string hash, DecodeSha256(field, message.token_sha256(i)));
    AFT_RETURN_IF_ERROR(CheckNew(field, "token " + hash, seen));
    known.token_sha256.push_back(std::move(hash));
  }
  for (int i = 0; i < message.certificate_size(); ++i) {
    const std::string field = absl::StrCat(path, ".certificate[", i, "]");
    if (message.certificate(i).empty()) return BadField(field, "must not be empty");
    AFT_RETURN_IF_ERROR(CheckNew(field, "certificate " + message.certificate(i), seen));
    known.certificates.push_back(message.certificate(i));
  }
  known.client =
      std::make_shared<Client>(Client{.name = message.name(),
                                      .weight = message.weight(),
                                      .max_slots = message.max_slots(),
                                      .max_queued_requests = message.max_queued_requests(),
                                      .max_memory_bytes = message.max_memory_bytes(),
                                      .models = {message.models().begin(), message.models().end()},
                                      .admin = message.admin(),
                                      .shares_by_user = message.shares_by_user()});
  return known;
}

}  // namespace

absl::StatusOr<ClientsFile> ParseClientsFile(absl::string_view text, absl::string_view file_name) {
  pb::ClientsFile message;
  AFT_RETURN_IF_ERROR(ParseTextProto(text, file_name, message));
  if (message.has_count() && message.count() != message.clients_size()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": count: the file must have ",
                                                   message.count(), " clients, but has ",
                                                   message.clients_size(), ": is it complete?"));
  }
  FillDefaults(message);
  const auto in_file = [&](const absl::Status& status) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": ", status.message()));
  };
  if (const absl::Status status = CheckFields(message); !status.ok()) return in_file(status);
  ClientsFile file;
  file.counted = message.has_count();
  Seen seen;
  for (int i = 0; i < message.clients_size(); ++i) {
    absl::StatusOr<KnownClient> client =
        DecodeClient(absl::StrCat("clients[", i, "]"), message.clients(i), seen);
    if (!client.ok()) return in_file(client.status());
    file.clients.push_back(*std::move(client));
  }
  return file;
}

absl::StatusOr<ClientsFile> LoadClientsFile(const std::string& path) {
  AFT_ASSIGN_OR_RETURN(const std::string text, ReadConfigFile(path));
  return ParseClientsFile(text, path);
}

}  // namespace aft::server
