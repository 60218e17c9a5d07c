#include "server/transport/client_identity.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "grpc/grpc_security_constants.h"
#include "grpcpp/security/auth_context.h"
#include "server/admission/peer_address.h"

namespace aft::server {
namespace {

// The kinds of names by which clients.proto identifies a certificate. Other kinds, such as e-mail
// and IP addresses, are left out: an authority may certify them without proof.
constexpr const char* kCertificateNames[] = {
    GRPC_PEER_DNS_PROPERTY_NAME, GRPC_PEER_URI_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME};

// The last value of a header; "" if there is no such header.
absl::string_view Header(const grpc::ServerContextBase& context, const char* name) {
  const auto [begin, end] = context.client_metadata().equal_range(name);
  if (begin == end) return {};
  const grpc::string_ref& value = std::prev(end)->second;
  return {value.data(), value.size()};
}

// The values of a header, joined by commas: a list may come in several headers.
std::string Joined(const grpc::ServerContextBase& context, const char* name) {
  std::string all;
  const auto [begin, end] = context.client_metadata().equal_range(name);
  for (auto header = begin; header != end; ++header) {
    const absl::string_view value(header->second.data(), header->second.size());
    absl::StrAppend(&all, all.empty() ? "" : ",", value);
  }
  return all;
}

// Finds the client of a bearer token (RFC 6750).
absl::StatusOr<std::shared_ptr<const Client>> FindToken(const ClientDirectory& directory,
                                                        absl::string_view authorization) {
  constexpr absl::string_view kScheme = "Bearer ";
  if (!absl::StartsWithIgnoreCase(authorization, kScheme)) {
    return absl::UnauthenticatedError("authorization: must be \"Bearer TOKEN\"");
  }
  const absl::string_view token = absl::StripAsciiWhitespace(authorization.substr(kScheme.size()));
  std::shared_ptr<const Client> client = directory.FindToken(token);
  if (client == nullptr) return absl::UnauthenticatedError("authorization: unknown token");
  return client;
}

}  // namespace

CallerFacts FactsOf(const grpc::ServerContextBase& context) {
  CallerFacts facts = {.peer = context.peer(),
                       .authorization = std::string(Header(context, "authorization")),
                       .forwarded_for = Joined(context, "x-forwarded-for"),
                       .cache_salt = std::string(Header(context, "aft-cache-salt"))};
  const auto auth = context.auth_context();
  if (auth == nullptr) return facts;
  for (const char* property : kCertificateNames) {
    for (const grpc::string_ref& name : auth->FindPropertyValues(property)) {
      facts.certificate_names.emplace_back(name.data(), name.size());
    }
  }
  return facts;
}

absl::StatusOr<std::unique_ptr<ClientIdentity>> ClientIdentity::Create(
    const SecurityConfig& config) {
  auto identity = absl::WrapUnique(new ClientIdentity());
  for (const std::string& proxy : config.trusted_proxies) {
    AFT_ASSIGN_OR_RETURN(IpNetwork network, IpNetwork::Parse(proxy));
    identity->proxies_.push_back(network);
  }
  if (!config.clients_file.empty()) {
    AFT_ASSIGN_OR_RETURN(identity->directory_,
                         ClientDirectory::Load(config.clients_file, config.reload));
  }
  return identity;
}

absl::StatusOr<std::shared_ptr<const Client>> ClientIdentity::Find(const CallerFacts& facts) const {
  if (directory_ == nullptr) return AddressOf(facts);
  if (!facts.authorization.empty()) return FindToken(*directory_, facts.authorization);
  for (const std::string& name : facts.certificate_names) {
    if (auto client = directory_->FindCertificate(name)) return client;
  }
  return absl::UnauthenticatedError("authorization: a bearer token is needed");
}

absl::StatusOr<std::string> ClientIdentity::CacheSaltOf(const CallerFacts& facts) const {
  if (!ComesFromProxy(facts.peer, proxies_)) return "";
  const std::string& salt = facts.cache_salt;
  const bool printable = std::all_of(salt.begin(), salt.end(), [](char c) {
    return absl::ascii_isprint(static_cast<unsigned char>(c));
  });
  if (salt.size() <= 64 && printable) return salt;
  return absl::InvalidArgumentError(
      "aft-cache-salt: must be at most 64 printable ASCII characters");
}

std::shared_ptr<const Client> ClientIdentity::AddressOf(const CallerFacts& facts) const {
  auto client = std::make_shared<Client>();
  client->name = ClientNameOf(facts.peer, facts.forwarded_for, proxies_);
  if (directory_ != nullptr) client->name = absl::StrCat("address:", client->name);
  return client;
}

}  // namespace aft::server
