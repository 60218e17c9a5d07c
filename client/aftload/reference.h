#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "client/aftload/workload.h"
#include "client/lib/aft_client.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

// The answer to a request without any disturbance.
struct Reference {
  std::vector<uint32_t> token_ids;
  std::string text;
};

// Gets the references of the workload's first `count` requests, at most `streams` at a time,
// divided among `clients`. Returns the error of the first request that fails.
absl::StatusOr<std::vector<Reference>> TakeReferences(
    const Workload& workload, uint64_t count, uint32_t streams,
    const std::vector<std::unique_ptr<Client>>& clients, CancelToken& cancel);

// How answers differ from their references.
struct Differences {
  uint64_t lost = 0;           // missing, in completed streams or before later tokens
  uint64_t repeated = 0;       // tokens that arrived again
  uint64_t changed = 0;        // tokens that differ from the reference's
  uint64_t changed_texts = 0;  // completed streams

  void Merge(const Differences& other);
  bool any() const { return lost + repeated + changed + changed_texts > 0; }
};

// Compares one stream. Not thread-safe. The differences are not thread-safe either.
class StreamVerifier {
 public:
  // Without a reference (null), only positions are compared. It must outlive this object.
  explicit StreamVerifier(const Reference* reference) : reference_(reference) {}

  void OnDelta(const v1::Delta& delta, Differences& differences);
  void OnCompleted(Differences& differences);

 private:
  const Reference* const reference_;
  uint64_t next_ = 0;  // position of the next token
  size_t text_bytes_ = 0;
  bool same_text_ = true;
};

}  // namespace aft::client
