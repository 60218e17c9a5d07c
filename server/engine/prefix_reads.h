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

// Which states prompts go on from and which they leave behind, over PrefixCache. For the engine's
// thread alone, but for Make and Attach.
//
// A prompt goes on from the last snapshot on its way that leaves it a token to read. It leaves
// snapshots
//   where it parts with what is known (of a text that is known to its end: before its last token),
//   every `interval` tokens,
//   where one that joins it parts with it,
// and its stream one behind its answer; each at least kMinTokens beyond the one before. At the
// first three its row is cut there; it sits out where a step in flight names its slot. The context
// of a text to score is as a prompt, but leaves a snapshot at its end the first time already: its
// request says that others begin with it. Behind the text none is left.
//
// One that would read what another one is reading joins it: it holds no slot and waits, until the
// snapshot is there or the other one has ended; then it is in line again as if it had waited there,
// and the first of several to get a slot reads on, with the others joined to it. Meanwhile the
// leader has the best class of those that have joined it.
class PrefixReads {
 public:
  struct Options {
    int64_t bytes = 0;     // 0: no stream takes part
    int64_t interval = 0;  // tokens; 0: none
  };

  // All must outlive this.
  PrefixReads(const Options& options, const ModelInfo& info, ContinuousScheduler& scheduler,
              ModelRunner& runner, ModelMetrics& metrics);

  // For the stream that the request becomes; null: it takes no part. Any thread.
  std::unique_ptr<PrefixRead> Make(const GenerationRequest& request) const;
  std::unique_ptr<PrefixRead> Make(const ScoringRequest& request) const;
  // Makes it the stream's, and says what that has to read at least. Any thread.
  void Attach(std::unique_ptr<PrefixRead> read, TokenStream& stream) const;

  // ContinuousScheduler::MayStart.
  bool MayStart(TokenStream& stream);

  // The stream has got its first slot: the state that it begins from, at its position; null: its
  // slot is to be bound at the beginning of its text.
  std::shared_ptr<const KeptState> Take(TokenStream& stream);

  // A step that held a part of the stream's prompt has retired. Leaves a snapshot there if this is
  // where the stream was to leave one.
  void HasRead(TokenStream& stream);

  // The stream has sampled these, and the client gets them; none: the output ends without, or the
  // stream scores what is behind its context.
  void HasSampled(TokenStream& stream, absl::Span<const SampledToken> tokens);

  // It has ended as it should, and still has its slot; what that holds is lost.
  void HasEnded(TokenStream& stream);

  // It goes, however it ended.
  void Remove(TokenStream& stream);

  // Streams of that class that wait for another one's state.
  size_t held_back(ServiceClass service_class) const {
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
  void StopReading(TokenStream& stream);

  const Options options_;
  const ModelInfo info_;
  ContinuousScheduler& scheduler_;
  ModelRunner& runner_;
  ModelMetrics& metrics_;
  PrefixCache cache_;
  std::vector<TokenStream*> readers_;  // whose prompts are known and not wholly read
  std::array<size_t, kServiceClasses> held_back_{};
  int64_t published_evictions_ = 0;
  std::atomic<int64_t> deepest_{0};  // what a prompt can go on from at most
};

}  // namespace aft::server
