#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "nlohmann/json.hpp"

namespace aft::server {

// Turns the whole numbers in `value` that are written as 2.0 or 2e0 into integers.
void MakeIntegers(nlohmann::json& value);

// Collects the options of a generation, which have the names of vLLM's sampling parameters. A
// request can give them in three places: in the JSON text of the tensor `sampling_parameters`, as
// parameters of the request, and as tensors of their own. Errors begin with the place and the name.
// Thread-compatible.
class GenerationOptions {
 public:
  // `lax`: whether numbers and flags may be strings, as genai-perf writes them. `others`: the other
  // names of the request, separated by spaces. Errors suggest these names too.
  explicit GenerationOptions(bool lax = true, const char* others = "")
      : lax_(lax), others_(others) {}

  // `place`: the prefix of the name in errors; "" for a tensor. INVALID_ARGUMENT if there is no
  // option of that name, if its value has another type, or if the option was given already.
  absl::Status Set(absl::string_view place, absl::string_view name, const nlohmann::json& value);

  // Sets all options of a JSON object.
  absl::Status SetAll(absl::string_view place, absl::string_view json);

  // The options that were set; GenerateCodec checks them.
  v1::GenerateRequest& message() { return message_; }

  // Rewrites an error about a field of message(): it then names the option and its place.
  absl::Status Rename(const absl::Status& error) const;

  bool empty() const { return places_.empty(); }

 private:
  bool lax_;
  const char* others_;
  v1::GenerateRequest message_;
  std::map<std::string, std::string, std::less<>> places_;  // the place of each option that is set
};

}  // namespace aft::server
