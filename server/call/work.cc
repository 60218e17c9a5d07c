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

size_t MarkedBytes(const TurnRequest& request, size_t tokens) {
  const bool tuned = request.previous != nullptr && request.previous->initial != 0;
  return tuned ? sizeof(TokenId) * (tokens + 1) : 0;
}

// `answers`: the number of answers to one prompt, which share what comes before the output.
size_t GenerationBytes(const GenerationRequest& request, uint32_t answers, const ModelInfo& info) {
  size_t bytes = MarkedBytes(request, request.prompt.size());
  if (!HasPenalties(request.sampling)) return bytes;
  const size_t before = request.uses_before().size() + request.prompt.size();
  bytes += sizeof(TokenUse) * std::min(before, static_cast<size_t>(info.vocab_size));
  // A vector that grows may take twice the memory of its elements.
  const auto outputs = static_cast<size_t>(request.max_outputs(info.max_seq_len));
  return bytes + 2 * sizeof(TokenId) * outputs * answers;
}

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

size_t EngineBytes(const Work& work, uint32_t sequences, const ModelInfo& info) {
  // Several answers to one prompt share the uses.
  if (const auto* const generation = std::get_if<GenerationRequest>(&work)) {
    return GenerationBytes(*generation, sequences, info);
  }
  size_t sum = 0;
  if (const auto* const generations = std::get_if<Generations>(&work)) {
    for (const GenerationRequest& prompt : generations->prompts) {
      sum += generations->answers * GenerationBytes(prompt, /*answers=*/1, info);
    }
  }
  if (const auto* const texts = std::get_if<std::vector<ScoringRequest>>(&work)) {
    for (const ScoringRequest& text : *texts) sum += MarkedBytes(text, text.text.size());
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
