#pragma once

#include "absl/status/status.h"
#include "google/protobuf/message_lite.h"
#include "grpcpp/support/byte_buffer.h"

// Calls parse and serialise their messages themselves: gRPC answers a request that it cannot parse
// (a string that is not UTF-8) with a bare UNIMPLEMENTED, and this server names the fault.
namespace aft::server {

// INVALID_ARGUMENT names the message's type.
absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message);

// Replaces `bytes`. REQUIRES: the message has less than 2 GiB.
void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer& bytes);

}  // namespace aft::server
