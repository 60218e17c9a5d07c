#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <random>

namespace aft::client {

using Clock = std::chrono::steady_clock;

struct Arrivals {
  double rate = 0;        // requests a second of an open loop; 0: closed loop
  double burstiness = 1;  // of an open loop: 1 Poisson, below 1 bursts, above 1 more even
  uint64_t requests = 64;
  std::chrono::milliseconds duration{60'000};
  uint64_t seed = 1;
};

// When requests are sent. A closed loop sends as soon as a stream is free. An open loop sends at
// the times of a renewal process with gamma-distributed gaps (shape `burstiness`, mean 1 / rate;
// the gaps' coefficient of variation is 1 / sqrt(burstiness)). It does so whether or not a stream
// is free, so a slow server cannot slow its own load. Thread-compatible.
class Schedule {
 public:
  // No request is scheduled at start + duration or later.
  Schedule(const Arrivals& arrivals, Clock::time_point start);

  struct Slot {
    uint64_t index = 0;      // from 0
    Clock::time_point time;  // may be past in an open loop; latencies count from here
  };
  // Returns the next request, or nullopt once a bound is reached. `now` is for a closed loop.
  std::optional<Slot> Next(Clock::time_point now);

 private:
  const Arrivals arrivals_;
  const Clock::time_point start_;
  std::mt19937_64 random_;
  std::gamma_distribution<double> gap_seconds_;
  std::chrono::duration<double> offset_{0};
  uint64_t next_index_ = 0;
};

}  // namespace aft::client
