#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "client/aftload/stream_recorder.h"
#include "client/lib/aft_client.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

struct LoadOptions {
  ClientOptions client;  // how often a call is sent, and gRPC's back-off, are RunLoad's decision
  std::string model;
  uint32_t streams = 1;      // most requests at once; one thread each
  uint32_t connections = 1;  // shared by the streams
  double rate = 0;           // requests a second of an open loop; 0: closed loop
  uint64_t requests = 64;
  std::chrono::milliseconds duration{60'000};
  uint64_t warmup = 0;       // requests before the measurement, in a closed loop
  uint32_t attempts = 5;     // how often a refused request is sent, the first time included
  uint32_t max_tokens = 64;  // of each request; the model's end of text is ignored
  std::string prompt;        // empty: `prompt_bytes` of random words, different for each request
  uint32_t prompt_bytes = 64;
  uint64_t seed = 1;  // of prompts, arrivals and sampling
};

// When requests are sent. A closed loop sends as soon as a stream is free; an open loop at the
// times of a Poisson process, whether a stream is free or not, so that a slow server cannot slow
// its own load. Thread-safe.
class Schedule {
 public:
  // Of options: rate, requests, duration and seed. No request is scheduled at start + duration or
  // later.
  Schedule(const LoadOptions& options, Clock::time_point start);

  struct Slot {
    uint64_t index = 0;      // from 0
    Clock::time_point time;  // in an open loop perhaps past: latencies count from here
  };
  // The next request; nothing once a bound is reached.
  std::optional<Slot> Next();

 private:
  const double rate_;
  const uint64_t max_requests_;
  const Clock::time_point start_;
  const Clock::time_point end_;
  Mutex mutex_;
  uint64_t next_index_ ABSL_GUARDED_BY(mutex_) = 0;
  std::chrono::duration<double> next_offset_ ABSL_GUARDED_BY(mutex_){0};
  std::mt19937_64 random_ ABSL_GUARDED_BY(mutex_);
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

// A table for people.
std::string TextReport(const LoadOptions& options, const LoadReport& report);

// One JSON object on one line: options and figures, times in milliseconds.
std::string JsonReport(const LoadOptions& options, const LoadReport& report);

}  // namespace aft::client
