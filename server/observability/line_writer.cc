#include "server/observability/line_writer.h"

#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "base/catching.h"

namespace aft::server {
namespace {

uint64_t CountLines(absl::string_view text) {
  return static_cast<uint64_t>(std::count(text.begin(), text.end(), '\n'));
}

// The size of the part of `text` that goes into one write: whole lines that a pipe accepts at once,
// so that lines of other programs do not come into the middle of ours.
size_t ChunkSize(absl::string_view text) {
  if (text.size() <= PIPE_BUF) return text.size();
  const size_t end = text.rfind('\n', PIPE_BUF - 1);
  return end == text.npos ? PIPE_BUF : end + 1;
}

}  // namespace

LineWriter::LineWriter(int fd, size_t max_bytes, std::function<std::string(uint64_t)> report)
    : fd_(fd), max_bytes_(max_bytes), report_(std::move(report)), thread_([this] { Run(); }) {}

LineWriter::~LineWriter() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    added_.NotifyOne();
  }
  thread_.join();
}

void LineWriter::Add(absl::string_view text) {
  MutexLock lock(mutex_);
  if (text.size() > max_bytes_ - waiting_.size()) {
    dropped_ += CountLines(text);
    unreported_ += CountLines(text);
    return;
  }
  waiting_.append(text.data(), text.size());
  added_.NotifyOne();
}

void LineWriter::Drop() {
  MutexLock lock(mutex_);
  ++dropped_;
  ++unreported_;
}

bool LineWriter::Flush(std::chrono::milliseconds at_most) {
  const auto deadline = std::chrono::steady_clock::now() + at_most;
  MutexLock lock(mutex_);
  while (writing_ || !waiting_.empty()) {
    if (!written_.WaitUntil(mutex_, deadline)) return false;
  }
  return true;
}

uint64_t LineWriter::dropped() const {
  MutexLock lock(mutex_);
  return dropped_;
}

void LineWriter::Run() {
  pthread_setname_np(pthread_self(), "aft-log");
  std::string text;
  while (true) {
    uint64_t reported = 0;
    {
      MutexLock lock(mutex_);
      writing_ = false;
      written_.NotifyAll();
      while (waiting_.empty() && !stop_) added_.Wait(mutex_);
      if (waiting_.empty()) return;
      writing_ = true;
      text.clear();
      text.swap(waiting_);
      reported = std::exchange(unreported_, 0);
    }
    const absl::Status report = Catching([&] {
      if (reported > 0) text += report_(reported);
      return absl::OkStatus();
    });
    const absl::string_view lost = Write(text);
    if (lost.empty() && report.ok()) continue;
    const uint64_t lines = CountLines(lost) - (reported > 0 && report.ok() ? 1 : 0);
    MutexLock lock(mutex_);
    dropped_ += lines;
    unreported_ += reported + lines;  // reported after the next line
  }
}

absl::string_view LineWriter::Write(absl::string_view text) {
  const char* const begin = text.data();
  while (!text.empty()) {
    const absl::string_view next = cut_ ? "\n" : text.substr(0, ChunkSize(text));
    const ssize_t size = write(fd_, next.data(), next.size());
    if (size >= 0) {
      if (!std::exchange(cut_, false)) text.remove_prefix(static_cast<size_t>(size));
    } else if (errno == EAGAIN) {
      pollfd writable = {fd_, POLLOUT, 0};
      poll(&writable, 1, -1);
    } else if (errno != EINTR) {
      if (text.data() != begin && text.data()[-1] != '\n') cut_ = true;
      break;
    }
  }
  return text;
}

}  // namespace aft::server
