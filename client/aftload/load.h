#ifndef AFT_CLIENT_AFTLOAD_LOAD_H_
#define AFT_CLIENT_AFTLOAD_LOAD_H_

#include <chrono>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/aftload/stream_recorder.h"
#include "client/lib/address.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

struct LoadOptions {
  std::string address = kDefaultAddress;
  std::string model;
  uint32_t streams = 1;      // most requests at once; one thread each
  uint32_t connections = 1;  // shared by the streams
  double rate = 0;           // requests a second of an open loop; 0: closed loop
  uint64_t requests = 64;
  std::chrono::milliseconds duration{60'000};
  uint64_t warmup = 0;       // requests before the measurement, in a closed loop
  uint32_t max_tokens = 64;  // of each request; the model's end of text is ignored
  std::string prompt;        // empty: `prompt_bytes` of random words, different for each request
  uint32_t prompt_bytes = 64;
  uint64_t seed = 1;  // of prompts, arrivals and sampling
};

struct LoadReport {
  LoadStats stats;
  double seconds = 0;             // from the first request to the last event
  double client_cpu_seconds = 0;  // of this process in that time
};

// Runs the load; ends by itself after the requests or the duration, whichever is first, and cuts
// the streams that still run then. `cancel` ends it early; what was measured so far is returned.
// Errors only when the server does not answer before the load begins; failed requests are counted.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options, CancelToken& cancel);

}  // namespace aft::client

#endif  // AFT_CLIENT_AFTLOAD_LOAD_H_
