#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "model/api/model_runner.h"
#include "model/api/sampling_params.h"
#include "server/engine/prefix_read.h"
#include "server/engine/request.h"
#include "server/observability/metrics.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/prefix_cache.h"

namespace aft::server {

struct TokenStream;

// Decides, with PrefixCache, from which states prompts continue and which states they leave.
// "Prefix cache" in README.md has the rules. Other threads than the engine's may call only Make,
// Attach and held_back.
class PrefixReads {
 public:
  struct Options {
    int64_t bytes = 0;     // 0: no stream uses the cache
    int64_t interval = 0;  // tokens; 0: no kept states at intervals
  };

  // All must outlive this.
  PrefixReads(const Options& options, const ModelInfo& info, ContinuousScheduler& scheduler,
              ModelRunner& runner, ModelMetrics& metrics);

  // Returns what the stream of that request needs, or null if it does not use the cache. Any
  // thread.
  std::unique_ptr<PrefixRead> Make(const GenerationRequest& request) const;
  std::unique_ptr<PrefixRead> Make(const ScoringRequest& request) const;
  // Gives `read` to the stream, and sets the least that it has to read. Any thread.
  void Attach(std::unique_ptr<PrefixRead> read, TokenStream& stream) const;

  // The MayStart of ContinuousScheduler::Place.
  bool MayStart(TokenStream& stream);

  // The stream has got its first slot. Returns the state to begin from, which is at its position.
  // Null: its slot is to be bound at the beginning of its text.
  std::shared_ptr<const KeptState> Take(TokenStream& stream);

  // A step that held a part of the stream's prompt has retired. Leaves a kept state if this is
  // where the stream was to leave one.
  void HasRead(TokenStream& stream);

  // The stream has sampled these tokens, and the client gets them. No tokens: the output ends
  // without one, or the stream scores what follows its context.
  void HasSampled(TokenStream& stream, absl::Span<const SampledToken> tokens);

  // The stream has ended normally. It still has its slot, whose state is lost after this call.
  void HasEnded(TokenStream& stream);

  // The stream leaves the engine, however it ended.
  void Remove(TokenStream& stream);

  // The number of streams of that class that wait for another one's state. All streams of a group
  // count until its first one waits no more, even if some of the others have ended by then. Any
  // thread.
  int32_t held_back(ServiceClass service_class) const {
    return held_back_[static_cast<size_t>(service_class)];
  }

  void PublishGauges();

 private:
  bool Fits(int64_t position) const;
  TokenStream* FindLeader(const TokenStream& stream, const PrefixCache::Found& found,
                          int64_t& position) const;
  void Join(TokenStream& stream, TokenStream& leader, int64_t position);
  void Begin(TokenStream& stream, const PrefixCache::Found& found);
  int64_t AddCut(TokenStream& stream, int64_t position);
  void CutNext(TokenStream& stream);
  void Release(TokenStream& leader, int64_t position);
  void LendClass(TokenStream& leader);
  std::shared_ptr<const KeptState> Keep(const TokenStream& stream);
  void StopReading(TokenStream& stream);

  const Options options_;
  const ModelInfo info_;
  ContinuousScheduler& scheduler_;
  ModelRunner& runner_;
  ModelMetrics& metrics_;
  PrefixCache cache_;
  std::vector<TokenStream*> readers_;  // whose prompts are known and not wholly read
  std::array<std::atomic<int32_t>, kServiceClasses> held_back_{};
  int64_t published_evictions_ = 0;
  std::atomic<int64_t> deepest_{0};  // the longest prefix to continue from
};

}  // namespace aft::server
