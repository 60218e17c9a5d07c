#ifndef AFT_SERVER_ENGINE_ENCODE_ENGINE_H_
#define AFT_SERVER_ENGINE_ENCODE_ENGINE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "server/engine/engine.h"
#include "server/engine/request_loop.h"
#include "server/observability/metrics.h"
#include "server/scheduling/delay_batcher.h"
#include "server/scheduling/request.h"

namespace aft::server {

// Where the vectors of one text go; see FinishSink.
class VectorSink : public FinishSink {
 public:
  // At most once: all that was asked for, vector after vector. OnFinished with OK follows.
  virtual void OnVectors(std::vector<float> vectors) = 0;
};

struct EncodeEngineOptions {
  std::string model_name;      // for metrics and logs
  DelayBatcher::Limits batch;  // rows and tokens within what the runner takes
  // Requests, and their tokens, that may wait beyond a batch; see EngineOptions.
  int32_t max_queued_requests = 256;
  int64_t max_queued_tokens = 1'000'000;
  // Read on the engine thread; tests inject their own.
  std::function<TimePoint()> clock = [] { return std::chrono::steady_clock::now(); };
};

// Dynamic batching of one encoder: one thread owns batcher and runner, without locks. Every step
// encodes one batch of texts; each ends with its step. See EngineControl.
class EncodeEngine final : public EngineControl, private RequestLoop::Work {
 public:
  // The engine thread runs until Shutdown. `metrics` must outlive the engine. INVALID_ARGUMENT when
  // the batch is larger than the runner takes.
  static absl::StatusOr<std::unique_ptr<EncodeEngine>> Create(EncodeEngineOptions options,
                                                              std::unique_ptr<EncoderRunner> runner,
                                                              ModelMetrics& metrics);

  // INVALID_ARGUMENT also: the text is longer than max_batch_tokens().
  absl::StatusOr<Handle> Submit(EncodingRequest request, std::shared_ptr<VectorSink> sink);

  void Cancel(Handle handle) override { loop_.Cancel(handle); }
  void BeginDrain() override { loop_.BeginDrain(); }
  void Shutdown(TimePoint deadline) override { loop_.Shutdown(deadline); }
  Load load() const override { return loop_.load(); }
  const ModelInfo& model_info() const override { return info_; }

  int64_t width() const { return width_; }  // of a vector
  int64_t max_batch_tokens() const { return options_.batch.max_tokens; }

 private:
  struct Text;

  EncodeEngine(EncodeEngineOptions options, std::unique_ptr<EncoderRunner> runner,
               ModelMetrics& metrics);

  // RequestLoop::Work; all below: engine thread only.
  void PrepareThread() override { runner_->PrepareThread(); }
  void Add(Job& job) override;
  void Remove(Job& job, Outcome& outcome) override;
  TimePoint Advance(bool closed) override;
  void PublishGauges() override;

  void RunBatch(const std::vector<Text*>& batch);
  absl::StatusOr<std::vector<TokenVectors>> RunModel(const std::vector<Text*>& batch);
  void Publish(Text& text, TokenVectors vectors, size_t batch_rows, TimePoint now);

  const EncodeEngineOptions options_;
  const std::unique_ptr<EncoderRunner> runner_;
  const ModelInfo info_;
  const int64_t width_;
  ModelMetrics& metrics_;

  DelayBatcher batcher_;  // owned by the engine thread

  RequestLoop loop_;  // last: its thread uses all of the above
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_ENCODE_ENGINE_H_
