#ifndef AFT_MODEL_CONVERT_IMPORT_H_
#define AFT_MODEL_CONVERT_IMPORT_H_

#include <map>
#include <string>

#include "absl/status/status.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"

namespace aft {

// A checkpoint in the native format, not written yet.
struct Import {
  NetworkConfig config;
  TensorMap tensors;
  std::map<std::string, std::string> files;     // a tokenizer's: name -> content
  std::map<std::string, std::string> metadata;  // of the weights file: where they come from
};

// Writes a checkpoint folder: all of it or nothing, under a temporary name beside `dir` that is
// renamed at the end. ALREADY_EXISTS when `dir` is there and not an empty folder;
// INVALID_ARGUMENT or DATA_LOSS when config and tensors make no checkpoint (names key or tensor);
// else the file system's.
absl::Status WriteImport(const std::string& dir, const Import& import);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_IMPORT_H_
