#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "client/aftload/schedule.h"
#include "client/aftload/stream_recorder.h"
#include "client/aftload/workload.h"
#include "client/lib/aft_client.h"

namespace aft::client {

struct LoadOptions {
  // The servers; requests go to them in turn. RunLoad itself decides how often a call is sent and
  // how gRPC backs off.
  std::vector<ClientOptions> targets;
  bool http = false;         // OpenAI's API, not gRPC; excludes `connections`, `resume`, `verify`
  uint32_t streams = 1;      // limit of requests at the same time
  uint32_t connections = 1;  // to each target, shared by the streams
  Arrivals arrivals;
  std::chrono::milliseconds drain{0};  // time after arrivals.duration for running requests
  uint64_t warmup = 0;                 // requests before the measurement, in a closed loop
  uint64_t first_index = 0;  // in the workload, of the first request; must be 0 with `verify`
  uint32_t attempts = 5;     // how often a refused request is sent, the first time included
  // Resume streams that break; count a break before the stream has begun as a refusal.
  bool resume = false;
  // The number of different requests. Each is answered once before the load, and all answers are
  // compared with these. 0: any number of requests, and no comparison.
  uint64_t verify = 0;
  WorkloadOptions workload;
  Limits limits;
};

struct LoadReport {
  LoadStats stats{};
  double seconds = 0;             // from the start to the last event
  double client_cpu_seconds = 0;  // of this process in that time
  uint32_t max_running = 0;       // largest number of requests at the same time
};

struct Progress {
  double seconds = 0;  // since the start
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t running = 0;
  uint64_t waiting = 0;  // scheduled, but `streams` requests are running
  uint64_t tokens = 0;
};

}  // namespace aft::client
