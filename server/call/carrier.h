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

// Who sent a request, as its transport knows.
struct Caller {
  CallIds ids;
  std::string peer;                       // the address, for the log
  std::shared_ptr<const Client> client;   // null: the request is refused for that
  TimePoint deadline = TimePoint::max();  // the client's
  std::string cache_salt{};               // of the user for whom a trusted proxy calls
};

// The bytes of a request, where the transport keeps them. One thread at a time.
class RequestBytes {
 public:
  virtual ~RequestBytes() = default;

  virtual size_t size() const = 0;
  // The string in the first field of that number, if the message begins with it; "" if it begins
  // with another one; nullopt: it is longer than `most`, or cut off.
  virtual std::optional<std::string> PeekString(int field, int most) const = 0;
  // The strings in the fields 1 to `last`, as far as the message begins with them in this order and
  // they are no longer than `most`; the others are "".
  virtual std::vector<std::string> PeekStrings(int last, size_t most) const = 0;
  // Bytes of all values of that field, as far as the message is well-formed.
  virtual size_t FieldBytes(int field) const = 0;
  // Parses and frees them. INVALID_ARGUMENT; CANCELLED: they have never arrived.
  virtual absl::Status ParseInto(google::protobuf::Message& message) = 0;
};

// How a call has ended, and what its client is told of that.
struct CallEnd {
  absl::Status status;
  bool message = false;  // Exchange::outgoing() is the last message, to be sent with the status
  bool begun = false;    // an engine had begun with it
  std::string path;      // of the text that failed by a defect; "": of none
  std::optional<std::chrono::milliseconds> retry_after;  // refused for want of room: when to retry
  Usage usage;                                           // as far as it came
  Timings timings;
};

// Brings what a call has to say to its client: a stream of gRPC, a unary call, a stream of many
// requests. A carrier sends one message at a time: Call::Take until that has nothing; then it waits
// for Wake. Thread-safe.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // A message, or the end of the call, may be ready: Call::Take says. Called by threads of engines,
  // of the decode pool and of the transport, without a lock of the call.
  virtual void Wake(Call& call) = 0;
};

}  // namespace aft::server
