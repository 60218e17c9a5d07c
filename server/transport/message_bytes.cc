#include "server/transport/message_bytes.h"

#include <cstdint>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/catching.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"
#include "grpc/slice.h"
#include "grpcpp/support/proto_buffer_reader.h"
#include "grpcpp/support/slice.h"

namespace aft::server {
namespace {

using google::protobuf::internal::WireFormatLite;

// The largest number of fields that IsModest accepts. A generation with all options at their limits
// has some 1,060: an entry of logit_bias counts as three (900 in total), and there are up to 128
// bad_words and 16 stop strings. A request with limits.max_texts at its maximum has 800.
constexpr int kMostFields = 1200;

// gRPC ends the process when it has no memory for a slice. Up to this size gRPC's memory is
// used nevertheless, because it takes one allocation where memory of operator new takes two.
constexpr size_t kMostBytesOfGrpc = 4096;

// Whether parsing takes memory in proportion to the bytes. An element of a list of strings, or an
// unknown field, takes up to 50 times its two bytes. So there may be at most `fields_left` fields
// that are not numbers of a list. No string may extend beyond the end, because protobuf would
// reserve up to 50 MB for it. REQUIRES: `type` does not contain itself.
bool IsModest(google::protobuf::io::CodedInputStream& input,
              const google::protobuf::Descriptor& type, int& fields_left) {
  while (const uint32_t tag = input.ReadTag()) {
    const auto* field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const WireFormatLite::WireType wire = WireFormatLite::GetTagWireType(tag);
    const bool in_numbers = field != nullptr && field->is_packable() &&
                            (wire == WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
                             wire == WireFormatLite::WireTypeForFieldType(
                                         static_cast<WireFormatLite::FieldType>(field->type())));
    if (!in_numbers && --fields_left < 0) return false;
    if (wire == WireFormatLite::WIRETYPE_START_GROUP) return false;  // no message type has groups
    if (wire != WireFormatLite::WIRETYPE_LENGTH_DELIMITED || field == nullptr ||
        field->message_type() == nullptr) {
      if (!WireFormatLite::SkipField(&input, tag)) return false;
      continue;
    }
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size)) return false;
    const auto outer = input.PushLimit(size);
    if (!IsModest(input, *field->message_type(), fields_left)) return false;
    input.PopLimit(outer);
  }
  return input.ConsumedEntireMessage();
}

absl::Status ParseBytes(const uint8_t* begin, size_t bytes, google::protobuf::Message& message) {
  const auto size = static_cast<int>(bytes);
  google::protobuf::io::CodedInputStream input(begin, size);
  int fields = kMostFields;
  if (IsModest(input, *message.GetDescriptor(), fields) && message.ParseFromArray(begin, size)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "request: is no ", message.GetTypeName(),
      "; its strings must be valid UTF-8, and it may have at most ", kMostFields, " fields"));
}

absl::Status ParseSlices(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  grpc::Slice whole;
  if (bytes.TrySingleSlice(&whole).ok()) return ParseBytes(whole.begin(), whole.size(), message);
  std::vector<grpc::Slice> slices;
  bytes.Dump(&slices);
  std::vector<uint8_t> joined;  // DumpToSingleSlice would take memory of gRPC
  joined.reserve(bytes.Length());
  for (const grpc::Slice& slice : slices) joined.insert(joined.end(), slice.begin(), slice.end());
  return ParseBytes(joined.data(), joined.size(), message);
}

// A slice in memory of operator new. REQUIRES: `size` is message.ByteSizeLong(), which was called
// just before.
grpc::Slice LargeSlice(const google::protobuf::MessageLite& message, size_t size) {
  void (*const release)(void*) = [](void* memory) { operator delete(memory); };
  std::unique_ptr<void, void (*)(void*)> memory(operator new(size), release);
  message.SerializeWithCachedSizesToArray(static_cast<uint8_t*>(memory.get()));
  grpc::Slice slice(memory.get(), size, release);
  static_cast<void>(memory.release());
  return slice;
}

}  // namespace

absl::Status ParseMessage(const grpc::ByteBuffer& bytes, google::protobuf::Message& message) {
  if (!bytes.Valid()) return absl::CancelledError("the call was cancelled before its message came");
  return Catching([&] { return ParseSlices(bytes, message); });
}

std::vector<std::optional<std::string>> PeekStrings(const grpc::ByteBuffer& bytes, int last,
                                                    size_t most) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  google::protobuf::io::CodedInputStream input(&reader);
  std::vector<std::optional<std::string>> values(static_cast<size_t>(last), "");
  for (int before = 0; before < last;) {
    const uint32_t tag = input.ReadTag();
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED ||
        field <= before || field > last) {
      break;
    }
    std::optional<std::string>& value = values[static_cast<size_t>(field) - 1];
    int size = 0;
    if (!input.ReadVarintSizeAsInt(&size) || static_cast<size_t>(size) > most ||
        !input.ReadString(&*value, size)) {
      value = std::nullopt;
      break;
    }
    before = field;
  }
  return values;
}

size_t FieldBytes(const grpc::ByteBuffer& bytes, int field) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  google::protobuf::io::CodedInputStream input(&reader);
  size_t sum = 0;
  for (int fields = 0; fields < kMostFields; ++fields) {
    const uint32_t tag = input.ReadTag();
    if (tag == 0) break;
    int size = 0;
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!WireFormatLite::SkipField(&input, tag)) break;
    } else if (!input.ReadVarintSizeAsInt(&size) || !input.Skip(size)) {
      break;
    } else if (WireFormatLite::GetTagFieldNumber(tag) == field) {
      sum += static_cast<size_t>(size);
    }
  }
  return sum;
}

absl::Status SerializeMessage(const google::protobuf::MessageLite& message,
                              grpc::ByteBuffer& bytes) {
  bytes.Clear();
  // gRPC casts the size to int without a check.
  const size_t size = message.ByteSizeLong();
  if (size > kMaxMessageBytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", size, " bytes, a message at most ", kMaxMessageBytes));
  }
  const auto put = [&bytes](const grpc::Slice& slice) {
    grpc::ByteBuffer(&slice, 1).Swap(&bytes);
    return absl::OkStatus();
  };
  if (size > kMostBytesOfGrpc) return Catching([&] { return put(LargeSlice(message, size)); });
  grpc_slice memory = grpc_slice_malloc(size);
  message.SerializeWithCachedSizesToArray(GRPC_SLICE_START_PTR(memory));
  return put(grpc::Slice(memory, grpc::Slice::STEAL_REF));
}

grpc::ByteBuffer TakeRequest(const grpc::ByteBuffer& request) {
  grpc::ByteBuffer taken(request);
  const_cast<grpc::ByteBuffer&>(request).Clear();
  return taken;
}

}  // namespace aft::server
