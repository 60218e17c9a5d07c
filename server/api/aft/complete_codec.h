#pragma once

#include "absl/status/statusor.h"
#include "server/api/aft/generate_codec.h"
#include "server/config/checks.h"

namespace aft::server {

// Complete: Generate, of which all that is pending stays until the end; see TypedExchange.
class CompleteCodec : public GenerateCodec {
 public:
  using Response = v1::CompleteResponse;
  static constexpr Method kMethod = Method::kComplete;

  absl::StatusOr<GenerationRequest> Decode(const Request& message, const LimitsConfig& limits,
                                           const ServedModel& model, v1::Started& started) {
    if (message.resumable()) {
      return BadField("resumable",
                      "must not be set: of Generate alone, whose client has the output "
                      "that another server is to go on with");
    }
    return GenerateCodec::Decode(message, limits, model, started);
  }
  bool Take(Response& /*outgoing*/) { return false; }
  // Moves all answers there. REQUIRES: AppendFinished of every sequence.
  void TakeAnswers(Response& outgoing);
};

}  // namespace aft::server
