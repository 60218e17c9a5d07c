#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/engine/sequence_state.h"

namespace aft::server {

// Makes bytes of states, which may leave the process and come back from anywhere. Without the key
// such bytes can be neither read nor made nor changed: they are encrypted and authenticated with
// AES-256-SIV (RFC 5297). SIV needs no random number, so equal states give equal bytes, and a key
// may seal any number of states. Little-endian. Immutable and thread-safe.
//
//   "AFTSEAL2", or "AFTSEAL3" with a note | id of the key, 8 | tag, 16 | the state, encrypted
class StateSealer {
 public:
  static constexpr size_t kMinKeyBytes = 32;
  static constexpr size_t kMaxKeyBytes = 4096;

  // The bytes of each file are a key. The first key seals and all of them open, so that a key can
  // be replaced while states with the old one exist. Without files the key is random, and no other
  // process can open the states that this one seals. NOT_FOUND or INVALID_ARGUMENT names the file.
  static absl::StatusOr<StateSealer> Create(const std::vector<std::string>& key_files);

  // Sealing and opening take time in proportion to the state's size. A state opens only in the
  // context that it was sealed in; the context is not in the bytes. RESOURCE_EXHAUSTED: more than 2
  // GiB.
  absl::StatusOr<std::string> Seal(const SequenceState& state,
                                   absl::string_view context = "") const;
  // Appends the sealed state to `bytes`.
  absl::Status Append(const SequenceState& state, absl::string_view context,
                      std::string& bytes) const;

  // INVALID_ARGUMENT says what is wrong: not sealed by any server, sealed with a key that this
  // server does not have, or damaged. Only the key's id is read before the tag is verified.
  absl::StatusOr<SequenceState> Open(absl::string_view sealed,
                                     absl::string_view context = "") const;

  // The number of bytes that Seal makes of the state.
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
