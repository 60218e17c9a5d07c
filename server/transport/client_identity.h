#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "server/admission/client_directory.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/config/ip_address.h"

namespace aft::server {

// The facts in a request about its sender.
struct CallerFacts {
  std::string peer;           // the address, as gRPC writes it
  std::string authorization;  // this and the next two are headers, or ""
  std::string forwarded_for;
  std::string cache_salt;
  std::vector<std::string> certificate_names = {};  // the names in the client's certificate
};
CallerFacts FactsOf(const grpc::ServerContextBase& context);

// Finds the client of a call. Thread-safe.
class ClientIdentity {
 public:
  // Errors as ClientDirectory::Load. REQUIRES: `config` is valid.
  static absl::StatusOr<std::unique_ptr<ClientIdentity>> Create(const SecurityConfig& config);

  // The client of a call. With a file of known clients, it is the client of the bearer token in
  // `authorization`, or without a token the client of the certificate. UNAUTHENTICATED if the token
  // is unknown, or if there is neither a token nor a known certificate. Without a file, it is the
  // address (ClientNameOf).
  absl::StatusOr<std::shared_ptr<const Client>> Find(const CallerFacts& facts) const;

  // The client that stands for the address, whether or not the caller is in the file. With a file,
  // its name cannot be the name of a client in the file, so they share nothing.
  std::shared_ptr<const Client> AddressOf(const CallerFacts& facts) const;

  // The value of `aft-cache-salt`, by which a proxy names the user on whose behalf it calls. It is
  // "" if there is no such header, or if the caller is not in `trusted_proxies`. INVALID_ARGUMENT
  // if it is too long or not printable ASCII.
  absl::StatusOr<std::string> CacheSaltOf(const CallerFacts& facts) const;

  // Reads the file of known clients again, if there is one and it has changed.
  void Refresh() {
    if (directory_ != nullptr) directory_->Refresh();
  }

  // ClientDirectory::OnChange.
  void OnChange(std::function<void()> on_change) {
    if (directory_ != nullptr) directory_->OnChange(std::move(on_change));
  }

  // Null if every caller is allowed.
  const ClientDirectory* directory() const { return directory_.get(); }

 private:
  ClientIdentity() = default;

  std::unique_ptr<ClientDirectory> directory_;
  std::vector<IpNetwork> proxies_;
};

}  // namespace aft::server
