#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "server/scheduling/service_class.h"
#include "server/scheduling/time.h"

namespace aft::server {

// How soon the text of a request that arrives now can have been read, from what was measured. Its
// engine's thread says how fast the queue moves and texts are read; any thread may ask.
class LoadEstimate {
 public:
  // Engine thread: a request of that class has left the queue at `now`; `waiting`: others of the
  // class wait.
  void ObserveTurn(ServiceClass service_class, bool waiting, TimePoint now) {
    Turns& turns = turns_[static_cast<size_t>(service_class)];
    if (turns.began) {
      const double seconds = Seconds(now - *turns.began);
      const double before = turns.seconds.load(std::memory_order_relaxed);
      turns.seconds.store(before == 0 ? seconds : before + kWeight * (seconds - before),
                          std::memory_order_relaxed);
    }
    turns.began = waiting ? std::optional(now) : std::nullopt;
  }

  // Engine thread: what a token of a text takes.
  void SetTokenSeconds(double seconds) { token_seconds_.store(seconds, std::memory_order_relaxed); }

  // Of a text of `tokens` with `ahead` others of its client in the queue that go before it. Zero
  // while nothing was measured. Counts on half of what was measured: a refusal must be right.
  Duration UntilRead(ServiceClass service_class, int32_t ahead, int64_t tokens) const {
    const double turn =
        turns_[static_cast<size_t>(service_class)].seconds.load(std::memory_order_relaxed);
    const double token = token_seconds_.load(std::memory_order_relaxed);
    const double seconds = kTrusted * (turn * ahead + token * static_cast<double>(tokens));
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }

 private:
  static constexpr double kWeight = 0.1;  // of the newest turn
  static constexpr double kTrusted = 0.5;

  struct Turns {
    std::optional<TimePoint> began;  // of the one under way, while requests wait
    std::atomic<double> seconds{0};  // between two requests that leave the queue
  };

  std::array<Turns, kServiceClasses> turns_;
  std::atomic<double> token_seconds_{0};
};

}  // namespace aft::server
