#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

// The JSON header of a .safetensors file, parsed and checked without touching the data. No torch.
// Format: https://github.com/huggingface/safetensors (README, "Format").
namespace aft {

// The longest header that is accepted. The reference implementation has the same limit.
inline constexpr int64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// Where one tensor lies in the data section. After ParseSafetensorsHeader: dtype is a known name,
// every dimension is >= 0, and end - begin is the product of the shape times the element's size.
struct TensorEntry {
  std::string dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0;  // bytes from the start of the data section
  int64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;  // "__metadata__"
};

// Bytes of one element of `dtype` ("F32"), or 0 when the name is not known.
int64_t SafetensorsDtypeBytes(absl::string_view dtype);

// `name` as error messages show it: escaped, and shortened when it is long.
std::string ShownTensorName(absl::string_view name);

// Parses the header of a file whose data section has `data_bytes` bytes. Stricter than the
// reference implementation in one point: unknown keys within a tensor's entry are refused. Errors:
// DATA_LOSS naming the tensor and the reason (not the file, which the caller knows).
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view json,
                                                         int64_t data_bytes);

}  // namespace aft
