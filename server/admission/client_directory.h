#pragma once

#include <atomic>
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
  // Loads the file, and calls Look every `period` on a thread of its own. Logs a warning if the
  // file does not say how many clients it has. Errors as LoadClientsFile.
  static absl::StatusOr<std::unique_ptr<ClientDirectory>> Load(const std::string& path,
                                                               std::chrono::seconds period);

  // Reads the file again if it has changed. A bad file is logged and changes nothing.
  void Refresh();

  // As Refresh, but reads a changed file only once two calls have seen the same change, because a
  // file that is written in place may be incomplete at first. Only one thread may call it.
  void Look();

  // Sets the function to call after each change, on the thread that has read the file; null: none.
  // Returns when no call of the former function is running.
  void OnChange(std::function<void()> on_change);

  // The client with that bearer token, or null. Takes the same time for every token of one length.
  std::shared_ptr<const Client> FindToken(absl::string_view token) const;

  // The client with a certificate of that name, or null.
  std::shared_ptr<const Client> FindCertificate(absl::string_view name) const;

  // Whether the file could not be used when it was read last.
  bool rejected() const { return rejected_; }

  // The names of all clients, in the order of the file.
  std::vector<std::string> Names() const;

 private:
  using Clients = std::vector<KnownClient>;

  explicit ClientDirectory(std::string path) : path_(std::move(path)) {}

  // Reads the file unless `version` is known. Ignores what it read if the file has changed
  // meanwhile.
  void Read(const std::string& version);
  std::shared_ptr<const Clients> clients() const;

  const std::string path_;
  // Held while the file is read, so that no older file replaces a newer one.
  Mutex read_mutex_;
  std::string version_ ABSL_GUARDED_BY(read_mutex_);  // of the file read last; empty: it was bad
  std::string told_ ABSL_GUARDED_BY(read_mutex_);     // the bad version and error of the last line
  std::string looked_at_;                             // version that Look saw last
  std::atomic<bool> rejected_{false};
  mutable Mutex mutex_;
  std::shared_ptr<const Clients> clients_ ABSL_GUARDED_BY(mutex_);
  Mutex change_mutex_;  // held while on_change_ is called
  std::function<void()> on_change_ ABSL_GUARDED_BY(change_mutex_);
  std::unique_ptr<Periodic> watch_;  // last: its thread uses all of the above
};

}  // namespace aft::server
