#ifndef AFT_SERVER_ENGINE_STREAM_H_
#define AFT_SERVER_ENGINE_STREAM_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "model/api/sampling_params.h"
#include "model/api/tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/job.h"
#include "server/engine/output_builder.h"
#include "server/scheduling/request.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// One accepted generation or scoring; the scheduler sees only the Sequence in it.
struct Stream final : Sequence, Job {
  Stream(GenerationRequest request, std::shared_ptr<ResponseSink> response_sink,
         const Tokenizer& tokenizer, int64_t max_seq_len)
      : Stream{OutputLimit(request.stop, static_cast<int64_t>(request.prompt.size()), max_seq_len),
               std::move(request), std::move(response_sink), tokenizer, max_seq_len} {}

  Stream(ScoringRequest request, std::shared_ptr<ResponseSink> response_sink)
      : Sequence(std::move(request.text), Purpose::kScore),
        Job(static_cast<RequestHeader&&>(request), prompt_size(), response_sink),
        sampling({.top_logprobs = request.top_logprobs}),
        sink(std::move(response_sink)) {}

  const SamplingParams sampling;
  const std::shared_ptr<ResponseSink> sink;

  // Generation.
  std::optional<OutputBuilder> output;
  TimePoint last_token_at;  // valid once first_output_at is set

  // Scoring.
  uint32_t scored_tokens = 0;
  uint64_t scored_bytes = 0;
  double logprob = 0;  // sum

 private:
  Stream(int64_t output_limit, GenerationRequest request,
         std::shared_ptr<ResponseSink> response_sink, const Tokenizer& tokenizer,
         int64_t max_seq_len)
      : Sequence(std::move(request.prompt), Purpose::kGenerate, output_limit),
        Job(static_cast<RequestHeader&&>(request), prompt_size(), response_sink),
        sampling(request.sampling),
        sink(std::move(response_sink)),
        output(std::in_place, tokenizer, std::move(request.stop), prompt_size(), max_seq_len) {}
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_STREAM_H_
