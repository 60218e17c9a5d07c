#ifndef AFT_TESTS_SUPPORT_RECORDING_SINK_H_
#define AFT_TESTS_SUPPORT_RECORDING_SINK_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "base/mutex.h"
#include "server/engine/encode_engine.h"
#include "server/engine/engine.h"

namespace aft::server {

// Copies of an absl::Status share a reference-counted string, and Debian's libabsl drops references
// in code that ThreadSanitizer does not see: a false race when two threads own copies.
inline Outcome Unshared(Outcome outcome) {
  const absl::Status shared = outcome.status;
  outcome.status = absl::Status(shared.code(), shared.message());
  return outcome;
}

// Keeps everything that an engine sends to one request. Thread-safe.
class RecordingSink final : public ResponseSink {
 public:
  // Refuses deltas, like a reader that is too slow, once `accept` of them have come.
  explicit RecordingSink(size_t accept = static_cast<size_t>(-1)) : accept_(accept) {}

  bool OnDelta(TokenDelta delta) override {
    MutexLock lock(mutex_);
    AFT_CHECK(ends_ == 0);
    if (deltas_.size() == accept_) return false;
    deltas_.push_back(std::move(delta));
    changed_.NotifyAll();
    return true;
  }

  void OnFinished(const Outcome& outcome) override {
    MutexLock lock(mutex_);
    ++ends_;
    AFT_CHECK(ends_ == 1);
    outcome_ = Unshared(outcome);
    changed_.NotifyAll();
  }

  // Blocks until the request has ended.
  Outcome Wait() {
    MutexLock lock(mutex_);
    while (ends_ == 0) changed_.Wait(mutex_);
    return Unshared(outcome_);
  }

  // Blocks until `count` deltas have come. REQUIRES: the request does not end before that.
  void WaitForDeltas(size_t count) {
    MutexLock lock(mutex_);
    while (deltas_.size() < count) {
      AFT_CHECK(ends_ == 0);
      changed_.Wait(mutex_);
    }
  }

  bool finished() const {
    MutexLock lock(mutex_);
    return ends_ > 0;
  }
  std::vector<TokenDelta> deltas() const {
    MutexLock lock(mutex_);
    return deltas_;
  }
  std::vector<TokenId> tokens() const {
    std::vector<TokenId> ids;
    for (const TokenDelta& delta : deltas()) {
      AFT_CHECK(delta.first_index == ids.size());  // no gap, nothing twice
      for (const SampledToken& token : delta.tokens) ids.push_back(token.id);
    }
    return ids;
  }
  std::string text() const {
    std::string text;
    for (const TokenDelta& delta : deltas()) text += delta.text;
    return text;
  }

 private:
  const size_t accept_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<TokenDelta> deltas_ ABSL_GUARDED_BY(mutex_);
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  int ends_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The same for a request to encode.
class RecordingVectorSink final : public VectorSink {
 public:
  void OnVectors(std::vector<float> vectors) override {
    MutexLock lock(mutex_);
    AFT_CHECK(ends_ == 0 && vectors_.empty());
    vectors_ = std::move(vectors);
  }

  void OnFinished(const Outcome& outcome) override {
    MutexLock lock(mutex_);
    ++ends_;
    AFT_CHECK(ends_ == 1);
    outcome_ = Unshared(outcome);
    changed_.NotifyAll();
  }

  // Blocks until the request has ended.
  Outcome Wait() {
    MutexLock lock(mutex_);
    while (ends_ == 0) changed_.Wait(mutex_);
    return Unshared(outcome_);
  }

  bool finished() const {
    MutexLock lock(mutex_);
    return ends_ > 0;
  }
  std::vector<float> vectors() const {
    MutexLock lock(mutex_);
    return vectors_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<float> vectors_ ABSL_GUARDED_BY(mutex_);
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  int ends_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server

#endif  // AFT_TESTS_SUPPORT_RECORDING_SINK_H_
