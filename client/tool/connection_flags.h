#pragma once

#include <CLI/App.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/lib/aft_client.h"

namespace aft::client {

// Which server a program connects to, and how it identifies itself.
struct ConnectionFlags {
  std::string address = kDefaultAddress;
  bool tls = false;
  // Names of files; empty: not used.
  std::string ca;
  std::string cert;
  std::string key;
  std::string token_file;
};

// Adds --address, --tls, --ca, --cert, --key and --token-file. `flags` must outlive the parsing.
void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags);

// Reads the files. Errors as ReadFile's (base/read_file.h); INVALID_ARGUMENT for a file that
// is empty.
absl::StatusOr<ClientOptions> MakeClientOptions(const ConnectionFlags& flags);

}  // namespace aft::client
