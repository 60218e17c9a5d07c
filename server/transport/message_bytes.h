#pragma once

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "google/protobuf/message.h"
#include "grpcpp/support/byte_buffer.h"

// Calls parse and serialise their messages themselves. gRPC would answer a request that it cannot
// parse (such as a string that is not UTF-8) with UNIMPLEMENTED and no reason. This server names
// the fault.
namespace aft::server {

// Parses a message. Refuses in advance what would take memory out of proportion to its bytes.
// INVALID_ARGUMENT names the message's type; CANCELLED if the message has not arrived;
// RESOURCE_EXHAUSTED if there is no memory for it.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);

// Takes the bytes out of a request. gRPC passes it as constant, and would otherwise keep its bytes
// for as long as the call.
grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request);

// Returns the strings of the fields 1 to `last`, as far as the message begins with these fields in
// this order, as serialisers write them. A string is "" if its field is not there, and nullopt if
// it is longer than `most` or incomplete. Reads no further than such a string.
std::vector<std::optional<std::string>> PeekStrings(const grpc::ByteBuffer& bytes, int last,
                                                    size_t most);

// The number of bytes in all values of a field of strings or bytes, up to the first malformed byte
// and within the number of fields that ParseMessage accepts. Skips the values.
size_t FieldBytes(const grpc::ByteBuffer& bytes, int field);

// The largest message that protobuf and gRPC can carry: its size is an int.
inline constexpr size_t kMaxMessageBytes = std::numeric_limits<int>::max();

// Replaces `bytes`. RESOURCE_EXHAUSTED if the message is larger than kMaxMessageBytes, or if there
// is no memory for its bytes; then `bytes` is empty.
absl::Status SerializeMessage(const google::protobuf::MessageLite& message,
                              grpc::ByteBuffer& bytes);

}  // namespace aft::server
