#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/encoder_runner.h"
#include "server/engine/request.h"
#include "server/engine/request_loop.h"
#include "server/observability/metrics.h"
#include "server/scheduling/delay_batcher.h"
#include "server/scheduling/step_pacer.h"

namespace aft::server {

// Dynamic batching for one encoder. One thread owns batcher and runner, without locks. Every step
// encodes one batch of texts, and each text ends with its step. More requests may wait than a batch
// holds.
class EncodeEngine final : public RequestLoop {
 public:
  // The engine thread runs until Shutdown. `metrics` must outlive the engine. INVALID_ARGUMENT when
  // the config's batch is larger than the runner allows.
  static absl::StatusOr<std::unique_ptr<EncodeEngine>> Create(const EngineOptions& options,
                                                              std::unique_ptr<EncoderRunner> runner,
                                                              ModelMetrics& metrics);
  ~EncodeEngine() override { Shutdown(TimePoint::min()); }

  absl::StatusOr<RequestHandle> EncodeTexts(
      std::vector<EncodingRequest> requests,
      const std::vector<std::shared_ptr<VectorSink>>& sinks) override;

 private:
  struct Text;

  EncodeEngine(const EngineOptions& options, std::unique_ptr<EncoderRunner> runner,
               ModelMetrics& metrics);

  // Overrides of RequestLoop. All that follows is for the engine thread only.
  void PrepareThread() override { runner_->PrepareThread(); }
  void Add(Job& job, TimePoint now) override;
  void Remove(Job& job, Outcome& outcome) override;
  TimePoint Advance() override;
  void PublishGauges() override;

  absl::Status Check(const EncodingRequest& request) const;
  void RunBatch(const std::vector<Text*>& batch);
  absl::StatusOr<std::vector<TokenVectors>> RunModel(const std::vector<Text*>& batch);
  void Publish(Text& text, TokenVectors vectors, size_t batch_rows, TimePoint now);

  const std::unique_ptr<EncoderRunner> runner_;
  const ModelInfo info_;

  // The engine thread owns these.
  DelayBatcher batcher_;
  StepPacer pacer_{Duration::zero()};
};

}  // namespace aft::server
