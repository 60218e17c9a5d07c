#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "aft/v1/inference.pb.h"
#include "base/status_macros.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/resume_codec.h"
#include "server/api/aft/score_codec.h"
#include "server/api/aft/token_codec.h"
#include "server/call/exchange.h"

namespace aft::server {

// How many bytes of memory a byte of an aft.v1 message can become: itself, a parsed token of four
// bytes, and a token of a prompt of four bytes.
inline constexpr size_t kBytesPerRequestByte = 9;

// The base of the exchanges of all methods of aft.v1.
template <typename Codec>
class AftExchange : public Exchange {
 public:
  Method method() const final { return Codec::kMethod; }
  size_t RequestCost(const RequestBytes& bytes) const final {
    return kBytesPerRequestByte * bytes.size();
  }
  google::protobuf::Message& request() final { return *request_; }
  ModelName model_name() const final {
    return {"model", request_->model(), "model_version", request_->model_version()};
  }
  void Prepare() final { request_.reset(); }
  const google::protobuf::MessageLite& outgoing() final { return outgoing_; }

 protected:
  std::unique_ptr<typename Codec::Request> request_ = std::make_unique<typename Codec::Request>();
  typename Codec::Response outgoing_;
};

// A method that an engine serves. Its Codec knows what differs between methods:
//   Request, Response           its messages; a Response is started, a part, or finished
//   Part                        what the engine hands over
//   kMethod, IsServedBy(model)  its name; whether a model with a tokenizer serves it
//   Decode(message, limits, model, started)
//                               returns the engine's request, checked; fills `started` except for
//                               the model. INVALID_ARGUMENT begins with the path of the bad field
//   sequences()                 the number of sequences that the request asks for
//   ExpectSequences(sequences)  makes room for their pending parts
//   Append(part, sequence)      adds to what is pending
//   AppendFinished(outcome, sequence, state)
//                               adds the sequence's last message after its pending parts
//   pending_bytes()             the size of what is pending on the wire, about
//   held_bytes()                its size in memory, about
//   Take(response)              moves some or all of what is pending; false: nothing is pending
//   kept_tokens(request)        the number of tokens that the engine keeps
//   Drop()                      drops what is pending
//   Finish(outcome, finished)   REQUIRES: outcome.status is OK
// Several sequences are several answers to one prompt (GenerateCodec), or several texts
// (CallTexts). A unary method's Codec never has a part to Take, and has TakeAnswers instead of
// Finish (CompleteCodec).
template <typename Codec>
class TypedExchange final : public AftExchange<Codec> {
 public:
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override {
    if (model.tokenizer == nullptr || !Codec::IsServedBy(model)) {
      return WrongTask(model, Codec::kMethod);
    }
    started().set_model(model.config.name);
    started().set_model_version(model.config.version);
    AFT_ASSIGN_OR_RETURN(auto request, codec_.Decode(*this->request_, limits, model, started()));
    DecodedRequest decoded;
    decoded.sequences = sequences_ = codec_.sequences();
    decoded.bytes =
        codec_.kept_tokens(request) * sizeof(TokenId) + (decoded.sequences - 1) * kSequenceBytes;
    codec_.ExpectSequences(decoded.sequences);
    if constexpr (kGenerates) {
      request.survival.resumable = this->request_->resumable();
      decoded.work = std::move(request);
    } else {
      decoded.work = codec_.Split(std::move(request));
    }
    return decoded;
  }
  Continuation continuation() const override {
    Continuation continuation;
    const typename Codec::Request& request = *this->request_;
    if constexpr (requires { request.previous(); }) {
      if (request.has_previous()) continuation.previous = &request.previous();
      if (request.has_store()) continuation.store = &request.store();
    }
    if constexpr (requires { request.resume(); }) {
      if (request.has_resume()) continuation.resumes = request.resume().fingerprint();
    }
    if constexpr (kGenerates) {
      if (request.has_resume()) continuation.resume = &request.resume();
    }
    return continuation;
  }
  std::string TextPath(uint32_t text) const override {
    return kGenerates ? "" : absl::StrCat("texts[", text, "]");
  }
  bool SetExact(const Work& work, const ModelInfo& info) override {
    if constexpr (kGenerates) {
      const v1::Resume& resume = this->request_->resume();
      const auto& request = std::get<GenerationRequest>(work);
      started().set_exact(IsExact(resume, started().numerics(), info, request));
      // No other server computes this stream's bits if another kind of server began its state.
      if (request.start != nullptr && resume.numerics() != started().numerics()) {
        started().clear_numerics();
      }
    }
    if constexpr (requires { started().exact(); }) return started().exact();
    return false;
  }
  bool resumable() const override {
    if constexpr (kGenerates) return this->request_->resumable();
    return false;
  }
  void SetResumeId(const std::string& id) override {
    if constexpr (kGenerates) started().set_resume_id(id);
  }

