#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/client.h"

namespace aft::server {

// A client and how it proves who it is; see proto/aft/config/v1/clients.proto.
struct KnownClient {
  std::shared_ptr<const Client> client;
  std::vector<std::string> token_sha256;  // 32 bytes each
  std::vector<std::string> certificates;  // names in its certificates
};

struct ClientsFile {
  std::vector<KnownClient> clients;
  bool counted = false;  // the file has `count`, so it is known to be complete
};

// INVALID_ARGUMENT "FILE:LINE:COLUMN: ..." or "FILE: clients[2].weight: ...". NOT_FOUND and similar
// errors if the file cannot be read.
absl::StatusOr<ClientsFile> LoadClientsFile(const std::string& path);
absl::StatusOr<ClientsFile> ParseClientsFile(absl::string_view text, absl::string_view file_name);

}  // namespace aft::server
