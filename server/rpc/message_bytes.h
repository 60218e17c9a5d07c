#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

// Calls parse and serialise their messages themselves: gRPC answers a request that it cannot parse
// (a string that is not UTF-8) with a bare UNIMPLEMENTED, and this server names the fault.
namespace aft::server {

// INVALID_ARGUMENT names the message's type.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message);

// The first value of a string field of the message itself, without parsing the rest; empty when it
// is not among the first few fields. Nothing when it is longer than `most`, or the bytes are no
// message.
std::optional<std::string> PeekString(const grpc::ByteBuffer& bytes, int field, int most);

// Replaces `bytes`. REQUIRES: the message has less than 2 GiB.
void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer& bytes);

}  // namespace aft::server
