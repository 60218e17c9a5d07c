#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "google/protobuf/message_lite.h"
#include "model/api/tokenizer.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/openai/generation_request.h"
#include "server/api/openai/json_exchange.h"
#include "server/api/openai/logprobs.h"

namespace aft::server::openai {

// /v1/completions and /v1/chat/completions: one generation for each prompt. The answer is a JSON
// object, or a stream of events if the request asks for a stream.
class GenerationExchange final : public JsonExchange {
 public:
  GenerationExchange(bool chat, const std::string& id);

  bool streams() const override { return body_read_.stream; }

  // ---- Exchange.
  ModelName model_name() const override { return {"model", body_read_.model, "model_version", ""}; }
  absl::Status CheckRequest() override;
  absl::StatusOr<std::string> TakeUser() override { return std::move(body_read_.user); }
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override;
  std::string TextPath(uint32_t text) const override;
  absl::Status InOwnNames(const absl::Status& status) const override;
  void Prepare() override;
  using Exchange::Append;
  void Append(TokenDelta delta, uint32_t sequence) override {
    codec_.Append(std::move(delta), sequence);
  }
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state) override {
    choices_[sequence].end = outcome.end_token;
    codec_.AppendFinished(outcome, sequence, state);
  }
  bool Take(std::string& state) override;
  void Drop() override {
    codec_.Drop();
    shared_scores_.reset();
    shared_bytes_ = 0;
  }
  size_t pending_bytes() const override { return codec_.pending_bytes() + shared_bytes_; }
  size_t held_bytes() const override { return TextBytes(pending_bytes()); }
  absl::string_view too_much() const override;
  const google::protobuf::MessageLite& outgoing() override;
  bool Finish(const Outcome& outcome, const v1::State* stored) override;
  size_t last_message_bytes() const override {
    return body_read_.stream ? 0 : codec_.pending_bytes();
  }

 private:
  // `prompt`: its index in the request.
  absl::StatusOr<GenerationRequest> DecodePrompt(size_t prompt, const ServedModel& model,
                                                 const LimitsConfig& limits);
  // The state of one answer that the client receives.
  struct Choice {
    bool echoed = false;  // its prompt has been taken
    CompletionLogprobs logprobs;
    std::optional<SampledToken> end;  // Outcome::end_token; constant once the end can be taken
  };
  using SharedScores = std::shared_ptr<const v1::ScoreChunk>;
  // Take moves this out. An event is made from it without the lock, because that can take a long
  // time and the engine's thread needs the lock.
  struct Taken {
    v1::GenerateResponse part;
    SharedScores echo;  // not null if the prompt is to be repeated before `part`
  };

  // Returns the prompt that the answer repeats (`echo`), or an empty one.
  const v1::Prompt& Prompt(uint32_t sequence) const;
  // Whether the client wants the log-probabilities of the prompt. REQUIRES: Decode was called.
  bool ScoresPrompt() const { return body_read_.logprobs && started_.front().has_prompt(); }
  // Several answers to a single prompt share its scores, which the first one has. Each answer to
  // one of several prompts has its own.
  bool SharesScores() const { return sequences_ > 1 && sequences_ == codec_.sequences(); }
  // How often the engine counts each prompt. Each answer to one of several prompts reads its own
  // copy.
  uint32_t copies() const { return SharesScores() ? 1 : codec_.sequences(); }
  // The bytes, about, that `pending` bytes on the wire take in memory or as text.
  size_t TextBytes(size_t pending) const;
  OrderedJson Envelope(bool chunk) const;
  void AppendChoice(uint32_t index, const v1::CompleteResponse& response, std::string& json);
  // Appends the log-probabilities of these tokens of the answer, after those that were added
  // before; null if the client does not want them. `ended`: these tokens are the last ones.
  void AppendLogprobs(uint32_t index, const TokenIdList& ids, const LogprobList& logprobs,
                      bool ended, std::string& json);
  // Add the repeated prompt, or the token that ended the answer, to the choice's logprobs. The
  // latter is not part of the answer, but OpenAI's echo has it.
  void AddPrompt(uint32_t index, const v1::ScoreChunk& scores);
  void AddEnd(uint32_t index);
  // Returns the scores of the prompt, which may be empty, if the next event of the answer is to
  // repeat the prompt; null otherwise.
  SharedScores TakeEcho(uint32_t index);
  // Appends the event that repeats the prompt.
  void AppendEcho(uint32_t index, const v1::ScoreChunk& scores, std::string& text);
  // These two append an event with one choice, except for its log-probabilities, which come between
  // them. There is an event for each token, and making it from JSON objects would take most of the
  // time of the thread that all connections share.
  void OpenEvent(uint32_t index, absl::string_view content, std::string& text) const;
  void CloseEvent(absl::string_view reason, std::string& text) const;
  const char* EventEnd() const;
  std::string Text(const std::string& text) const;  // the content of an event
  void AppendEnd(uint32_t index, v1::FinishReason reason, std::string& text);
  std::string EventsOf(const Taken& taken);

  const bool chat_;
  const int64_t created_;  // seconds since 1970
  GenerationBody body_read_;
  bool is_read_ = false;  // whether body_read_ is set
  CompleteCodec codec_;
  std::vector<v1::Started> started_;  // one for each prompt
  std::string model_;
  std::string event_head_;  // the beginning of every event
  // Chat's event with the role. It leaves together with the first token: until then a request that
  // fails can have the HTTP status of its error, and load tools take the first event for a token.
  std::string first_event_;
  std::shared_ptr<const Tokenizer> tokenizer_;
  uint32_t sequences_ = 1;
  std::vector<Choice> choices_;  // one for each sequence
  SharedScores shared_scores_;   // kept until every answer that shares them has repeated the prompt
  size_t shared_bytes_ = 0;      // of shared_scores_, on the wire
  uint32_t echoes_ = 0;          // number of answers for which shared_scores_ were taken
  std::optional<Taken> taken_;   // the next outgoing() is made from it
};

}  // namespace aft::server::openai
