#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/openai/generation_request.h"
#include "server/api/openai/json_exchange.h"

namespace aft::server::openai {

// Returns the id of the state in which a response is stored; "" if `response_id` is malformed.
std::string StateIdOf(const std::string& response_id);
// Returns the response that was stored with a state, as JSON; "" if the state has no response.
absl::string_view ResponseOf(const SequenceState& state);
// Returns such a response with that id. An import gives it another id than it has.
std::string WithId(absl::string_view response, const std::string& id);

// /v1/responses: one answer to a conversation. It is stored as a state, with the response as the
// state's note. A request that continues it does not read the conversation again.
class ResponsesExchange final : public JsonExchange {
 public:
  explicit ResponsesExchange(std::string id);

  bool streams() const override { return request_.stream; }
  std::string ErrorEvent(const OrderedJson& error) override;

  // ---- Exchange.
  ModelName model_name() const override { return {"model", request_.model, "model_version", ""}; }
  absl::Status CheckRequest() override;
  absl::StatusOr<std::string> TakeUser() override { return std::move(request_.user); }
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override;
  Continuation continuation() const override;
  absl::StatusOr<bool> SetPrevious(const SequenceState& previous) override;
  void SetStateId(const std::string& id) override;
  absl::Status InOwnNames(const absl::Status& status) const override;
  void Prepare() override;
  bool has_first_message() const override { return request_.stream; }
  using Exchange::Append;
  void Append(TokenDelta delta, uint32_t sequence) override;
  bool Take(std::string& state) override;
  // Keeps text_, because Note may be reading it.
  void Drop() override { waiting_.clear(); }
  size_t pending_bytes() const override { return request_.stream ? waiting_.size() : text_.size(); }
  // The last message of a stream contains the text four times.
  size_t held_bytes() const override {
    return waiting_.capacity() + 2 * text_.capacity() + (request_.stream ? 4 : 1) * escaped_;
  }
  absl::string_view too_much() const override;
  std::string Note(const Outcome& outcome) const override;
  bool Finish(const Outcome& outcome, const v1::State* stored) override;
  size_t last_message_bytes() const override { return text_.size(); }

 private:
  // `outcome`: null while the response is in progress.
  OrderedJson Response(const Outcome* outcome, bool stored) const;
  OrderedJson Item(const char* status, bool with_text) const;
  // Returns the fields of an event about the text, and one more field.
  OrderedJson InPart(const char* name, OrderedJson value) const;
  // Adds to outgoing().
  void AddEvent(const char* type, const OrderedJson& fields);

  const int64_t created_;  // seconds since 1970
  GenerationBody request_;
  bool is_read_ = false;  // whether request_ is set
  v1::Previous previous_;
  v1::Store store_;
  bool continues_ = false;  // SetPrevious was called
  std::string stop_;        // the stop string that ended the previous text, and is part of it
  GenerateCodec codec_;
  float temperature_ = 0;
  float top_p_ = 0;
  int32_t max_tokens_ = 0;
  std::string model_;
  size_t note_bytes_ = 0;
  bool stores_ = false;  // room is reserved for its state
  std::string response_id_;
  std::string text_;     // the answer so far
  size_t escaped_ = 0;   // the largest size in bytes of text_ as JSON
  std::string waiting_;  // the end of text_ that no event has contained yet
  int64_t events_ = 0;
};

}  // namespace aft::server::openai
