#include "server/engine/token_stream.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace aft::server {
namespace {

// The scheduler's view of a request's client.
template <typename Request>
Sequence::Owner OwnerOf(const Request& request) {
  const Client& client = *request.client;
  return {.client = client.name,
          .user = request.user,
          .weight = client.weight,
          .max_slots = client.max_slots,
          .service_class = request.service_class};
}

// The tokens that the model has to consume: the pending token of the previous turn, if there is
// one, then `text`.
std::vector<TokenId> Unread(const TurnRequest& request, std::vector<TokenId> text) {
  const SequenceState* const previous = request.previous.get();
  if (previous != nullptr && previous->pending != kNoToken) {
    text.insert(text.begin(), previous->pending);
  }
  return text;
}

SequenceTurn TurnOf(const TurnRequest& request) {
  return {.first_position = request.previous != nullptr ? request.previous->consumed() : 0};
}

SequenceTurn TurnOf(const GenerationRequest& request, const OutputBuilder& output) {
  SequenceTurn turn = TurnOf(request);
  turn.never_ahead = output.bans().any() || (request.store && output.may_end_early());
  return turn;
}

// The state to store after a prompt without output is that before the last token, as after an
// output. If the prompt is a single token, the model consumes it, because it must consume one.
SequenceTurn TurnOf(const GenerationRequest& request, const OutputBuilder& output, bool ended) {
  SequenceTurn turn = TurnOf(request, output);
  const int64_t last = request.tokens_before() + static_cast<int64_t>(request.prompt.size()) - 1;
  const bool several = last > turn.first_position;
  turn.leaves_last = ended && several;
  if (request.prompt_scores && several) turn.scores_until = last;
  return turn;
}

SequenceTurn TurnOf(const GenerationRequest& request, const OutputBuilder& output,
                    const TokenStream& leader) {
  SequenceTurn turn = TurnOf(request, output);
  turn.first_position = leader.prompt_end() - 1;
  return turn;
}

// The last token that the model has to consume. REQUIRES: there is one.
TokenId LastUnread(const GenerationRequest& request) {
  return request.prompt.empty() ? request.previous->pending : request.prompt.back();
}

// `tokens` is the length of the text. The state to store is that before the last token, so that the
// next turn can score its own first token. If there is only a single token and no pending one, the
// model consumes it, because it must consume one.
SequenceTurn TurnOf(const ScoringRequest& request, int64_t tokens) {
  SequenceTurn turn = TurnOf(request);
  turn.leaves_last = request.store && request.tokens_before() - turn.first_position + tokens > 1;
  // The model's output at the last token of a context is the score of the first one after it.
  turn.asks_from = turn.first_position + std::max<int64_t>(request.context - 1, 0) + request.scored;
  return turn;
}

// If only the last vector is wanted, the tokens before the last one are only read.
SequenceTurn TurnOf(const EncodingRequest& request) {
  const auto last = static_cast<int64_t>(request.text.size()) - 1;
  return {.asks_from = request.pooling == Pooling::kLast ? last : 0};
}

// A client that has all scores may still want the state after them. `tokens`: the text's length.
Sequence::Purpose PurposeOf(const ScoringRequest& request, int64_t tokens) {
  const bool all = request.scored > 0 && request.scored == request.scores(tokens);
  return all ? Sequence::Purpose::kRead : Sequence::Purpose::kScore;
}

std::unique_ptr<Outcome> OutcomeOf(Sequence::Purpose purpose) {
  if (purpose != Sequence::Purpose::kRead) return nullptr;
  auto outcome = std::make_unique<Outcome>();
  outcome->reason = FinishReason::kDone;
  return outcome;
}

uint64_t OutputsBefore(const SequenceState* previous) {
  return previous != nullptr ? previous->outputs : 0;
}

// Returns at least 1. For an output that has ended the value is never used.
int64_t OutputsLeft(const OutputBuilder& output) {
  return std::max<int64_t>(output.limit() - output.tokens(), 1);
}

// Returns null if nothing is to be stored. `outputs`: how many of the last tokens of `text` are
// outputs.
std::unique_ptr<TurnEnd> EndOf(const TurnRequest& request, std::vector<TokenId> text,
                               size_t outputs = 0) {
  if (!request.store) return nullptr;
  auto end = std::make_unique<TurnEnd>();
  const auto first = text.end() - static_cast<std::ptrdiff_t>(outputs);
  end->outputs.assign(first, text.end());
  text.erase(first, text.end());
  end->text = std::move(text);
  end->last_is_pending = true;
  return end;
}

// `output` holds the output that the request brings.
SamplingParams SamplingOf(const GenerationRequest& request, const OutputBuilder& output) {
  SamplingParams sampling = request.sampling;
  const uint64_t first = OutputsBefore(request.previous.get()) + request.resumed - output.tokens();
  sampling.ends_from = first + static_cast<uint64_t>(output.min_tokens());
  return sampling;
}

SamplingParams ScoringTerms(const ScoringRequest& request) {
  SamplingParams sampling;
  sampling.top_logprobs = request.top_logprobs;
  return sampling;
}

// Makes room for further outputs if they are kept, which needs penalties.
std::vector<TokenId> WithRoom(std::vector<TokenId> outputs, bool penalties,
                              const OutputBuilder& output) {
  const auto further = static_cast<size_t>(std::min(OutputsLeft(output), kOutputsAtOnce));
  if (penalties) outputs.reserve(outputs.size() + further);
  return outputs;
}

// Returns the text. Copies it if EndOf needs it too.
std::vector<TokenId> TakeText(const TurnRequest& request, std::vector<TokenId>& text) {
  return request.store ? text : std::move(text);
}

}  // namespace

