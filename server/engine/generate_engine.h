#pragma once

#include <cstddef>
#include <cstdint>
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
// The engine runs a step as long as it has requests, because a request waits only while slots are
// busy. So the thread sleeps only without requests, and checks the deadlines of waiting requests
// before every step. Slots are given and taken between steps. The state of a parked sequence is
// copied into host memory (at most model.parking_bytes in all), and later into its next slot,
// exactly as it was. If the runner allows two steps in flight, the engine schedules and submits the
// next step while the device works on the current one.
class GenerateEngine final : public RequestLoop {
 public:
  // The engine thread runs until Shutdown. `metrics` must outlive the engine. INVALID_ARGUMENT when
  // the config's steps are larger than the runner allows, or too small for its slots.
  static absl::StatusOr<std::unique_ptr<GenerateEngine>> Create(
      const EngineOptions& options, std::unique_ptr<ModelRunner> runner,
      std::shared_ptr<const Tokenizer> tokenizer, ModelMetrics& metrics);
  ~GenerateEngine() override { Shutdown(TimePoint::min()); }

  // Continues a prompt, which follows the text of `previous` if there is one. INVALID_ARGUMENT
  // also: the prompt and the text before it leave no room for a token within max_seq_len;
  // max_tokens is below 1 (below 0 with prompt_scores and a prompt); the prompt is empty, and the
  // text before has no pending token. FAILED_PRECONDITION: `previous` is a state of another model.
  absl::StatusOr<RequestHandle> Generate(GenerationRequest request,
                                         std::shared_ptr<TokenSink> sink);

  // Generates for several requests, each with a sink of its own. Accepts all of them or none. The
  // handle is that of the first request; those of the others follow it.
  absl::StatusOr<RequestHandle> GenerateTexts(std::vector<GenerationRequest> requests,
                                              const std::vector<std::shared_ptr<TokenSink>>& sinks);

  // Generates several answers to one prompt, one for each sink, at most as many as CheckGroup
  // allows. The prompt is read once, and the i-th answer is the one that Generate gives with the
  // seed + i. All answers get slots at the same time, and each ends by itself. But if the first
  // answer fails before the prompt is read, the others end with ABORTED. Only the first answer
  // has Usage::prompt_tokens and the scores of the prompt. The handle is that of the first answer;
  // those of the others follow it. REQUIRES: stop.max_tokens >= 1.
  absl::StatusOr<RequestHandle> GenerateGroup(const GenerationRequest& request,
                                              const std::vector<std::shared_ptr<TokenSink>>& sinks);

  // INVALID_ARGUMENT if this number of answers to one request can never run at the same time.
  absl::Status CheckGroup(const Client& client, ServiceClass service_class, int64_t answers) const;

  // Scores each text by itself, with a sink of its own. Accepts all texts or none. Each token from
  // the second on gets its log-probability, and so does the first one if `previous` has a pending
  // token. Each chunk gives one part. Tokens of the context, and tokens whose scores the client has
  // already (`scored`), get none. The handle is that of the first text; those of the others follow
  // it. Errors as Generate; INVALID_ARGUMENT also: the client has more scores than there are.
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
  int32_t HeldBack(ServiceClass service_class) const override {
    return prefixes_.held_back(service_class);
  }

  // A step that the scheduler has in flight, and the runner's answer to its submission.
  struct Flight {
    TimePoint submitted;
    TokenCounts::Prompts prompt_tokens;
    absl::StatusOr<ModelRunner::Ticket> ticket;
  };

  void Place();
  // Returns false, and ends the stream, if `status` says that its state could not be moved. `event`
  // is the log event.
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
  // Gives the delta to the stream's sink. Ends the stream if its reader is too slow, or if `ended`.
  // A stream that takes turns in shared steps gets the tokens of its turn together.
  void Deliver(TokenStream& stream, TokenDelta delta, bool ended, Outcome outcome, TimePoint now);
  // The time that the engine has worked, from an arbitrary start. On the CPU it is the CPU time of
  // the engine thread. On a GPU all time counts.
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
  Duration work_began_{};    // the value of Work() at that time
};

}  // namespace aft::server
