#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "aft/v1/inference.pb.h"
#include "server/rpc/text_codec.h"

namespace aft::server {

// Generate; see TypedCall. Tokens of a sequence that wait become one Delta; sequences take turns.
class GenerateCodec {
 public:
  using Request = v1::GenerateRequest;
  using Response = v1::GenerateResponse;
  using Part = TokenDelta;
  static constexpr Method kMethod = Method::kGenerate;
  static constexpr auto kEngine = &ServedModel::generate;
  static constexpr auto kAction = &GenerateEngine::Generate;

  absl::StatusOr<GenerationRequest> Decode(const Request& message, const LimitsConfig& limits,
                                           const ServedModel& model, v1::Started& started);
  static size_t tokens(const v1::Started& started) { return started.prompt_tokens(); }
  size_t kept_tokens(const GenerationRequest& request) const;
  static int64_t MostOutputs(const GenerationRequest& request) { return request.stop.max_tokens; }
  // As many as the request asks for, once it is decoded; what is pending has room for one at first.
  uint32_t sequences() const { return sequences_; }
  void ExpectSequences() { pending_.resize(sequences_); }
  void Append(Part part, uint32_t sequence = 0);
  // The sequence's Finished follows what is pending of it. `state`: that it left behind, or null.
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state);
  bool Take(Response& outgoing);
  void Drop();
  size_t pending_bytes() const { return pending_bytes_; }
  size_t held_bytes() const { return kHeldBytes * pending_bytes_; }
  void Finish(const Outcome& outcome, v1::Finished& finished) const;

 protected:
  // Of one sequence.
  struct Pending {
    Response delta;
    size_t delta_bytes = 0;
    std::optional<Response> finished;
  };
  std::vector<Pending> pending_ = std::vector<Pending>(1);
  size_t pending_bytes_ = 0;

 private:
  absl::Status Echo(const GenerationRequest& request, const LimitsConfig& limits,
                    const Tokenizer& tokenizer, v1::Prompt& prompt);

  bool with_logprobs_ = false;  // the request asks for them
  size_t echo_bytes_ = 0;       // of Started.prompt, in memory
  uint32_t sequences_ = 1;
  size_t turn_ = 0;  // whose it is
};

}  // namespace aft::server
