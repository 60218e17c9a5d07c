#pragma once

#include "absl/status/statusor.h"
#include "server/api/aft/generate_codec.h"
#include "server/config/checks.h"

namespace aft::server {

// Complete is Generate with one message, so everything stays pending until the end. See
// TypedExchange.
class CompleteCodec : public GenerateCodec {
 public:
  using Response = v1::CompleteResponse;
  static constexpr Method kMethod = Method::kComplete;

  absl::StatusOr<GenerationRequest> Decode(const Request& message, const LimitsConfig& limits,
                                           const ServedModel& model, v1::Started& started) {
    if (message.resumable()) {
      return BadField("resumable",
                      "must not be set: only a client of Generate has the output with "
                      "which another server can resume");
    }
    return GenerateCodec::Decode(message, limits, model, started);
  }
  bool Take(Response& /*outgoing*/) { return false; }
  // Moves all answers to `outgoing`. REQUIRES: AppendFinished was called for every sequence.
  void TakeAnswers(Response& outgoing);
};

}  // namespace aft::server
