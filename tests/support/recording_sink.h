#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/check.h"
#include "base/mutex.h"
#include "server/engine/request.h"

namespace aft::server {

// Makes an outcome whose status shares nothing with other copies. Copies of an absl::Status share a
// reference-counted string, and Debian's libabsl drops references in code that ThreadSanitizer does
// not see. It would report a false race when two threads own copies.
inline Outcome Unshared(Outcome outcome) {
  const absl::Status shared = outcome.status;
  outcome.status = absl::Status(shared.code(), shared.message());
  return outcome;
}

// Keeps everything that an engine sends to one request. Thread-safe.
template <typename Part>
class PartRecorder : public Sink<Part> {
 public:
  // Accepts `accept` parts, then refuses further ones like a reader that is too slow.
  explicit PartRecorder(size_t accept = static_cast<size_t>(-1)) : accept_(accept) {}

  void OnStarted() override {
    MutexLock lock(mutex_);
    AFT_CHECK(!started_ && ends_ == 0);
    started_ = true;
  }

  absl::Status OnPart(Part part) override {
    MutexLock lock(mutex_);
    AFT_CHECK(ends_ == 0);
    AFT_CHECK(started_);
    if (parts_.size() == accept_) return absl::ResourceExhaustedError("slow client");
    parts_.push_back(std::move(part));
    changed_.NotifyAll();
    return absl::OkStatus();
  }

  void OnFinished(const Outcome& outcome) override {
    MutexLock lock(mutex_);
    ++ends_;
    AFT_CHECK(ends_ == 1 && (started_ || !outcome.status.ok()));
    outcome_ = Unshared(outcome);
    changed_.NotifyAll();
  }

  // Blocks until the request has ended.
  Outcome Wait() {
    MutexLock lock(mutex_);
    while (ends_ == 0) changed_.Wait(mutex_);
    return Unshared(outcome_);
  }

  // Blocks until `count` parts have come. REQUIRES: the request does not end before that.
  void WaitForParts(size_t count) {
    MutexLock lock(mutex_);
    while (parts_.size() < count) {
      AFT_CHECK(ends_ == 0);
      changed_.Wait(mutex_);
    }
  }

  bool finished() const {
    MutexLock lock(mutex_);
    return ends_ > 0;
  }
  std::vector<Part> parts() const {
    MutexLock lock(mutex_);
    return parts_;
  }

 private:
  const size_t accept_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<Part> parts_ ABSL_GUARDED_BY(mutex_);
  Outcome outcome_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  int ends_ ABSL_GUARDED_BY(mutex_) = 0;
};

// The sink of a generation or a scoring.
class RecordingSink final : public PartRecorder<TokenDelta> {
 public:
  using PartRecorder::PartRecorder;

  // Returns the tokens of the output, or of the text that is scored.
  std::vector<TokenId> tokens() const {
    std::vector<TokenId> ids;
    for (const TokenDelta& delta : parts()) {
      if (delta.of_prompt) continue;
      AFT_CHECK(delta.first_index == ids.size());  // no gap, nothing twice
      for (const SampledToken& token : delta.tokens) ids.push_back(token.id);
    }
    return ids;
  }
  // Returns the tokens of all parts, with the scores of the prompt if they were asked for.
  std::vector<SampledToken> all_tokens() const {
    std::vector<SampledToken> all;
    for (const TokenDelta& delta : parts()) {
      all.insert(all.end(), delta.tokens.begin(), delta.tokens.end());
    }
    return all;
  }
  std::string text() const {
    std::string text;
    for (const TokenDelta& delta : parts()) text += delta.text;
    return text;
  }
};

// The sink of a text to encode.
class RecordingVectorSink final : public PartRecorder<std::vector<float>> {
 public:
  std::vector<float> vectors() const {
    const auto all = parts();
    AFT_CHECK(all.size() <= 1);
    return all.empty() ? std::vector<float>() : all.front();
  }
};

}  // namespace aft::server
