#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "base/mutex.h"

namespace aft::server {

// Writes text to a file descriptor on a thread of its own, so that threads that log never wait for
// the reader of a pipe or for a disk. The text that has not been written yet is bounded. Text
// beyond that, and text that the descriptor refuses, is dropped and counted. When the descriptor
// takes only a part of a line (a disk that becomes full), that line counts as dropped, and a line
// break follows the part, so that the next line is whole.
//
// Thread-safety: all methods may be called from any thread.
class LineWriter {
 public:
  // At most `max_bytes` may wait, and as many may be in a write. `report` makes the line that
  // reports a number of dropped lines; it is written as soon as there is room.
  LineWriter(int fd, size_t max_bytes, std::function<std::string(uint64_t)> report);
  ~LineWriter();  // waits until the descriptor has taken everything

  // `text`: one line or several, each with its line break. It is dropped as a whole, or not at all.
  void Add(absl::string_view text);
  // Counts a line that could not be made.
  void Drop();

  // Returns true when no text waits or is being written; false if `at_most` passes before.
  bool Flush(std::chrono::milliseconds at_most);

  // The number of lines since the start.
  uint64_t dropped() const;

 private:
  void Run();
  // Returns the rest that could not be written.
  absl::string_view Write(absl::string_view text);

  const int fd_;
  const size_t max_bytes_;
  const std::function<std::string(uint64_t)> report_;
  bool cut_ = false;  // only the thread uses it: a line was written only in part, without its end

  mutable Mutex mutex_;
  CondVar added_;
  CondVar written_;
  std::string waiting_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t unreported_ ABSL_GUARDED_BY(mutex_) = 0;  // of dropped_

  std::thread thread_;  // last
};

}  // namespace aft::server
