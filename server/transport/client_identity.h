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

// What a request brings of who sends it.
struct CallerFacts {
  std::string peer;           // the address, as gRPC writes it
  std::string authorization;  // headers; "" where there is none
  std::string forwarded_for;
  std::string cache_salt;
  std::vector<std::string> certificate_names = {};  // that a client's certificate is known by
};
CallerFacts FactsOf(const grpc::ServerContextBase& context);

// Says who calls. Thread-safe.
class ClientIdentity {
 public:
  // Errors as ClientDirectory::Load. REQUIRES: `config` is valid.
  static absl::StatusOr<std::unique_ptr<ClientIdentity>> Create(const SecurityConfig& config);

  // The client of a call. Where there is a file of known clients: that of the bearer token in
  // `authorization`, else that of the certificate; UNAUTHENTICATED when neither is known, or the
  // token is not. Where there is none: the address (ClientNameOf).
  absl::StatusOr<std::shared_ptr<const Client>> Find(const CallerFacts& facts) const;

  // The client that the address stands for, known to the file or not. Where there is a file, none
  // of its clients can have that name, so that they share nothing.
  std::shared_ptr<const Client> AddressOf(const CallerFacts& facts) const;

  // The value of `aft-cache-salt`, by which a proxy names the user that it calls for. Empty: there
  // is none, or the caller is not in `trusted_proxies`. INVALID_ARGUMENT: it is too long, or not
  // printable ASCII.
  absl::StatusOr<std::string> CacheSaltOf(const CallerFacts& facts) const;

  // Reads the file of known clients again, if there is one and it has changed.
  void Refresh() {
    if (directory_ != nullptr) directory_->Refresh();
  }

  // ClientDirectory::OnChange.
  void OnChange(std::function<void()> on_change) {
    if (directory_ != nullptr) directory_->OnChange(std::move(on_change));
  }

  // Null: everybody may call.
  const ClientDirectory* directory() const { return directory_.get(); }

 private:
  ClientIdentity() = default;

  std::unique_ptr<ClientDirectory> directory_;
  std::vector<IpNetwork> proxies_;
};

}  // namespace aft::server
