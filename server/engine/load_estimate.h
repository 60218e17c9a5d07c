#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>

#include "server/scheduling/service_class.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Estimates when the text of a request that arrives now will have been read. The engine's thread
// reports how fast the queue moves and how fast texts are read; any thread may ask. A measurement
// loses half of its weight every kHalfLife, because one that causes refusals also prevents the
// requests that would correct it.
class LoadEstimate {
 public:
  // Engine thread: a request of that class has left the queue at `now`. `waiting`: other requests
  // of the class still wait.
  void ObserveTurn(ServiceClass service_class, bool waiting, TimePoint now) {
    Turns& turns = turns_[static_cast<size_t>(service_class)];
    if (turns.began) {
      const double seconds = Seconds(now - *turns.began);
      const double before = turns.measured.seconds.load(std::memory_order_relaxed);
      const double clipped = std::min(seconds, kOutlier * before);
      turns.measured.Set(before == 0 ? seconds : before + kWeight * (clipped - before), now);
    }
    turns.began = waiting ? std::optional(now) : std::nullopt;
  }

  // Engine thread: the time for one token of a text, as measured by a step that ended at `now`.
  void SetTokenSeconds(double seconds, TimePoint now) { token_.Set(seconds, now); }

  // The time until a text of `tokens` has been read, if `ahead` other requests of its client go
  // before it in the queue. Zero while nothing was measured. Only half of the measured time counts,
  // because a refusal should be right even if the measurement is not.
  Duration UntilRead(ServiceClass service_class, int32_t ahead, int64_t tokens,
                     TimePoint now) const {
    const double turn = turns_[static_cast<size_t>(service_class)].measured.Get(now);
    const double token = token_.Get(now);
    const double seconds = kTrusted * (turn * ahead + token * static_cast<double>(tokens));
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
  }

 private:
  static constexpr double kWeight = 0.1;  // of the newest turn
  static constexpr double kOutlier = 8;   // measured turns that one turn may count as
  static constexpr double kTrusted = 0.5;
  static constexpr Duration kHalfLife = std::chrono::seconds(10);

  // The engine's thread writes it. A reader may see the time of another value; this is harmless.
  struct Measured {
    void Set(double value, TimePoint now) {
      seconds.store(value, std::memory_order_relaxed);
      at.store(now, std::memory_order_relaxed);
    }
    double Get(TimePoint now) const {
      const Duration age = std::max(now - at.load(std::memory_order_relaxed), Duration(0));
      return seconds.load(std::memory_order_relaxed) *
             std::exp2(-Seconds(age) / Seconds(kHalfLife));
    }

    std::atomic<double> seconds{0};
    std::atomic<TimePoint> at{TimePoint()};
  };

  struct Turns {
    std::optional<TimePoint> began;  // when the current turn began; set while requests wait
    Measured measured;               // time between two requests that leave the queue
  };

  std::array<Turns, kServiceClasses> turns_;
  Measured token_;
};

}  // namespace aft::server
