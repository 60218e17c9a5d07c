#ifndef AFT_SERVER_ENGINE_ENGINE_LOOP_H_
#define AFT_SERVER_ENGINE_ENGINE_LOOP_H_

#include <memory>
#include <thread>
#include <unordered_map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "server/engine/engine.h"
#include "server/engine/inbox.h"
#include "server/engine/stream.h"
#include "server/observability/metrics.h"
#include "server/scheduling/continuous_scheduler.h"

namespace aft::server {

// The engine: one thread that turns
//   inbox -> drop what is cancelled or expired -> schedule -> model step -> sinks
// until Shutdown. It sleeps only when no request is in flight: a queued request means that all
// slots are busy, and then there is a step to run, so queued deadlines are checked before every
// step.
class EngineLoop final : public Engine {
 public:
  // REQUIRES: what Engine::Create checks.
  EngineLoop(EngineOptions options, std::unique_ptr<ModelRunner> runner,
             std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics);
  ~EngineLoop() override;

  absl::StatusOr<Handle> Submit(GenerationRequest request,
                                std::shared_ptr<ResponseSink> sink) override;
  void Cancel(Handle handle) override { inbox_.Cancel(handle); }
  void BeginDrain() override { inbox_.Close(); }
  void Shutdown(TimePoint deadline) override;
  Load load() const override { return inbox_.load(); }
  const ModelInfo& model_info() const override { return info_; }

 private:
  absl::Status CheckRequest(const GenerationRequest& request) const;
  absl::Status Refuse(Rejection reason, absl::Status status);

  // All below: engine thread only.
  void Run();
  void DropCancelled(const std::vector<Handle>& handles);
  void DropExpired(TimePoint now);
  void DropAll(const absl::Status& status);
  void RunStep();
  absl::StatusOr<StepOutput> RunModel(const Step& step);
  void Start(const Step& step, TimePoint now);
  void Publish(Stream& stream, SampledToken token, TimePoint now);

  // Ends a stream: its slot is free at once; DeliverFinished tells its sink.
  void Finish(Stream& stream, Outcome outcome, TimePoint now);
  void DeliverFinished();
  void PublishGauges();

  const EngineOptions options_;
  const std::unique_ptr<ModelRunner> runner_;
  const ModelInfo info_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  ModelMetrics& metrics_;
  Inbox inbox_;

  // Owned by the engine thread.
  ContinuousScheduler scheduler_;
  std::unordered_map<Handle, std::unique_ptr<Stream>> streams_;
  TimePoint next_deadline_ = TimePoint::max();  // no stream expires before
  std::vector<std::unique_ptr<Stream>> finished_;
  std::vector<Outcome> outcomes_;  // of finished_
  HistogramBatch inter_token_;

  Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_ENGINE_LOOP_H_
