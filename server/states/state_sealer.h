#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/sequence_state.h"

namespace aft::server {

// States as bytes that leave the process and come back, from anywhere: whoever has no key can make
// none (HMAC-SHA256). Little-endian. Immutable and thread-safe.
//
//   "AFTSEAL1" | id of the key, 8 | HMAC of all the rest, 32 | the state
class StateSealer {
 public:
  static constexpr size_t kMinKeyBytes = 32;

  // The bytes of each file are a key: the first one seals, and all of them open, so that a key can
  // be replaced while states of the old one are about. Without files the key is random: then no
  // other process opens what this one seals. NOT_FOUND or INVALID_ARGUMENT names the file.
  static absl::StatusOr<StateSealer> Create(const std::vector<std::string>& key_files);

  // Sealing and opening take time with the state's size. A state opens only in the context that it
  // was sealed in: what is not "" is under the seal too, but no part of these bytes.
  std::string Seal(const SequenceState& state, absl::string_view context = "") const;

  // INVALID_ARGUMENT says what is wrong: not sealed by any server, sealed with a key that this one
  // has not, or damaged. Nothing but the key's id is looked at before the HMAC is verified.
  absl::StatusOr<SequenceState> Open(absl::string_view sealed,
                                     absl::string_view context = "") const;

  // How many bytes Seal makes of it.
  static int64_t SealedBytes(const SequenceState& state);

 private:
  struct Key {
    std::string secret;
    std::string id;
  };

  StateSealer() = default;
  void Add(std::string secret);

  std::vector<Key> keys_;  // at least one; the first seals
};

}  // namespace aft::server
