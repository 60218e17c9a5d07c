#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/model_runner.h"
#include "model/api/tokenizer.h"
#include "server/engine/held_tokens.h"
#include "server/engine/prefix_reads.h"
#include "server/engine/request.h"
#include "server/engine/request_loop.h"
#include "server/engine/resume_points.h"
#include "server/engine/stream_slots.h"
#include "server/engine/token_counts.h"
#include "server/engine/token_stream.h"
#include "server/observability/metrics.h"
#include "server/scheduling/continuous_scheduler.h"
#include "server/scheduling/step_pacer.h"
#include "server/scheduling/step_shares.h"

namespace aft::server {

// Continuous batching for one language model. One thread owns sequences, scheduler, slots and
// runner, without locks. A step runs the live decodes, and fills the rest of the token budget with
// chunks of prompts and of texts to score and to encode. Clients share a step that would be too
// long. A step is
//   schedule -> submit to the model -> collect -> tokens, log-probabilities, vectors to the sinks
// There is a step whenever a request is in flight: a queued request means that slots are busy. So
// the thread sleeps only without requests, and checks queued deadlines before every step. Before a
// step, slots change hands. The state of a sequence that is parked is copied into host memory, at
// most model.parking_bytes in all, and later into its next slot, exactly as it was. Where the
// runner allows two steps in flight, the next is scheduled and submitted while the device works on
// this one.
class GenerateEngine final : public RequestLoop {
 public:
  // The engine thread runs until Shutdown. `metrics` must outlive the engine. INVALID_ARGUMENT when
  // the config's steps are larger than the runner allows, or too small for its slots.
  static absl::StatusOr<std::unique_ptr<GenerateEngine>> Create(
      const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
      std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics);
  ~GenerateEngine() override { Shutdown(TimePoint::min()); }

  // Continues a prompt, which follows the text of `previous` where there is one. INVALID_ARGUMENT
  // also: the prompt leaves no room for a token within max_seq_len, which counts the text before;
  // max_tokens is below 1 (0 with prompt_scores); the prompt is empty, and the text before has no
  // pending token.
  // FAILED_PRECONDITION: `previous` is a state of another model.
  absl::StatusOr<RequestHandle> Generate(GenerationRequest request,
                                         std::shared_ptr<TokenSink> sink);

  // Generates for several requests, each with a sink of its own. All are accepted, or none. The
  // handle is the first one's, the others' follow it.
  absl::StatusOr<RequestHandle> GenerateTexts(std::vector<GenerationRequest> requests,
                                              const std::vector<std::shared_ptr<TokenSink>>& sinks);

  // Generates several answers to one prompt, one for each sink, at most as many as CheckGroup
  // allows. The prompt is read once, and the i-th answer is what Generate gives with the seed + i.
  // All answers get slots at the same time, and each ends by itself. But until the prompt is read,
  // the end of the first one ends the others (CANCELLED). Usage::prompt_tokens is counted for the
  // first one alone, which also has the scores of the prompt. The handle is the first one's, the
  // others' follow it. REQUIRES: stop.max_tokens >= 1.
  absl::StatusOr<RequestHandle> GenerateGroup(const GenerationRequest& request,
                                              const std::vector<std::shared_ptr<TokenSink>>& sinks);

  // INVALID_ARGUMENT: that many answers to one request can never run at the same time.
  absl::Status CheckGroup(const Client& client, ServiceClass service_class, int64_t answers) const;

  // Scores each text by itself, with a sink of its own. All texts are accepted, or none. Each token
  // from the second on gets its log-probability, a part per chunk; also the first one, if
  // `previous` has a pending token. Left out are tokens of the context, and those whose scores the
  // client has (`scored`). The handle is the first one's, the others' follow it. Errors as
  // Generate; INVALID_ARGUMENT also: the client has more scores than there are.
  absl::StatusOr<RequestHandle> ScoreTexts(std::vector<ScoringRequest> requests,
                                           const std::vector<std::shared_ptr<TokenSink>>& sinks);

  // Each text is read like one to score. Its vectors, pooled or not, come at its end.
  absl::StatusOr<RequestHandle> EncodeTexts(
      std::vector<EncodingRequest> requests,
      const std::vector<std::shared_ptr<VectorSink>>& sinks) override;

 private:
  GenerateEngine(const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
                 std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics);

  // Errors as Generate.
  absl::StatusOr<std::unique_ptr<TokenStream>> MakeGeneration(GenerationRequest request,
                                                              std::shared_ptr<TokenSink> sink);
  std::unique_ptr<TokenStream> MakeScoring(ScoringRequest request,
                                           std::shared_ptr<TokenSink> sink) const;

  // Overrides of RequestLoop. All that follows is for the engine thread only.
  void PrepareThread() override { runner_->PrepareThread(); }
  void Add(Job& job, TimePoint now) override;
  void Remove(Job& job, Outcome& outcome) override;
  void Leave(Job& job, TimePoint now) override;
  TimePoint Advance() override;
  void PublishGauges() override;
  size_t HeldBack(ServiceClass service_class) const override {
    return prefixes_.held_back(service_class);
  }

  // The runner's answer for each step that the scheduler has in flight, in the same order.
  struct Flight {
    TimePoint submitted;
    TokenCounts::Prompts prompt_tokens;
    absl::StatusOr<ModelRunner::Ticket> ticket;
  };

  void Place();
  // False: the stream has ended, because its slot or the host does not have its state. `event` is
  // the log event.
  bool CheckState(TokenStream& stream, const char* event, const absl::Status& status);
  void Launch(const Step& step);
  void CollectOldest();
  absl::Status Collect(const Flight& flight, const Step& step);
  void Publish(const Step& step, const TokenCounts::Prompts& prompt_tokens, TimePoint now);
  void PublishToken(TokenStream& stream, SampledToken token, TimePoint now);
  void FailNoToken(TokenStream& stream, TimePoint now);
  void PublishScores(TokenStream& stream, const StepRow& row, std::vector<SampledToken> scores,
                     TimePoint now);
  // `row` is the index of the stream's row in that step.
  void PublishVectors(TokenStream& stream, const Step& step, size_t row, std::vector<float> vectors,
                      TimePoint now);
  // Ends the stream when its reader is too slow for the delta, or when `ended`. A stream that takes
  // turns in shared steps gets the tokens of its turn together.
  void Deliver(TokenStream& stream, TokenDelta delta, bool ended, Outcome outcome, TimePoint now);
  // The time that the engine has worked, from an arbitrary start. On the CPU it is the CPU time of
  // the engine thread. Where a GPU does the work, all time counts.
  Duration Work() const {
    return runner_->device_stats() == nullptr ? options_.cpu_clock() : Now().time_since_epoch();
  }

  const std::unique_ptr<ModelRunner> runner_;
  const ModelInfo info_;
  const std::shared_ptr<const Tokenizer> tokenizer_;

  // The engine thread owns these.
  ContinuousScheduler scheduler_;
  PrefixReads prefixes_;
  StreamSlots slots_;
  ResumePoints resume_points_;
  StepPacer pacer_;
  StepCostMeter step_costs_;
  std::vector<Flight> flights_;
  TokenCounts counts_;
  HeldTokens held_;
  StepOutput output_;        // of the last step
  TimePoint collected_at_;   // when the last step was collected
  TimePoint advance_began_;  // when the running call of Advance began
  Duration work_began_{};    // likewise, by Work()
};

}  // namespace aft::server
