#pragma once

#include <CLI/App.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/lib/aft_client.h"

namespace aft::client {

// Where a program finds its server and what it shows there.
struct ConnectionFlags {
  std::string address = kDefaultAddress;
  bool tls = false;
  // Names of files; empty: none.
  std::string ca;
  std::string cert;
  std::string key;
  std::string token_file;
};

// Adds --address, --tls, --ca, --cert, --key and --token-file. `flags` must outlive the parsing.
void AddConnectionFlags(CLI::App& app, ConnectionFlags& flags);

// Reads the files. INVALID_ARGUMENT and the like name the one that cannot be read.
absl::StatusOr<ClientOptions> MakeClientOptions(const ConnectionFlags& flags);

}  // namespace aft::client
