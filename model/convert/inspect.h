#ifndef AFT_MODEL_CONVERT_INSPECT_H_
#define AFT_MODEL_CONVERT_INSPECT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "model/config/config.h"

namespace aft {

// What a checkpoint's files say about it.
struct Inspection {
  NetworkConfig config;
  int64_t parameters = 0;
  int64_t weight_bytes = 0;  // as stored, in fp32
  // Memory of one live sequence; 0 for encoders and bidirectional mixers, which keep none.
  int64_t state_bytes = 0;
  // Of that, what each token of context fills; 0: the state does not grow.
  int64_t state_bytes_per_token = 0;
  int32_t tokenizer_size = 0;  // tokens; 0: no tokenizer
  int32_t eos_id = -1;         // -1: none
};

// Reads and checks a whole checkpoint: config, every tensor, tokenizer files. Errors name file, key
// or tensor: NOT_FOUND, INVALID_ARGUMENT, DATA_LOSS, RESOURCE_EXHAUSTED.
absl::StatusOr<Inspection> Inspect(const std::string& dir);

// Lines of "name  value", and one JSON object; both end with a newline.
std::string InspectionText(const Inspection& inspection);
std::string InspectionJson(const Inspection& inspection);

}  // namespace aft

#endif  // AFT_MODEL_CONVERT_INSPECT_H_
