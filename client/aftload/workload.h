#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "client/aftload/distribution.h"

namespace aft::client {

// How the client of a request behaves. Latencies and goodput are only those of kNormal, because the
// other behaviours affect what their clients see.
enum class Behaviour { kNormal = 0, kCancels = 1, kSlow = 2, kDeadline = 3 };
inline constexpr size_t kBehaviours = 4;

struct Prompt {
  std::string text;
  std::optional<uint32_t> max_tokens;  // if the file has it
};

// Reads one prompt per line. A file named *.jsonl has one object per line, with "prompt" and
// perhaps "output_tokens". Empty lines are skipped. INVALID_ARGUMENT names the line.
absl::StatusOr<std::vector<Prompt>> ReadPrompts(const std::string& path);

struct WorkloadOptions {
  std::string model;
  Distribution max_tokens = Distribution::Always(64);    // the model's end of text is ignored
  std::vector<Prompt> prompts;                           // used in turn; empty: random words
  Distribution prompt_bytes = Distribution::Always(64);  // of random words
  // Random words begin with one of `prefixes` texts of this length, which all requests share.
  uint32_t prefix_bytes = 0;
  uint32_t prefixes = 1;
  // Shares of all requests, together at most 1.
  double cancel_share = 0;  // cancelled after 1 to max_tokens tokens, equally likely
  double slow_share = 0;    // `slow_pause` before each read
  double deadline_share = 0;
  std::chrono::milliseconds slow_pause{1000};
  std::chrono::milliseconds deadline{1000};  // from the scheduled time
  uint64_t seed = 1;                         // of prompts, lengths, behaviour and sampling
};

// A request as it is to be sent.
struct PlannedRequest {
  v1::GenerateRequest request;
  Behaviour behaviour = Behaviour::kNormal;
  uint32_t cancel_after = 0;  // in tokens; kCancels only
};

// The requests of a run. The same seed and index give the same request. Thread-safe.
class Workload {
 public:
  explicit Workload(const WorkloadOptions& options);

  PlannedRequest Make(uint64_t index) const;

 private:
  const WorkloadOptions options_;
  std::vector<std::string> prefixes_;
};

}  // namespace aft::client
