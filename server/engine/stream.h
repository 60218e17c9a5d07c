#ifndef AFT_SERVER_ENGINE_STREAM_H_
#define AFT_SERVER_ENGINE_STREAM_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "model/sampling/params.h"
#include "model/tokenizer/tokenizer.h"
#include "server/engine/engine.h"
#include "server/engine/output_builder.h"
#include "server/scheduling/admission_budget.h"
#include "server/scheduling/request.h"
#include "server/scheduling/sequence.h"

namespace aft::server {

// One accepted request. Made by Submit, then owned by the engine thread alone; the scheduler sees
// only the Sequence in it.
struct Stream final : Sequence {
  Stream(GenerationRequest request, std::shared_ptr<ResponseSink> response_sink,
         const Tokenizer& tokenizer, int64_t max_seq_len)
      : Sequence(std::move(request.prompt)),
        id(std::move(request.id)),
        sampling(request.sampling),
        arrival(request.arrival),
        deadline(request.deadline),
        sink(std::move(response_sink)),
        output(tokenizer, std::move(request.stop), prompt_size(), max_seq_len) {}

  const std::string id;
  const SamplingParams sampling;
  const TimePoint arrival;
  const TimePoint deadline;
  const std::shared_ptr<ResponseSink> sink;
  OutputBuilder output;

  Engine::Handle handle = 0;
  AdmissionBudget::Charge charge;

  std::optional<TimePoint> started_at;  // the first step that held it
  std::optional<TimePoint> first_token_at;
  TimePoint last_token_at;  // valid once first_token_at is set
};

}  // namespace aft::server

#endif  // AFT_SERVER_ENGINE_STREAM_H_
