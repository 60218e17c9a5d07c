#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "inference/grpc_service.pb.h"

// Tensors in the forms of the Open Inference Protocol: raw bytes or typed lists. Pure functions.
namespace aft::server::oip {

// One input. Its shape and datatype fit its data. Borrows from the message.
struct InputTensor {
  absl::string_view name;
  absl::string_view datatype;
  std::vector<int64_t> shape{};  // no dimension below 0
  int64_t elements = 0;          // their product
  // Exactly one of these two is set.
  const std::string* raw = nullptr;
  const inference::InferTensorContents* typed = nullptr;
};

// Reads the inputs of a request, in its order. Each name may occur only once. Sizes are checked
// before memory in proportion to a shape is allocated. INVALID_ARGUMENT begins with the tensor's
// name.
absl::StatusOr<std::vector<InputTensor>> ReadInputs(const inference::ModelInferRequest& message);

// Read the elements of a tensor of any shape. INVALID_ARGUMENT, with the tensor's name, if the
// function does not accept its datatype.
absl::StatusOr<std::vector<int64_t>> ReadIntegers(const InputTensor& tensor);  // INT32, INT64
// BOOL, INT32 or INT64, each 0 or 1. `or_numbers` only changes the list of allowed datatypes in an
// error.
absl::StatusOr<std::vector<uint8_t>> ReadFlags(const InputTensor& tensor, bool or_numbers);
// Elements [first, first + count) as fp32, from FP32 or BF16. Every NaN of FP32 becomes the same
// quiet one, because a kernel's exponential of another NaN may be finite. REQUIRES: the tensor has
// them.
absl::StatusOr<std::vector<float>> ReadFloats(const InputTensor& tensor, int64_t first,
                                              int64_t count);
absl::StatusOr<std::vector<absl::string_view>> ReadStrings(const InputTensor& tensor);  // BYTES

// Read the only element of a tensor.
absl::StatusOr<bool> ReadBool(const InputTensor& tensor);
absl::StatusOr<int64_t> ReadInteger(const InputTensor& tensor);
absl::StatusOr<uint64_t> ReadUnsigned(const InputTensor& tensor);  // UINT64, or not below 0
absl::StatusOr<float> ReadFloat(const InputTensor& tensor);        // FP32
absl::StatusOr<absl::string_view> ReadString(const InputTensor& tensor);

// Returns the path of an element, such as "attention_mask[2][0]". `element`: its index in row-major
// order. REQUIRES: the tensor has it.
std::string ElementPath(const InputTensor& tensor, int64_t element);

// Formats a shape, such as "[2, 3]".
std::string ShowShape(absl::Span<const int64_t> shape);

// Adds outputs to a response, as raw bytes or as typed lists.
class OutputWriter {
 public:
  // `response` must outlive the writer.
  OutputWriter(inference::ModelInferResponse& response, bool typed)
      : response_(response), typed_(typed) {}

  void AddInt64(absl::string_view name, absl::Span<const int64_t> values);
  void AddUint32(absl::string_view name, uint32_t value);
  // REQUIRES: `values` has as many elements as the shape.
  void AddFloats(absl::string_view name, absl::Span<const int64_t> shape,
                 absl::Span<const float> values);
  // REQUIRES: as for AddFloats.
  void AddStrings(absl::string_view name, absl::Span<const int64_t> shape,
                  absl::Span<const std::string> values);

 private:
  inference::ModelInferResponse::InferOutputTensor& Add(absl::string_view name,
                                                        const char* datatype,
                                                        absl::Span<const int64_t> shape);

  inference::ModelInferResponse& response_;
  const bool typed_;
};

}  // namespace aft::server::oip
