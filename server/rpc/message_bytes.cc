#include "server/rpc/message_bytes.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "grpcpp/impl/codegen/proto_utils.h"

namespace aft::server {
namespace {

using Traits = grpc::SerializationTraits<google::protobuf::MessageLite>;

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::MessageLite& message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices; Deserialize empties it
  if (Traits::Deserialize(&copy, &message).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("request: is no ", message.GetTypeName(), "; its strings must be valid UTF-8"));
}

void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer& bytes) {
  bytes.Clear();
  bool own_buffer = true;
  const grpc::Status status = Traits::Serialize(message, &bytes, &own_buffer);
  AFT_CHECK(status.ok());
}

}  // namespace aft::server
