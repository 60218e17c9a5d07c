#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "client/aftload/histogram.h"

namespace aft::client {

using Clock = std::chrono::steady_clock;

// Tokens and the time they took.
struct TokenTime {
  uint64_t tokens = 0;
  Clock::duration time{0};

  void Add(const TokenTime& other) {
    tokens += other.tokens;
    time += other.time;
  }
  double SecondsPerToken() const {
    return tokens == 0 ? 0
                       : std::chrono::duration<double>(time).count() / static_cast<double>(tokens);
  }
};

// What was measured of any number of streams.
struct LoadStats {
  uint64_t completed = 0;
  uint64_t cut = 0;                        // still running when the run ended
  std::map<std::string, uint64_t> errors;  // requests that failed for good, by status code
  uint64_t refused = 0;   // attempts that ended with UNAVAILABLE or RESOURCE_EXHAUSTED, unbegun
  uint64_t retried = 0;   // of those, the ones after which the request was sent again
  uint64_t tokens = 0;    // of all streams, cut ones as well
  Histogram first_token;  // from the scheduled time to the first token
  Histogram inter_token;  // gap between deltas / tokens of the delta, per token
  Histogram request;      // from the scheduled time to the end; completed ones
  // One value for each completed stream: its time per token after the first delta.
  Histogram stream_token;
  // Completed streams of the full length: the first and the last tenth of their tokens.
  TokenTime early;
  TokenTime late;

  void Merge(const LoadStats& other);
  uint64_t failed() const;  // the sum of errors
};

// Measures one stream. Not thread-safe.
class StreamRecorder {
 public:
  // `expected_tokens`: the length of a stream that nothing cuts short.
  StreamRecorder(uint64_t expected_tokens, Clock::time_point scheduled, LoadStats& stats);

  void OnTokens(uint64_t tokens, Clock::time_point now);
  void OnCompleted(Clock::time_point now);

 private:
  const uint64_t expected_;
  const uint64_t tenth_;
  const Clock::time_point scheduled_;
  LoadStats& stats_;

  uint64_t tokens_ = 0;
  uint64_t first_delta_tokens_ = 0;
  Clock::time_point first_;
  Clock::time_point last_;
  TokenTime early_;
  uint64_t late_from_ = 0;  // tokens when the last tenth began; 0: not yet
  Clock::time_point late_start_;
};

}  // namespace aft::client
