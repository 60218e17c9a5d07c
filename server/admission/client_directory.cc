#include "server/admission/client_directory.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <array>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

// Returns a string that differs once the file has been changed or replaced; "" if there is no file.
std::string VersionOf(const std::string& path) {
  struct stat info = {};
  if (stat(path.c_str(), &info) != 0) return "";
  return absl::StrCat(info.st_dev, ":", info.st_ino, ":", info.st_size, ":", info.st_mtim.tv_sec,
                      ".", info.st_mtim.tv_nsec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ClientDirectory>> ClientDirectory::Load(
    const std::string& path, std::chrono::seconds period) {
  auto directory = absl::WrapUnique(new ClientDirectory(path));
  MutexLock reading(directory->read_mutex_);
  MutexLock lock(directory->mutex_);
  directory->version_ = VersionOf(path);
  AFT_ASSIGN_OR_RETURN(ClientsFile file, LoadClientsFile(path));
  if (!file.counted) {
    log::Warning("clients.uncounted",
                 {{"path", path},
                  {"reason", "without `count`, a file cut between two clients is accepted"}});
  }
  directory->clients_ = std::make_shared<const Clients>(std::move(file.clients));
  directory->watch_ = std::make_unique<Periodic>(
      "aft-clients", period, [directory = directory.get()] { directory->Look(); });
  return directory;
}

void ClientDirectory::Look() {
  const std::string before = std::exchange(looked_at_, VersionOf(path_));
  if (looked_at_ == before) Read(looked_at_);
}

void ClientDirectory::Refresh() { Read(VersionOf(path_)); }

void ClientDirectory::Read(const std::string& version) {
  MutexLock reading(read_mutex_);
  if (version == version_) return;
  absl::StatusOr<ClientsFile> file = LoadClientsFile(path_);
  // If the version differs, the file is changing, and a later look reads the rest.
  if (VersionOf(path_) != version) return;
  rejected_ = !file.ok();
  // Its version does not change when a file that cannot be read becomes readable.
  version_ = file.ok() ? version : "";
  if (!file.ok()) {
    const absl::string_view error = file.status().message();
    const std::string told = absl::StrCat(version, " ", error);
    if (std::exchange(told_, told) != told) log::Error("clients.reload_failed", {{"error", error}});
    return;
  }
  told_.clear();
  log::Info("clients.reloaded", {{"path", path_}, {"clients", file->clients.size()}});
  auto clients = std::make_shared<const Clients>(std::move(file->clients));
  {
    MutexLock lock(mutex_);
    clients_.swap(clients);
  }
  MutexLock lock(change_mutex_);
  if (on_change_) on_change_();
}

void ClientDirectory::OnChange(std::function<void()> on_change) {
  MutexLock lock(change_mutex_);
  on_change_ = std::move(on_change);
}

std::shared_ptr<const ClientDirectory::Clients> ClientDirectory::clients() const {
  MutexLock lock(mutex_);
  return clients_;
}

std::shared_ptr<const Client> ClientDirectory::FindToken(absl::string_view token) const {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash{};
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), hash.data());
  std::shared_ptr<const Client> found;
  const std::shared_ptr<const Clients> all = clients();  // keeps them alive during a reload
  for (const KnownClient& known : *all) {
    for (const std::string& expected : known.token_sha256) {
      if (CRYPTO_memcmp(hash.data(), expected.data(), hash.size()) == 0) found = known.client;
    }
  }
  return found;
}

std::shared_ptr<const Client> ClientDirectory::FindCertificate(absl::string_view name) const {
  const std::shared_ptr<const Clients> all = clients();
  for (const KnownClient& known : *all) {
    for (const std::string& expected : known.certificates) {
      if (name == expected) return known.client;
    }
  }
  return nullptr;
}

std::vector<std::string> ClientDirectory::Names() const {
  std::vector<std::string> names;
  const std::shared_ptr<const Clients> all = clients();
  for (const KnownClient& known : *all) names.push_back(known.client->name);
  return names;
}

}  // namespace aft::server
