#pragma once

#include <chrono>
#include <functional>
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
  // Calls Look every `period`, on a thread of its own. A file that does not say how many clients it
  // has is logged. Errors as LoadClientsFile.
  static absl::StatusOr<std::unique_ptr<ClientDirectory>> Load(const std::string& path,
                                                               std::chrono::seconds period);

  // Reads the file again when it has changed. A bad one is logged, and changes nothing.
  void Refresh();

  // The same, but only once two looks have seen the same change: a file that is written in place
  // may be there in part. Of one thread.
  void Look();

  // Is called after each change, on the thread that has read the file; null: nothing is. Returns
  // when no call of what was set before is under way.
  void OnChange(std::function<void()> on_change);

  // Who has that bearer token; null: nobody. Takes the same time for every token of one length.
  std::shared_ptr<const Client> FindToken(absl::string_view token) const;

  // Who has a certificate of that name; null: nobody.
  std::shared_ptr<const Client> FindCertificate(absl::string_view name) const;

  // Names, in the file's order.
  std::vector<std::string> Names() const;

 private:
  using Clients = std::vector<KnownClient>;

  explicit ClientDirectory(std::string path) : path_(std::move(path)) {}

  // Reads the file, unless it is of another version when it has been read.
  void Read(const std::string& version);
  std::shared_ptr<const Clients> clients() const;

  const std::string path_;
  mutable Mutex mutex_;
  std::string version_ ABSL_GUARDED_BY(mutex_);  // of the file that was read, good or bad
  std::string looked_at_;                        // of the file that Look has seen last
  std::shared_ptr<const Clients> clients_ ABSL_GUARDED_BY(mutex_);
  Mutex change_mutex_;  // held while on_change_ is called
  std::function<void()> on_change_ ABSL_GUARDED_BY(change_mutex_);
  std::unique_ptr<Periodic> watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
