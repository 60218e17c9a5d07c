#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "server/call/call_ids.h"
#include "server/config/client.h"
#include "server/engine/request.h"
#include "server/scheduling/time.h"

namespace aft::server {

class Call;

// The status of a call whose client does not read.
inline absl::Status SlowClient() {
  return absl::ResourceExhaustedError("slow client: it did not read for limits.write_stall_ms");
}

// The sender of a request, as the transport knows it.
struct Caller {
  CallIds ids;
  std::string peer;                       // the address, for the log
  std::shared_ptr<const Client> client;   // null: the client is unknown, and the request refused
  TimePoint deadline = TimePoint::max();  // the client's
  std::string cache_salt{};               // of the user on whose behalf a trusted proxy calls
};

// The bytes of a request, in the transport's own form. Only one thread at a time may use it.
class RequestBytes {
 public:
  virtual ~RequestBytes() = default;

  virtual size_t size() const = 0;
  // Returns the strings of the fields 1 to `last`, as far as the message begins with these fields
  // in this order. A string is "" if its field is not there, and nullopt if it cannot be read yet,
  // is longer than `most` or incomplete.
  virtual std::vector<std::optional<std::string>> PeekStrings(int last, size_t most) const = 0;
  // The number of bytes in all values of `field`, up to the first malformed byte.
  virtual size_t FieldBytes(int field) const = 0;
  // Parses the bytes and frees them. INVALID_ARGUMENT if they are malformed, CANCELLED if they have
  // not arrived in full.
  virtual absl::Status ParseInto(google::protobuf::Message& message) = 0;
};

// How a call has ended, and what its client is told.
struct CallEnd {
  absl::Status status;
  bool message = false;  // Exchange::outgoing() is the last message, to be sent with the status
  bool begun = false;    // the engine had begun with the request
  std::string path;      // path of the text that failed by a defect, or ""
  // When to retry, if there was no room. Negative: the request can never succeed.
  std::optional<std::chrono::milliseconds> retry_after;
  Usage usage;  // of what was done, also after an error
  Timings timings;
};

// Delivers the messages of a call to its client, over gRPC or HTTP. A carrier sends one message at
// a time. It calls Call::Take until that returns kNothing, and then waits for Wake. Thread-safe.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // A message, or the end of the call, may be ready: Call::Take tells. Is called by threads of
  // engines, for the first message, of the decode pool and of the transport, without holding a lock
  // of the call.
  virtual void Wake(Call& call) = 0;
  // As Wake, but returns soon, because another thread sends. Engines' threads call it for all other
  // messages.
  virtual void WakeLater(Call& call) { Wake(call); }
  // As Wake, but is called by a thread of the decode pool when the last message is large. A carrier
  // whose own thread serves many clients therefore calls Call::Take on this thread.
  virtual void WakeLast(Call& call) { Wake(call); }
  // Makes the bytes of the last message and keeps them. Call::Take calls it before the call is
  // reported, so that a call whose answer cannot be sent is reported with that error.
  virtual absl::Status Serialize(const google::protobuf::MessageLite& /*message*/) {
    return absl::OkStatus();
  }
};

}  // namespace aft::server
