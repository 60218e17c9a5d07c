#include "server/rpc/message_bytes.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpcpp/impl/codegen/proto_utils.h"
#include "grpcpp/support/proto_buffer_reader.h"

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

std::optional<std::string> PeekString(const grpc::ByteBuffer& bytes, int field, int most) {
  using google::protobuf::internal::WireFormatLite;
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  google::protobuf::io::CodedInputStream input(&reader);
  const uint32_t tag = WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);
  if (input.ReadTag() != tag) return "";
  std::string value;
  int size = 0;
  const bool read =
      input.ReadVarintSizeAsInt(&size) && size <= most && input.ReadString(&value, size);
  return read ? std::make_optional(std::move(value)) : std::nullopt;
}

void SerializeMessage(const google::protobuf::MessageLite& message, grpc::ByteBuffer& bytes) {
  bytes.Clear();
  bool own_buffer = true;
  const grpc::Status status = Traits::Serialize(message, &bytes, &own_buffer);
  AFT_CHECK(status.ok());
}

}  // namespace aft::server
