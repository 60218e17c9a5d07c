#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/rpc/text_codec.h"

namespace aft::server {

// Generate; see TypedCall. Tokens that wait become one Delta.
class GenerateCodec : public PendingMessage<v1::GenerateResponse> {
 public:
  using Request = v1::GenerateRequest;
  using Part = TokenDelta;
  static constexpr Method kMethod = Method::kGenerate;
  static constexpr auto kEngine = &ServedModel::generate;
  static constexpr auto kAction = &GenerateEngine::Generate;

  absl::StatusOr<GenerationRequest> Decode(const Request& message, const LimitsConfig& limits,
                                           const ServedModel& model, v1::Started& started);
  static size_t tokens(const v1::Started& started) { return started.prompt_tokens(); }
  static size_t kept_tokens(const GenerationRequest& request) { return request.prompt.size(); }
  static int64_t MostOutputs(const GenerationRequest& request) { return request.stop.max_tokens; }
  void Append(Part part);
  void Finish(const Outcome& outcome, v1::Finished& finished) const;

 private:
  bool with_logprobs_ = false;  // the request asks for them
};

}  // namespace aft::server
