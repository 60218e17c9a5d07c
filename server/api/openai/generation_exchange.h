#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "model/api/tokenizer.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/openai/generation_request.h"
#include "server/api/openai/json_exchange.h"

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
  bool has_first_message() const override { return body_read_.stream && chat_; }
  using Exchange::Append;
  void Append(TokenDelta delta, uint32_t sequence) override {
    codec_.Append(std::move(delta), sequence);
  }
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state) override {
    codec_.AppendFinished(outcome, sequence, state);
  }
  bool Take(std::string& state) override;
  void Drop() override { codec_.Drop(); }
  size_t pending_bytes() const override { return codec_.pending_bytes(); }
  size_t held_bytes() const override { return codec_.held_bytes(); }
  absl::string_view too_much() const override;
  bool Finish(const Outcome& outcome, const v1::State* stored) override;
  size_t last_message_bytes() const override {
    return body_read_.stream ? 0 : codec_.pending_bytes();
  }

 private:
  // `prompt`: its index in the request.
  absl::StatusOr<GenerationRequest> DecodePrompt(size_t prompt, const ServedModel& model,
                                                 const LimitsConfig& limits);
  // Returns the prompt that the answer repeats (`echo`), or "".
  const std::string& Prompt(uint32_t sequence) const;
  OrderedJson Envelope(bool chunk) const;
  OrderedJson Choice(uint32_t index, const std::string& text,
                     const google::protobuf::RepeatedField<uint32_t>& ids,
                     const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) const;
  OrderedJson Logprobs(const google::protobuf::RepeatedField<uint32_t>& ids,
                       const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs) const;
  // Makes an event with one choice from pieces of JSON text. There is one for each token, and
  // making it from JSON objects would take most of the time of the thread that all connections
  // share.
  std::string EventOf(uint32_t index, absl::string_view content, absl::string_view logprobs,
                      absl::string_view reason) const;
  std::string Text(const std::string& text) const;  // the content of an event
  std::string EndEvent(uint32_t index, v1::FinishReason reason) const;
  std::string Token(uint32_t id) const;

  const bool chat_;
  const int64_t created_;  // seconds since 1970
  GenerationBody body_read_;
  CompleteCodec codec_;
  std::vector<v1::Started> started_;  // one for each prompt
  std::string model_;
  std::string event_head_;  // the beginning of every event
  std::shared_ptr<const Tokenizer> tokenizer_;
  uint32_t sequences_ = 1;
  std::vector<bool> echoed_;  // for each sequence: its prompt has been sent
};

}  // namespace aft::server::openai
