#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace aft::server {

// Collects how a text is to be generated, by the names of vLLM's sampling parameters, from wherever
// a request says it: the JSON text of the tensor `sampling_parameters`, parameters of the request,
// and tensors of their own. Errors begin with the place and the name. Thread-compatible.
class GenerationOptions {
 public:
  // `place`: "" of a tensor, else what stands in front of the name in errors. INVALID_ARGUMENT:
  // there is no option of that name, its value is of another type, or it was given already.
  absl::Status Set(absl::string_view place, absl::string_view name, const nlohmann::json& value);

  // All of a JSON object. Its numbers may be strings, as genai-perf writes them.
  absl::Status SetAll(absl::string_view place, absl::string_view json);

  // What was set, to be checked by GenerateCodec.
  v1::GenerateRequest& message() { return message_; }

  // The same error, in terms of the option and where it came from, of one in terms of message().
  absl::Status Rename(const absl::Status& error) const;

  bool empty() const { return places_.empty(); }

 private:
  v1::GenerateRequest message_;
  std::map<std::string, std::string, std::less<>> places_;  // of options that are set
};

}  // namespace aft::server