  bool streams() const override { return !kUnary; }
  bool has_first_message() const override { return !kUnary; }
  using Exchange::Append;
  void Append(typename Codec::Part part, uint32_t sequence) override {
    codec_.Append(std::move(part), sequence);
  }
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state) override {
    codec_.AppendFinished(outcome, sequence, state);
  }
  bool Take(std::string& state) override {
    if (!codec_.Take(this->outgoing_)) return false;
    if constexpr (requires { this->outgoing_.finished().state(); }) {
      if (this->outgoing_.has_finished()) state = this->outgoing_.finished().state().id();
    }
    return true;
  }
  void Drop() override { codec_.Drop(); }
  size_t pending_bytes() const override { return codec_.pending_bytes(); }
  size_t held_bytes() const override { return codec_.held_bytes(); }
  absl::string_view too_much() const override {
    return kUnary ? "the answer is larger than max_stream_buffer_bytes: ask for less (n, "
                    "stop.max_tokens, output.top_logprobs), or use Generate, which streams it"
                  : Exchange::too_much();
  }

  void SetHandOver(std::string chunk) override {
    if constexpr (requires { this->outgoing_.mutable_hand_over(); }) {
      this->outgoing_.mutable_hand_over()->set_chunk(std::move(chunk));
    }
  }
  bool Finish(const Outcome& outcome, const v1::State* stored) override {
    if constexpr (kUnary) {
      if (sequences_ == 1) codec_.AppendFinished(outcome, 0, stored);
      codec_.TakeAnswers(this->outgoing_);
      return true;
    } else {
      if (sequences_ > 1) return false;  // AppendFinished has added the last message of each
      auto& finished = *this->outgoing_.mutable_finished();
      codec_.Finish(outcome, finished);
      if constexpr (requires { finished.mutable_state(); }) {
        if (stored != nullptr) *finished.mutable_state() = *stored;
      }
      return true;
    }
  }
  size_t last_message_bytes() const override { return kUnary ? codec_.pending_bytes() : 0; }

 private:
  static constexpr bool kGenerates = std::derived_from<Codec, GenerateCodec>;
  static constexpr bool kUnary = std::same_as<Codec, CompleteCodec>;

  auto& started() { return *this->outgoing_.mutable_started(); }

  Codec codec_;
  uint32_t sequences_ = 1;
};

// A method that a thread of the decode pool answers, without an engine. Its Codec has Request,
// Response, kMethod and
//   Answer(message, limits, model)   returns the response or an error
template <typename Codec>
class AnswerExchange final : public AftExchange<Codec> {
 public:
  bool needs_engine() const override { return false; }
  absl::StatusOr<DecodedRequest> Decode(const ServedModel& model,
                                        const LimitsConfig& limits) override {
    AFT_ASSIGN_OR_RETURN(this->outgoing_, Codec::Answer(*this->request_, limits, model));
    held_bytes_ = this->outgoing_.SpaceUsedLong() + this->outgoing_.ByteSizeLong();
    this->Prepare();
    return DecodedRequest();
  }
  void Drop() override {}
  size_t held_bytes() const override { return held_bytes_; }
  bool Finish(const Outcome& /*outcome*/, const v1::State* /*stored*/) override { return true; }

 private:
  size_t held_bytes_ = 0;
};

}  // namespace aft::server
