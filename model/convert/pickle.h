#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace aft {

// A tensor of a state_dict. Its numbers are those of a storage, which is another record of the file
// that has the pickle. Sizes, strides and offset count numbers, not bytes.
struct PickledTensor {
  std::string dtype;  // as in a safetensors header: "F32"
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  int64_t offset = 0;  // from the begin of the storage
  int64_t span = 0;    // from the first number to the last one, both included
  std::string storage;
  int64_t storage_numbers = 0;
};

// Reads the pickle of a state_dict, as torch.save writes it: a dict of tensors, which is below
// `keys` in other dicts, the outermost first. A pickle is a program that can call any function of
// Python. This function runs nothing. It knows the instructions that make numbers, strings, lists,
// tuples, dicts and tensors, and refuses all others. Every tensor has numbers, which are all
// within its storage, and not more of them than that. The memory is proportional to the length of
// `pickle`.
//
// Errors: INVALID_ARGUMENT names the function, key or tensor that a state_dict cannot have;
// DATA_LOSS when the bytes are not a pickle.
absl::StatusOr<std::map<std::string, PickledTensor>> ReadStateDict(
    absl::string_view pickle, absl::Span<const std::string> keys);

}  // namespace aft
