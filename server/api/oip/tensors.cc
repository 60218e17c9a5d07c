#include "server/api/oip/tensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "server/config/checks.h"

namespace aft::server::oip {
namespace {

using inference::InferTensorContents;
using inference::ModelInferRequest;

static_assert(std::endian::native == std::endian::little, "raw contents are copied as they are");

constexpr size_t kMaxTensorNameBytes = 128;
constexpr size_t kMaxDatatypeBytes = 8;
constexpr size_t kMaxDimensions = 8;
constexpr size_t kLengthBytes = sizeof(uint32_t);  // before each element of BYTES

// Which list of InferTensorContents a datatype uses.
enum class List { kNone, kBool, kInt, kInt64, kUint, kUint64, kFp32, kFp64, kBytes };

struct Datatype {
  absl::string_view name;
  int64_t bytes;  // size of an element; of BYTES, the minimum
  List list;
};

constexpr std::array<Datatype, 14> kDatatypes = {{
    {"BOOL", 1, List::kBool},
    {"UINT8", 1, List::kUint},
    {"UINT16", 2, List::kUint},
    {"UINT32", 4, List::kUint},
    {"UINT64", 8, List::kUint64},
    {"INT8", 1, List::kInt},
    {"INT16", 2, List::kInt},
    {"INT32", 4, List::kInt},
    {"INT64", 8, List::kInt64},
    {"FP16", 2, List::kNone},
    {"BF16", 2, List::kNone},
    {"FP32", 4, List::kFp32},
    {"FP64", 8, List::kFp64},
    {"BYTES", kLengthBytes, List::kBytes},
}};

struct Lengths {
  List list;
  absl::string_view name;
  int size;
};

std::array<Lengths, 8> LengthsOf(const InferTensorContents& contents) {
  return {{{List::kBool, "bool_contents", contents.bool_contents_size()},
           {List::kInt, "int_contents", contents.int_contents_size()},
           {List::kInt64, "int64_contents", contents.int64_contents_size()},
           {List::kUint, "uint_contents", contents.uint_contents_size()},
           {List::kUint64, "uint64_contents", contents.uint64_contents_size()},
           {List::kFp32, "fp32_contents", contents.fp32_contents_size()},
           {List::kFp64, "fp64_contents", contents.fp64_contents_size()},
           {List::kBytes, "bytes_contents", contents.bytes_contents_size()}}};
}

absl::StatusOr<int64_t> CountElements(absl::string_view name, absl::Span<const int64_t> shape) {
  int64_t elements = 1;
  if (shape.size() > kMaxDimensions) {
    return BadField(name, absl::StrCat("must have at most ", kMaxDimensions, " dimensions, got ",
                                       shape.size()));
  }
  if (std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size < 0; })) {
    return BadField(name, absl::StrCat("no dimension may be below 0, got ", ShowShape(shape)));
  }
  for (const int64_t size : shape) {
    if (!__builtin_mul_overflow(elements, size, &elements)) continue;
    return BadField(name, absl::StrCat("shape ", ShowShape(shape), " has too many elements"));
  }
  return elements;
}

absl::Status CheckTyped(const InputTensor& tensor, const Datatype& datatype) {
  int values = 0;
  for (const auto& [list, name, size] : LengthsOf(*tensor.typed)) {
    if (size == 0) continue;
    if (list != datatype.list) {
      return BadField(tensor.name, absl::StrCat("contents.", name, " is not for ", datatype.name));
    }
    values = size;
  }
  if (values == tensor.elements) return absl::OkStatus();
  return BadField(tensor.name, absl::StrCat("shape ", ShowShape(tensor.shape), " asks for ",
                                            tensor.elements, " elements, got ", values));
}

absl::Status CheckRaw(const InputTensor& tensor, const Datatype& datatype) {
  const auto bytes = static_cast<int64_t>(tensor.raw->size());
  int64_t needed = 0;
  const bool overflow = __builtin_mul_overflow(tensor.elements, datatype.bytes, &needed);
  const bool fits = datatype.list == List::kBytes ? bytes >= needed : bytes == needed;
  if (!overflow && fits) return absl::OkStatus();
  return BadField(
      tensor.name,
      absl::StrCat("shape ", ShowShape(tensor.shape), " of ", datatype.name, " asks for ",
                   datatype.list == List::kBytes ? "at least " : "",
                   overflow ? "more bytes than there are" : absl::StrCat(needed, " bytes"),
                   ", got ", bytes));
}

