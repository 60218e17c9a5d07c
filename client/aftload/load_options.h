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
  // Requests go to all of them in turn. How often a call is sent, and gRPC's back-off, are
  // RunLoad's decision.
  std::vector<ClientOptions> targets;
  bool http = false;         // OpenAI's API instead of gRPC: no `connections`, `resume`, `verify`
  uint32_t streams = 1;      // most requests at once
  uint32_t connections = 1;  // to each target, shared by the streams
  Arrivals arrivals;
  std::chrono::milliseconds drain{0};  // after arrivals.duration, for what still runs
  uint64_t warmup = 0;                 // requests before the measurement, in a closed loop
  uint32_t attempts = 5;  // how often a refused request is sent, the first time included
  // Streams that break go on, and what breaks before it has begun counts as refused.
  bool resume = false;
  // So many different requests, each answered once before the load: all are among them and are
  // compared. 0: any number, and none is.
  uint64_t verify = 0;
  WorkloadOptions workload;
  Limits limits;
};

struct LoadReport {
  LoadStats stats{};
  double seconds = 0;             // from the start to the last event
  double client_cpu_seconds = 0;  // of this process in that time
  uint32_t max_running = 0;       // most requests at once
};

struct Progress {
  double seconds = 0;  // since the start
  uint64_t completed = 0;
  uint64_t failed = 0;
  uint64_t running = 0;
  uint64_t waiting = 0;  // scheduled, but as many run as may
  uint64_t tokens = 0;
};

}  // namespace aft::client
