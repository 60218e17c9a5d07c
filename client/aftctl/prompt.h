#ifndef AFT_CLIENT_AFTCTL_PROMPT_H_
#define AFT_CLIENT_AFTCTL_PROMPT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"

namespace aft::client {

// All of standard input, byte for byte. RESOURCE_EXHAUSTED beyond 64 MiB.
absl::StatusOr<std::string> ReadStdin();

// Sets the prompt: as text when it is valid UTF-8, else as raw bytes.
void SetPrompt(std::string prompt, v1::GenerateRequest& request);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTCTL_PROMPT_H_