absl::StatusOr<InputTensor> ReadInput(const ModelInferRequest& message, int index) {
  const auto& input = message.inputs(index);
  AFT_RETURN_IF_ERROR(CheckLength(absl::StrCat("inputs[", index, "].name"), input.name().size(),
                                  kMaxTensorNameBytes));
  if (input.name().empty()) {
    return BadField(absl::StrCat("inputs[", index, "].name"), "must not be empty");
  }
  InputTensor tensor = {.name = input.name(), .datatype = input.datatype()};
  for (const char* const key : {"shared_memory_region", "shared_memory_byte_size"}) {
    if (input.parameters().contains(key)) {
      return BadField(tensor.name, absl::StrCat(key, ": there is no shared memory"));
    }
  }
  AFT_RETURN_IF_ERROR(CheckLength(absl::StrCat(tensor.name, ": datatype"), input.datatype().size(),
                                  kMaxDatatypeBytes));
  const auto datatype =
      std::find_if(kDatatypes.begin(), kDatatypes.end(),
                   [&](const Datatype& known) { return known.name == tensor.datatype; });
  if (datatype == kDatatypes.end()) {
    return BadField(tensor.name, absl::StrCat("\"", input.datatype(), "\" is no datatype"));
  }
  const absl::Span<const int64_t> shape(input.shape().data(),
                                        static_cast<size_t>(input.shape_size()));
  AFT_ASSIGN_OR_RETURN(tensor.elements, CountElements(tensor.name, shape));
  tensor.shape.assign(shape.begin(), shape.end());
  if (message.raw_input_contents_size() > 0) {
    if (input.has_contents()) {
      return BadField(tensor.name, "contents must not be set together with raw_input_contents");
    }
    tensor.raw = &message.raw_input_contents(index);
    AFT_RETURN_IF_ERROR(CheckRaw(tensor, *datatype));
  } else {
    if (!input.has_contents()) {
      return BadField(tensor.name, "has neither contents nor raw_input_contents");
    }
    tensor.typed = &input.contents();
    AFT_RETURN_IF_ERROR(CheckTyped(tensor, *datatype));
  }
  return tensor;
}

absl::Status WrongDatatype(const InputTensor& tensor, absl::string_view allowed) {
  return BadField(tensor.name, absl::StrCat("must be ", allowed, ", got ", tensor.datatype));
}

absl::Status CheckOne(const InputTensor& tensor) {
  if (tensor.elements == 1) return absl::OkStatus();
  return BadField(tensor.name,
                  absl::StrCat("must have one element, got shape ", ShowShape(tensor.shape)));
}

// Copies the elements of a tensor whose size was checked.
template <typename T>
std::vector<T> Elements(const InputTensor& tensor,
                        const google::protobuf::RepeatedField<T>& typed) {
  if (tensor.typed != nullptr) return {typed.begin(), typed.end()};
  std::vector<T> values(static_cast<size_t>(tensor.elements));
  if (!values.empty()) std::memcpy(values.data(), tensor.raw->data(), values.size() * sizeof(T));
  return values;
}

template <typename T>
std::string AsBytes(absl::Span<const T> values) {
  std::string bytes(values.size() * sizeof(T), '\0');
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

const InferTensorContents& Typed(const InputTensor& tensor) {
  return tensor.typed != nullptr ? *tensor.typed : InferTensorContents::default_instance();
}

}  // namespace

