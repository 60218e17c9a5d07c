#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// The sender of a request, and what it may use: what the clients_file says of it, or the defaults
// for a client without an entry. Several objects with the same name are the same client.
struct Client {
  // Belongs to its token or certificate. Without these, it is the address, without port, from which
  // its requests come.
  std::string name;
  // Clients of one class share the model in proportion to their weights. Above 0.
  double weight = 1;
  // For the next three, 0 means the limit that the config has for every client.
  int32_t max_slots = 0;
  int32_t max_queued_requests = 0;
  int64_t max_memory_bytes = 0;
  std::vector<std::string> models{};  // the models that it may use; empty: all
  bool admin = false;                 // it may load and unload them
  bool shares_by_user = false;        // its users share its turns (FairQueue)

  bool MayUse(absl::string_view model) const {
    return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
  }
};

// The client of requests that do not come over the network.
inline const std::shared_ptr<const Client>& AnonymousClient() {
  static const auto& client = *new std::shared_ptr<const Client>(std::make_shared<Client>());
  return client;
}

}  // namespace aft::server
