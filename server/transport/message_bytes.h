#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

// Calls parse and serialise their messages themselves: gRPC answers a request that it cannot parse
// (a string that is not UTF-8) with a bare UNIMPLEMENTED, and this server names the fault.
namespace aft::server {

// Refuses what would take memory out of proportion to its bytes, before it does. INVALID_ARGUMENT
// names the message's type; CANCELLED: the message has never arrived.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

// The bytes of a request, which gRPC passes as constant and would keep as long as the call: it
// keeps none.
grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request);

// The value of a string field with which the message begins, as every serialiser writes the field
// of the lowest number; empty when it begins with another one. Nothing when the value is longer
// than `most` or is cut off. Reads no further.
std::optional<std::string> PeekString(const grpc::ByteBuffer& bytes, int field, int most);

// The values of the string fields 1 to `last`, with which a message begins, as far as they stand in
// this order and are no longer than `most`; the others are empty.
std::vector<std::string> PeekStrings(const grpc::ByteBuffer& bytes, int last, size_t most);

// The bytes of all values of a field of strings or bytes, as far as the message is well-formed and
// among the fields that ParseMessage takes. Reads what lies between, not the values.
size_t FieldBytes(const grpc::ByteBuffer& bytes, int field);

// The largest message that protobuf and gRPC can carry: its size is an int.
inline constexpr size_t kMaxMessageBytes = std::numeric_limits<int>::max();

// Replaces `bytes`. RESOURCE_EXHAUSTED: the message is larger than kMaxMessageBytes; `bytes` is
// empty then.
absl::Status SerializeMessage(const google::protobuf::MessageLite& message,
                              grpc::ByteBuffer& bytes);

}  // namespace aft::server
