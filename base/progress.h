#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

namespace aft {

// Shows how much of a long task is done, in percent, at most once every `period`. A task that takes
// less than one period shows nothing. Thread-compatible.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;
  // Called with a percentage, and with nullopt when a task that has shown one ends.
  using Show = std::function<void(std::optional<int> percent)>;

  Progress(Clock::duration period, Show show, std::function<Clock::time_point()> now = Clock::now)
      : period_(period), show_(std::move(show)), now_(std::move(now)) {}

  // Begins a task of `total` units, which ends the task before it.
  void Begin(int64_t total) {
    End();
    done_ = 0;
    total_ = total;
    next_ = now_() + period_;
  }

  // Reports that `amount` more units of the task are done. More than `total` in all shows 100.
  void Add(int64_t amount) {
    done_ += amount;
    if (total_ <= 0 || now_() < next_) return;
    next_ = now_() + period_;
    shown_ = true;
    const double fraction = static_cast<double>(done_) / static_cast<double>(total_);
    show_(fraction < 1 ? static_cast<int>(100 * fraction) : 100);
  }

  // Ends the task. To be called before something else is printed.
  void End() {
    if (shown_) show_(std::nullopt);
    shown_ = false;
    total_ = 0;
  }

 private:
  const Clock::duration period_;
  const Show show_;
  const std::function<Clock::time_point()> now_;
  int64_t done_ = 0;
  int64_t total_ = 0;  // 0 between tasks
  bool shown_ = false;
  Clock::time_point next_;
};

// Shows percentages on standard error, after the name of the program: on a terminal in one line,
// which is rewritten every second and removed at the end, and otherwise in a line every 5 seconds.
Progress ProgressOnStandardError(const char* program);

}  // namespace aft
