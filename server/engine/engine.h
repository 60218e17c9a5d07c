#ifndef AFT_SERVER_ENGINE_ENGINE_H_
#define AFT_SERVER_ENGINE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/observability/metrics.h"
#include "server/scheduling/request.h"

namespace aft::server {

// Learns how one request ended. Calls of sinks come from the engine thread and must not block,
// throw or call back into the engine's Shutdown.
class FinishSink {
 public:
  virtual ~FinishSink() = default;

  // Exactly once, last, for every request that Submit accepted.
  virtual void OnFinished(const Outcome& outcome) = 0;
};

// Where the tokens of one generation or scoring go.
class ResponseSink : public FinishSink {
 public:
  // Tokens of one step. False: the reader is too slow or gone; the request ends with
  // RESOURCE_EXHAUSTED at once.
  virtual bool OnDelta(TokenDelta delta) = 0;
};

// What every engine offers beside its Submit, whose contract is the same in all: it accepts a
// request, which gets exactly one OnFinished then, or refuses it without side effects:
//   RESOURCE_EXHAUSTED  the queue is full; says which limit
//   UNAVAILABLE         draining
//   INVALID_ARGUMENT    the text is empty, longer than the model allows or holds a token outside
//                       the vocabulary
//
// Thread-safety: any thread may call any method; but for Shutdown they do not wait for the engine
// thread beyond one short critical section.
class EngineControl {
 public:
  virtual ~EngineControl() = default;  // shuts down with no grace

  // Names an accepted request.
  using Handle = uint64_t;

  // The request ends with CANCELLED before the next step, and its slot is free then. Unknown and
  // finished handles are ignored.
  virtual void Cancel(Handle handle) = 0;

  // New requests are refused with UNAVAILABLE; accepted ones go on.
  virtual void BeginDrain() = 0;

  // BeginDrain, then waits until all requests have ended or `deadline` has passed; the rest ends
  // with UNAVAILABLE. The thread is joined on return. Idempotent.
  virtual void Shutdown(TimePoint deadline) = 0;

  struct Load {
    int32_t running = 0;
    int32_t waiting = 0;
    int32_t slots = 0;
  };
  virtual Load load() const = 0;

  virtual const ModelInfo& model_info() const = 0;
};

struct EngineOptions {
  std::string model_name;         // for metrics and logs
  int64_t max_step_tokens = 256;  // at most ModelRunner::max_step_tokens()
  // Requests, and their prompt tokens, that may wait for a slot. A request that finds a free slot
  // does not wait: at most slots + max_queued_requests are accepted at once.
  int32_t max_queued_requests = 256;
  int64_t max_queued_tokens = 1'000'000;
  // Read on the engine thread; tests inject their own.
  std::function<TimePoint()> clock = [] { return std::chrono::steady_clock::now(); };
};

// Continuous batching of one language model: one thread owns sequences, scheduler, slots and
// runner, without locks. Every step runs all live decodes and fills the rest of the token budget
// with chunks of prompts and of texts to score.
class Engine : public EngineControl {
 public:
  // The engine thread runs until Shutdown. `metrics` must outlive the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineOptions options,
                                                        std::unique_ptr<ModelRunner> runner,
                                                        std::shared_ptr<const Tokenizer> tokenizer,
                                                        ModelMetrics& metrics);

  // INVALID_ARGUMENT also: the prompt leaves no room for a token within max_seq_len; max_tokens is
  // below 1.
  virtual absl::StatusOr<Handle> Submit(GenerationRequest request,
                                        std::shared_ptr<ResponseSink> sink) = 0;

  // The text's tokens from the second on come with their log-probabilities, a delta per chunk.
  virtual absl::StatusOr<Handle> Submit(ScoringRequest request,
                                        std::shared_ptr<ResponseSink> sink) = 0;
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_ENGINE_H_
