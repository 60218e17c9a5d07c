#ifndef AFT_SERVER_ENGINE_ENGINE_LOOP_H_
#define AFT_SERVER_ENGINE_ENGINE_LOOP_H_

#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/engine.h"
#include "server/engine/request_loop.h"
#include "server/engine/stream.h"
#include "server/observability/metrics.h"
#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

// The engine of a language model. A step is
//   schedule -> submit to the model -> collect -> tokens and log-probabilities to the sinks
// and there is one whenever a request is in flight: a queued request means that all slots are busy,
// so the thread sleeps only when there is none, and queued deadlines are checked before every step.
// Where the runner allows two steps in flight, the next is scheduled and submitted while the device
// works on this one.
class EngineLoop final : public Engine, private RequestLoop::Work {
 public:
  // REQUIRES: what Engine::Create checks.
  EngineLoop(EngineOptions options, std::unique_ptr<ModelRunner> runner,
             std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics);

  absl::StatusOr<Handle> Submit(GenerationRequest request,
                                std::shared_ptr<ResponseSink> sink) override;
  absl::StatusOr<Handle> Submit(ScoringRequest request,
                                std::shared_ptr<ResponseSink> sink) override;
  void Cancel(Handle handle) override { loop_.Cancel(handle); }
  void BeginDrain() override { loop_.BeginDrain(); }
  void Shutdown(TimePoint deadline) override { loop_.Shutdown(deadline); }
  Load load() const override { return loop_.load(); }
  const ModelInfo& model_info() const override { return info_; }

 private:
  absl::Status CheckRequest(const GenerationRequest& request) const;

  // RequestLoop::Work; all below: engine thread only.
  void PrepareThread() override { runner_->PrepareThread(); }
  void Add(Job& job) override;
  void Remove(Job& job, Outcome& outcome) override;
  TimePoint Advance(bool closed) override;
  void PublishGauges() override;

  // What the runner said to the steps that the scheduler has in flight, in the same order.
  struct Flight {
    TimePoint submitted;
    absl::StatusOr<ModelRunner::Ticket> ticket;
  };

  void Submit(const Step& step);
  void Collect();
  absl::StatusOr<StepOutput> Output(const Flight& flight, const Step& step);
  void Publish(const Step& step, StepOutput output, TimePoint now);
  void FailStep(const Step& step, const absl::Status& status, TimePoint now);
  void Start(const Step& step, TimePoint now);
  void PublishToken(Stream& stream, SampledToken token, TimePoint now);
  void PublishScores(Stream& stream, const StepRow& row, std::vector<SampledToken> scores,
                     TimePoint now);
  // Ends the stream when its reader is too slow for the delta, or when `ended`.
  void Deliver(Stream& stream, TokenDelta delta, bool ended, Outcome outcome, TimePoint now);
  void FailNotFinite(Stream& stream, TimePoint now);

  const EngineOptions options_;
  const std::unique_ptr<ModelRunner> runner_;
  const ModelInfo info_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  ModelMetrics& metrics_;

  // Owned by the engine thread.
  ContinuousScheduler scheduler_;
  std::deque<Flight> flights_;
  TimePoint collected_at_;  // the last step
  HistogramBatch inter_token_;

  RequestLoop loop_;  // last: its thread uses all of the above
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_ENGINE_LOOP_H_
