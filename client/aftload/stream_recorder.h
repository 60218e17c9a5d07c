#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/aftload/histogram.h"
#include "client/aftload/reference.h"
#include "client/aftload/schedule.h"
#include "client/aftload/workload.h"
#include "client/lib/call_options.h"

namespace aft::client {

// A number of tokens and the time they took.
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

// A request within these limits counts as good (LoadStats::good). Unset: no limit.
struct Limits {
  std::optional<double> ttft_ms = std::nullopt;
  std::optional<double> tpot_ms = std::nullopt;
  std::optional<double> e2el_ms = std::nullopt;

  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
};

// How the requests of one behaviour ended. Their sum is the number of requests that were scheduled
// in time.
struct Outcomes {
  uint64_t completed = 0;
  uint64_t cut = 0;                        // not done when the run ended
  uint64_t cancelled = 0;                  // by the client, as planned
  uint64_t expired = 0;                    // at the deadline of the request
  std::map<std::string, uint64_t> errors;  // failed finally, by status code

  void Merge(const Outcomes& other);
  uint64_t failed() const;  // the sum of errors
};

// A break of a stream that was resumed. The four durations add up to the time between the last
// token before the break and the first one after it.
struct Break {
  std::string request_id;
  uint64_t tokens = 0;               // received before the break; the server's resumed_tokens
  int tries = 1;                     // number of calls sent to resume it
  Clock::duration until_broken{0};   // from the last token until the client knew of the break
  Clock::duration until_sent{0};     // then, until the resuming call was sent
  Clock::duration until_started{0};  // then, until its server had a slot and said so
  Clock::duration until_token{0};    // then, until the next token: the text was read again

  Clock::duration whole() const { return until_broken + until_sent + until_started + until_token; }
};

// One second of a run.
struct Second {
  uint64_t output_tokens = 0;
  uint64_t completed = 0;
  uint64_t failed = 0;
};

// The measurements of any number of streams. Only normal requests count in the times. All requests
// count in the numbers of tokens and refusals, and in `seconds`.
struct LoadStats {
  explicit LoadStats(Clock::time_point run_start = {}) : start(run_start) {}

  Clock::time_point start;
  std::array<Outcomes, kBehaviours> outcomes;
  std::map<std::string, Outcomes> targets;  // the same outcomes, by address
  uint64_t good = 0;                        // normal requests that completed within all limits
  uint64_t refused = 0;        // attempts that ended before they began, and allow another one
  uint64_t retried = 0;        // refused attempts after which the request was sent again
  uint64_t tokens = 0;         // of cut streams too
  uint64_t messages = 0;       // messages with tokens
  uint64_t prompt_tokens = 0;  // of the streams that began
  Histogram ttft;              // from the scheduled time to the first token
  Histogram itl;               // between two messages with tokens, whatever their number of tokens
  Histogram e2el;              // from the scheduled time to the end, if completed
  Histogram tpot;              // of a completed stream: first to last token / (tokens - 1)
  Histogram send_lag;          // from the scheduled time to the first attempt
  Histogram refusal;           // from the start of an attempt until it was refused
  Histogram gap;               // the longest itl of a completed stream of two or more messages
  uint64_t resumes = 0;        // of all streams, whatever their outcome
  uint64_t resumed_streams = 0;  // streams that were resumed at least once
  uint64_t inexact_streams = 0;  // of these, resumed where numbers are computed differently
  uint64_t most_resumes = 0;     // the largest number in one stream
  std::vector<Break> breaks;     // of all streams, if a token followed
  Differences differences;
  // The first and the last tenth of the tokens of completed streams. Streams that were cut short do
  // not count.
  TokenTime early;
  TokenTime late;
  std::vector<Second> seconds;  // from `start` on

  Outcomes& normal() { return outcomes[0]; }
  const Outcomes& normal() const { return outcomes[0]; }
  Second& At(Clock::time_point time);
  void Merge(const LoadStats& other);  // of the same run only
};

// Measures one request. Not thread-safe. The stats are not thread-safe either.
class StreamRecorder {
 public:
  // `expected_tokens`: the length of a stream that is not cut short. `request_id`: recorded with
  // its breaks.
  StreamRecorder(uint64_t expected_tokens, Clock::time_point scheduled, Behaviour behaviour,
                 const Limits& limits, std::string target, std::string request_id = {})
      : expected_(expected_tokens),
        tenth_((expected_tokens + 9) / 10),
        scheduled_(scheduled),
        behaviour_(behaviour),
        limits_(limits),
        target_(std::move(target)),
        request_id_(std::move(request_id)) {}

  void OnSent(LoadStats& stats, Clock::time_point now);  // the first attempt
  void OnTokens(LoadStats& stats, uint64_t tokens, Clock::time_point now);
  // Corrects the number of tokens if messages did not tell it. The additional tokens are spread
  // evenly from the first message to the last.
  void OnUsage(LoadStats& stats, uint64_t tokens, Clock::time_point now);
  void OnResumed(LoadStats& stats, const Resumed& resumed, Clock::time_point now);

  // One of these ends the request.
  void OnCompleted(LoadStats& stats, Clock::time_point now);
  void OnFailed(LoadStats& stats, const std::string& code, Clock::time_point now);
  void OnOther(LoadStats& stats, uint64_t Outcomes::*outcome);

  uint64_t tokens() const { return tokens_; }

 private:
  bool measured() const { return behaviour_ == Behaviour::kNormal; }
  bool IsGood(double e2el_ms) const;
  double TpotMs() const;  // 0 if there is only one token

  const uint64_t expected_;
  const uint64_t tenth_;
  const Clock::time_point scheduled_;
  const Behaviour behaviour_;
  const Limits limits_;
  const std::string target_;
  const std::string request_id_;

  uint64_t tokens_ = 0;
  uint64_t messages_ = 0;   // with tokens
  bool corrected_ = false;  // then the time of each token is unknown
  uint64_t first_message_tokens_ = 0;
  Clock::time_point first_;
  Clock::time_point last_;
  Clock::duration longest_gap_{0};
  uint64_t resumes_ = 0;
  bool exact_ = true;
  std::optional<Break> break_;    // ends with the next token
  Clock::time_point resumed_at_;  // when the stream of break_ was resumed
  TokenTime early_;
  uint64_t late_from_ = 0;  // number of tokens when the last tenth began; 0: not yet
  Clock::time_point late_start_;
};

}  // namespace aft::client
