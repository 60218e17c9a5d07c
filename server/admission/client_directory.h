#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"
#include "base/periodic.h"
#include "server/config/clients_file.h"

namespace aft::server {

// The clients of a clients_file, which may change while the server runs. Thread-safe.
class ClientDirectory {
 public:
  // Calls Refresh every `period`, on a thread of its own. Errors as LoadClientsFile.
  static absl::StatusOr<std::unique_ptr<ClientDirectory>> Load(const std::string& path,
                                                               std::chrono::seconds period);

  // Reads the file again when it has changed. A bad one is logged, and changes nothing.
  void Refresh();

  // Who has that bearer token; null: nobody. Takes the same time for every token of one length.
  std::shared_ptr<const Client> FindToken(absl::string_view token) const;

  // Who has a certificate of that name; null: nobody.
  std::shared_ptr<const Client> FindCertificate(absl::string_view name) const;

  // Names, in the file's order.
  std::vector<std::string> Names() const;

 private:
  using Clients = std::vector<KnownClient>;

  explicit ClientDirectory(std::string path) : path_(std::move(path)) {}

  std::shared_ptr<const Clients> clients() const;

  const std::string path_;
  mutable Mutex mutex_;
  std::string version_ ABSL_GUARDED_BY(mutex_);  // of the file that was read, good or bad
  std::shared_ptr<const Clients> clients_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Periodic> watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
