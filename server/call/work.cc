#include "server/call/work.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/api/sampling_params.h"
#include "server/engine/sequence_state.h"

namespace aft::server {
namespace {

class Filler {
 public:
  Filler(RequestHeader header, const std::string& proxy_salt)
      : header_(std::move(header)), proxy_salt_(proxy_salt) {}

  template <typename Request>
  void Fill(Request& request) {
    const ServiceClass service_class = request.service_class;
    static_cast<RequestHeader&>(request) = header_;
    request.service_class = service_class;
    header_.reservation = nullptr;  // only one place in the queue was reserved
    if constexpr (requires { request.cache_salt; }) {
      // A proxy's salt cannot contain a NUL, so each pair of salts gives a different text.
      request.cache_salt =
          absl::StrCat(proxy_salt_, absl::string_view("\0", 1), request.cache_salt);
    }
  }
  template <typename Request>
  void Fill(std::vector<Request>& requests) {
    for (Request& request : requests) Fill(request);
  }

 private:
  RequestHeader header_;
  const std::string& proxy_salt_;
};

}  // namespace

void ForEachTurn(Work& work, absl::FunctionRef<void(TurnRequest&)> set) {
  if (auto* const generation = std::get_if<GenerationRequest>(&work)) set(*generation);
  if (auto* const generations = std::get_if<Generations>(&work)) {
    for (GenerationRequest& prompt : generations->prompts) set(prompt);
  }
  if (auto* const texts = std::get_if<std::vector<ScoringRequest>>(&work)) {
    for (ScoringRequest& text : *texts) set(text);
  }
}

size_t UsesBytes(const Work& work, int64_t vocab_size) {
  const auto bytes = [vocab_size](const GenerationRequest& request) {
    if (!HasPenalties(request.sampling)) return size_t{0};
    const size_t most = request.uses_before().size() + request.prompt.size();
    return sizeof(TokenUse) * std::min(most, static_cast<size_t>(vocab_size));
  };
  // Several answers to one prompt share the uses.
  if (const auto* const generation = std::get_if<GenerationRequest>(&work)) {
    return bytes(*generation);
  }
  size_t sum = 0;
  if (const auto* const generations = std::get_if<Generations>(&work)) {
    for (const GenerationRequest& prompt : generations->prompts) {
      sum += generations->answers * bytes(prompt);
    }
  }
  return sum;
}

absl::StatusOr<RequestHandle> AskEngine(
    Work work, const ServedModel& model, RequestHeader header, const std::string& proxy_salt,
    absl::FunctionRef<std::vector<std::shared_ptr<TokenSink>>()> tokens,
    absl::FunctionRef<std::vector<std::shared_ptr<VectorSink>>()> vectors) {
  Filler filler(std::move(header), proxy_salt);
  if (auto* const generation = std::get_if<GenerationRequest>(&work)) {
    filler.Fill(*generation);
    const auto sinks = tokens();
    return sinks.size() > 1 ? model.generate->GenerateGroup(*generation, sinks)
                            : model.generate->Generate(std::move(*generation), sinks[0]);
  }
  if (auto* const generations = std::get_if<Generations>(&work)) {
    // A group for each prompt would have to find slots for all of its answers at once.
    std::vector<GenerationRequest> requests;
    for (const GenerationRequest& prompt : generations->prompts) {
      for (uint32_t answer = 0; answer < generations->answers; ++answer) {
        requests.push_back(prompt);
        requests.back().sampling.seed += answer;
      }
    }
    filler.Fill(requests);
    return model.generate->GenerateTexts(std::move(requests), tokens());
  }
  if (auto* const texts = std::get_if<std::vector<ScoringRequest>>(&work)) {
    filler.Fill(*texts);
    return model.generate->ScoreTexts(std::move(*texts), tokens());
  }
  auto& texts = std::get<std::vector<EncodingRequest>>(work);
  filler.Fill(texts);
  return model.engine().EncodeTexts(std::move(texts), vectors());
}

}  // namespace aft::server