TokenStream::TokenStream(GenerationRequest request, Resumption resumption,
                         std::shared_ptr<TokenSink> token_sink, OutputBuilder builder)
    : Sequence(Unread(request, TakeText(request, request.prompt)),
               resumption.ended != nullptr ? Purpose::kRead : Purpose::kGenerate,
               OutputsLeft(builder), OwnerOf(request),
               TurnOf(request, builder, resumption.ended != nullptr)),
      Job(static_cast<RequestHeader&&>(request), resumption.unread, token_sink),
      sampling(SamplingOf(request, builder)),
      sink(std::move(token_sink)),
      previous(std::move(request.previous)),
      end(EndOf(request, std::move(request.prompt), request.resumed)),
      first_output(OutputsBefore(previous.get()) + request.resumed),
      sampled(WithRoom(std::move(resumption.sampled), resumption.had != nullptr, builder)),
      survival(std::move(request.survival)),
      next_point(position() + survival.interval),
      ended(std::move(resumption.ended)),
      output(std::move(builder)),
      had_(std::move(resumption.had)) {
  usage = resumption.usage;
  Ban(output->bans().Next());
}

TokenStream::TokenStream(GenerationRequest request, TokenStream& leader,
                         std::shared_ptr<const std::vector<TokenUse>> uses,
                         std::shared_ptr<TokenSink> token_sink, OutputBuilder builder)
    : Sequence({LastUnread(request)}, Purpose::kGenerate, builder.limit(), OwnerOf(request),
               TurnOf(request, builder, leader)),
      Job(static_cast<RequestHeader&&>(request), /*text_tokens=*/0, token_sink),
      sampling(SamplingOf(request, builder)),
      sink(std::move(token_sink)),
      previous(std::move(request.previous)),
      end(EndOf(request, std::move(request.prompt))),
      first_output(OutputsBefore(previous.get())),
      sampled(WithRoom({}, uses != nullptr, builder)),
      survival(std::move(request.survival)),
      output(std::move(builder)),
      had_(std::move(uses)) {
  leader.Lead(*this);
}

TokenStream::TokenStream(ScoringRequest request, int64_t text_tokens,
                         std::shared_ptr<TokenSink> token_sink)
    : Sequence(Unread(request, TakeText(request, request.text)), PurposeOf(request, text_tokens),
               std::numeric_limits<int64_t>::max(), OwnerOf(request), TurnOf(request, text_tokens)),
      Job(static_cast<RequestHeader&&>(request), text_tokens, token_sink),
      sampling(ScoringTerms(request)),
      sink(std::move(token_sink)),
      previous(std::move(request.previous)),
      end(EndOf(request, std::move(request.text))),
      first_output(OutputsBefore(previous.get())),
      survival(std::move(request.survival)),
      ended(OutcomeOf(purpose())),
      scored_tokens(static_cast<uint32_t>(request.scored)),
      logprob(request.logprob) {
  usage.resumed_tokens = scored_tokens;
}

TokenStream::TokenStream(EncodingRequest request, int64_t width,
                         std::shared_ptr<VectorSink> vector_sink)
    : Sequence(request.text, Purpose::kEncode, std::numeric_limits<int64_t>::max(),
               OwnerOf(request), TurnOf(request)),
      Job(static_cast<RequestHeader&&>(request), static_cast<int64_t>(request.text.size()),
          vector_sink),
      first_output(0),
      encoding(std::make_unique<Encoding>(
          Encoding{TextVectors(request.pooling, request.normalize, request.text.size(), width),
                   std::move(vector_sink)})) {}

SlotTerms TokenStream::Terms() const {
  SlotTerms terms = {sampling, first_output};
  if (prompt_left() == 0) {
    terms.output_index += static_cast<uint64_t>(position() - prompt_end() + 1);
  }
  // If the text begins in this slot, the runner itself counts all that it reads and samples.
  if (had_ == nullptr || (position() == 0 && first_output == 0)) return terms;
  terms.had = *had_;
  terms.sampled = sampled;
  return terms;
}

}  // namespace aft::server
