#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace aft::server {

// Who sends a request, and what that client may use: of one that presents a token, what the file of
// tokens says; else every default. The same client is one object or several with the same name.
struct Client {
  // Of its token or certificate; else the address, without port, that its requests come from.
  std::string name;
  // Clients of one class share the model in proportion to their weights. Above 0.
  double weight = 1;
  // 0: the limit that the config has for every client.
  int32_t max_slots = 0;
  int32_t max_queued_requests = 0;
  int64_t max_memory_bytes = 0;
  std::vector<std::string> models{};  // that it may use; empty: all
  bool admin = false;                 // it may have them loaded and unloaded
  bool shares_by_user = false;        // its users share its turns (FairQueue)

  bool MayUse(absl::string_view model) const {
    return models.empty() || std::find(models.begin(), models.end(), model) != models.end();
  }
};

// Of requests that do not come over the wire.
inline const std::shared_ptr<const Client>& AnonymousClient() {
  static const auto& client = *new std::shared_ptr<const Client>(std::make_shared<Client>());
  return client;
}

}  // namespace aft::server
