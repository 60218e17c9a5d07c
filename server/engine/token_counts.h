#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "server/engine/token_stream.h"
#include "server/observability/metrics.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/time.h"

namespace aft::server {

// Counts the tokens of a language model's steps, and the times between them, by the method that
// asked for them. The counts are collected while a step is published, and added to the metrics at
// its end. Only the engine's thread uses it.
class TokenCounts {
 public:
  using Prompts = std::array<int64_t, kEngineMethods>;

  // `metrics` must outlive this object.
  explicit TokenCounts(ModelMetrics& metrics);

  // Counts the prompt tokens of a step that begins. At its end this would be too late, because some
  // of its sequences may be gone.
  static Prompts OfPrompts(const Step& step);

  // The number of tokens that steps read for the stream, plus the number that they sampled for its
  // output. Steps that failed count too, as in OfPrompts.
  static uint64_t Computed(const TokenStream& stream);

  // A token of the stream was sampled; sets its times.
  void Sampled(TokenStream& stream, TimePoint now);
  // The stream has ended, for whatever reason. REQUIRES: outcome.timings are set.
  void Ended(const TokenStream& stream, const Outcome& outcome);
  // The step has been published.
  void Flush(const Prompts& prompts);

 private:
  ModelMetrics& metrics_;
  std::array<int64_t, kGeneratingMethods> generated_{};
  std::vector<HistogramBatch> inter_token_;  // by Method
};

}  // namespace aft::server