absl::StatusOr<std::vector<InputTensor>> ReadInputs(const ModelInferRequest& message) {
  const int raw = message.raw_input_contents_size();
  if (raw > 0 && raw != message.inputs_size()) {
    return BadField("raw_input_contents",
                    absl::StrCat("must have an entry for each of ", message.inputs_size(),
                                 " inputs, got ", raw));
  }
  std::vector<InputTensor> tensors;
  std::set<absl::string_view> names;
  for (int i = 0; i < message.inputs_size(); ++i) {
    AFT_ASSIGN_OR_RETURN(InputTensor tensor, ReadInput(message, i));
    if (!names.insert(tensor.name).second) return BadField(tensor.name, "is given twice");
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

absl::StatusOr<std::vector<int64_t>> ReadIntegers(const InputTensor& tensor) {
  if (tensor.datatype == "INT64") return Elements(tensor, Typed(tensor).int64_contents());
  if (tensor.datatype == "INT32") {
    const std::vector<int32_t> values = Elements(tensor, Typed(tensor).int_contents());
    return std::vector<int64_t>(values.begin(), values.end());
  }
  return WrongDatatype(tensor, "INT64 or INT32");
}

absl::StatusOr<std::vector<uint8_t>> ReadFlags(const InputTensor& tensor, bool or_numbers) {
  std::vector<uint8_t> flags;
  flags.reserve(static_cast<size_t>(tensor.elements));
  const auto add = [&](int64_t value) {
    flags.push_back(static_cast<uint8_t>(value));
    if (value == 0 || value == 1) return absl::OkStatus();
    return BadField(ElementPath(tensor, static_cast<int64_t>(flags.size()) - 1),
                    absl::StrCat("must be 0 or 1, got ", value));
  };
  if (tensor.datatype == "BOOL" && tensor.typed == nullptr) {
    for (const char byte : *tensor.raw) {
      AFT_RETURN_IF_ERROR(add(static_cast<unsigned char>(byte)));
    }
    return flags;
  }
  if (tensor.datatype == "BOOL") {
    for (const bool value : tensor.typed->bool_contents()) AFT_RETURN_IF_ERROR(add(value ? 1 : 0));
    return flags;
  }
  const absl::StatusOr<std::vector<int64_t>> values = ReadIntegers(tensor);
  if (!values.ok()) {
    return WrongDatatype(tensor,
                         or_numbers ? "BOOL, INT64, INT32 or FP32" : "INT64, INT32 or BOOL");
  }
  for (const int64_t value : *values) AFT_RETURN_IF_ERROR(add(value));
  return flags;
}

absl::StatusOr<std::vector<float>> ReadFloats(const InputTensor& tensor, int64_t first,
                                              int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  if (values.empty()) return values;
  if (tensor.datatype == "FP32") {
    const void* const data =
        tensor.typed != nullptr
            ? static_cast<const void*>(tensor.typed->fp32_contents().data() + first)
            : tensor.raw->data() + first * int64_t{sizeof(float)};
    std::memcpy(values.data(), data, values.size() * sizeof(float));
    for (float& value : values) {
      if (std::isnan(value)) value = std::numeric_limits<float>::quiet_NaN();
    }
    return values;
  }
  if (tensor.datatype != "BF16" || tensor.raw == nullptr)
    return WrongDatatype(tensor, "FP32 or BF16");
  const char* from = tensor.raw->data() + first * int64_t{sizeof(uint16_t)};
  for (float& value : values) {
    uint16_t high = 0;
    std::memcpy(&high, from, sizeof(high));
    from += sizeof(high);
    value = std::bit_cast<float>(uint32_t{high} << 16);
  }
  return values;
}

absl::StatusOr<std::vector<absl::string_view>> ReadStrings(const InputTensor& tensor) {
  if (tensor.datatype != "BYTES") return WrongDatatype(tensor, "BYTES");
  std::vector<absl::string_view> values;
  if (tensor.typed != nullptr) {
    for (const std::string& value : tensor.typed->bytes_contents()) values.push_back(value);
    return values;
  }
  absl::string_view left = *tensor.raw;
  while (left.size() >= kLengthBytes) {
    uint32_t length = 0;
    std::memcpy(&length, left.data(), kLengthBytes);
    left.remove_prefix(kLengthBytes);
    if (length > left.size()) {
      return BadField(tensor.name, absl::StrCat("element ", values.size(), " has ", length,
                                                " bytes, but only ", left.size(), " are left"));
    }
    values.push_back(left.substr(0, length));
    left.remove_prefix(length);
  }
  if (!left.empty() || static_cast<int64_t>(values.size()) != tensor.elements) {
    return BadField(tensor.name, absl::StrCat("shape ", ShowShape(tensor.shape), " asks for ",
                                              tensor.elements, " elements, got ", values.size(),
                                              " and ", left.size(), " more bytes"));
  }
  return values;
}

absl::StatusOr<bool> ReadBool(const InputTensor& tensor) {
  if (tensor.datatype != "BOOL") return WrongDatatype(tensor, "BOOL");
  AFT_RETURN_IF_ERROR(CheckOne(tensor));
  return tensor.typed != nullptr ? tensor.typed->bool_contents(0) : tensor.raw->front() != '\0';
}

absl::StatusOr<int64_t> ReadInteger(const InputTensor& tensor) {
  AFT_RETURN_IF_ERROR(CheckOne(tensor));
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> values, ReadIntegers(tensor));
  return values[0];
}

absl::StatusOr<uint64_t> ReadUnsigned(const InputTensor& tensor) {
  AFT_RETURN_IF_ERROR(CheckOne(tensor));
  if (tensor.datatype == "UINT64") return Elements(tensor, Typed(tensor).uint64_contents())[0];
  const absl::StatusOr<int64_t> value = ReadInteger(tensor);
  if (!value.ok()) return WrongDatatype(tensor, "UINT64, INT64 or INT32");
  if (*value < 0) return BadField(tensor.name, absl::StrCat("must not be below 0, got ", *value));
  return static_cast<uint64_t>(*value);
}

absl::StatusOr<float> ReadFloat(const InputTensor& tensor) {
  if (tensor.datatype != "FP32") return WrongDatatype(tensor, "FP32");
  AFT_RETURN_IF_ERROR(CheckOne(tensor));
  return Elements(tensor, Typed(tensor).fp32_contents())[0];
}

absl::StatusOr<absl::string_view> ReadString(const InputTensor& tensor) {
  if (tensor.datatype != "BYTES") return WrongDatatype(tensor, "BYTES");
  AFT_RETURN_IF_ERROR(CheckOne(tensor));
  AFT_ASSIGN_OR_RETURN(const std::vector<absl::string_view> values, ReadStrings(tensor));
  return values[0];
}

std::string ElementPath(const InputTensor& tensor, int64_t element) {
  std::string path;
  for (size_t i = tensor.shape.size(); i-- > 0;) {
    path = absl::StrCat("[", element % tensor.shape[i], "]", path);
    element /= tensor.shape[i];
  }
  return absl::StrCat(tensor.name, path);
}

std::string ShowShape(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

inference::ModelInferResponse::InferOutputTensor& OutputWriter::Add(
    absl::string_view name, const char* datatype, absl::Span<const int64_t> shape) {
  auto& output = *response_.add_outputs();
  output.mutable_name()->assign(name.data(), name.size());
  output.set_datatype(datatype);
  output.mutable_shape()->Add(shape.begin(), shape.end());
  return output;
}

void OutputWriter::AddStrings(absl::string_view name, absl::Span<const int64_t> shape,
                              absl::Span<const std::string> values) {
  auto& output = Add(name, "BYTES", shape);
  if (typed_) {
    for (const std::string& value : values) output.mutable_contents()->add_bytes_contents(value);
    return;
  }
  std::string& raw = *response_.add_raw_output_contents();
  for (const std::string& value : values) {
    const auto length = static_cast<uint32_t>(value.size());
    raw.append(AsBytes<uint32_t>({&length, 1}));
    raw.append(value);
  }
}

void OutputWriter::AddInt64(absl::string_view name, absl::Span<const int64_t> values) {
  auto& output = Add(name, "INT64", {static_cast<int64_t>(values.size())});
  if (typed_) {
    output.mutable_contents()->mutable_int64_contents()->Add(values.begin(), values.end());
  } else {
    *response_.add_raw_output_contents() = AsBytes<int64_t>(values);
  }
}

void OutputWriter::AddUint32(absl::string_view name, uint32_t value) {
  auto& output = Add(name, "UINT32", {1});
  if (typed_) {
    output.mutable_contents()->add_uint_contents(value);
  } else {
    *response_.add_raw_output_contents() = AsBytes<uint32_t>({&value, 1});
  }
}

void OutputWriter::AddFloats(absl::string_view name, absl::Span<const int64_t> shape,
                             absl::Span<const float> values) {
  auto& output = Add(name, "FP32", shape);
  if (typed_) {
    output.mutable_contents()->mutable_fp32_contents()->Add(values.begin(), values.end());
  } else {
    *response_.add_raw_output_contents() = AsBytes<float>(values);
  }
}

}  // namespace aft::server::oip
