#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aft/v1/inference.grpc.pb.h"
#include "base/status_macros.h"
#include "server/api/aft/answer_call.h"
#include "server/api/aft/complete_codec.h"
#include "server/api/aft/encode_codec.h"
#include "server/api/aft/generate_codec.h"
#include "server/api/aft/resume_codec.h"
#include "server/api/aft/score_codec.h"
#include "server/api/aft/stream_call.h"
#include "server/api/aft/token_codec.h"
#include "server/engine/request.h"

namespace aft::server {

// One call of one method. What differs between methods, their Codec knows:
//   Request, Response           its messages; a Response is started, some part, or finished
//   Part                        what the engine hands over
//   kMethod, kEngine, kAction   its name; the engine of a ServedModel that serves it, and how
//   Decode(message, limits, model, started)
//                               the engine's request, checked; fills what Started says beside the
//                               model. INVALID_ARGUMENT begins with the path of the bad field
//   sequences()                 that the request asks for, each with its parts and its end
//   lengths()                   tokens of the text of each
//   ExpectSequences(sequences)  makes room for what will be pending of them
//   Append(part, sequence)      adds to what is pending
//   AppendFinished(outcome, sequence, state)
//                               the sequence's last message, behind what is pending of it
//   pending_bytes()             of what is pending, on the wire, about
//   held_bytes()                the same in memory
//   Take(response)              moves what is pending, or some of it, out; false: nothing is
//   kept_tokens(request)        that the engine holds
//   Drop()                      forgets it
//   MostOutputs(request)        tokens that may come beside the text; of a TurnRequest
//   Finish(outcome, finished)   REQUIRES: outcome.status is OK
// Several sequences are several answers to one prompt (GenerateCodec), or several texts
// (CallTexts); the call is the sink of the first. A unary method's Codec has no part to Take, and
// TakeAnswers instead of Finish (CompleteCodec).
template <typename Codec>
class TypedCall final : public StreamCall, public Sink<typename Codec::Part> {
 public:
  TypedCall(InferenceEnvironment& environment, grpc::CallbackServerContext& context)
      : StreamCall(Codec::kMethod, environment, context) {}

  // Sink, on the engine's thread.
  void OnStarted() override { Begin(); }
  absl::Status OnPart(typename Codec::Part part) override {
    return Offer([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { codec_.Append(std::move(part)); });
  }
  void OnFinished(const Outcome& outcome) override { End(outcome); }

 private:
  absl::Status Submit(const grpc::ByteBuffer& bytes) override {
    const auto message = std::make_shared<typename Codec::Request>();
    AFT_RETURN_IF_ERROR(Parse(bytes, *message));
    AFT_RETURN_IF_ERROR(FindModel(message->model(), message->model_version()));
    if constexpr (requires { message->resume(); }) {
      if (message->has_resume()) PreferVersion(message->resume().fingerprint());
    }
    auto decoded = Decode(*message);
    AFT_RETURN_IF_ERROR(decoded.status());
    const uint32_t sequences = codec_.sequences();
    if (sequences > 1) {
      AFT_RETURN_IF_ERROR(ExpectSequences(
          sequences, kMayFork
                         ? model().generate->CheckGroup(client(), decoded->service_class, sequences)
                         : model().engine().CheckTexts(client(), sequences)));
    }
    {
      MutexLock lock(mutex_);
      codec_.ExpectSequences(sequences);
    }
    using EngineRequest = typename decltype(decoded)::value_type;
    if constexpr (std::is_base_of_v<TurnRequest, EngineRequest>) {
      const auto request = std::make_shared<EngineRequest>(*std::move(decoded));
      FindPrevious(message->has_previous() ? &message->previous() : nullptr, *request,
                   [this, message, request]() -> absl::Status {
                     if (request->previous != nullptr && PreferVersion(request->previous->model)) {
                       AFT_ASSIGN_OR_RETURN(EngineRequest again, Decode(*message));
                       again.previous = std::move(request->previous);
                       *request = std::move(again);
                     }
                     AFT_RETURN_IF_ERROR(CheckPrevious(*request));
                     AFT_RETURN_IF_ERROR(
                         KeepPlaces(message->has_store() ? &message->store() : nullptr,
                                    codec_.lengths(), Codec::MostOutputs(*request), *request));
                     if constexpr (std::is_same_v<EngineRequest, GenerationRequest>) {
                       return Resumably(message, request);
                     } else {
                       if (message->has_resume()) Resumes(started().exact(), /*from_state=*/false);
                       return Enter(std::move(*request));
                     }
                   });
      return absl::OkStatus();
    } else {
      return Enter(*std::move(decoded));
    }
  }

  // For the model that was found.
  auto Decode(const typename Codec::Request& message) {
    using Decoded = decltype(codec_.Decode(message, limits(), model(), started()));
    const auto& engine = model().*Codec::kEngine;
    if (engine == nullptr || model().tokenizer == nullptr) return Decoded(WrongTask());
    started().set_model(model().config.name);
    started().set_model_version(model().config.version);
    Decoded decoded = codec_.Decode(message, limits(), model(), started());
    return decoded.ok() ? std::move(decoded) : Decoded(Invalid(decoded.status()));
  }

  absl::Status Resumably(const std::shared_ptr<v1::GenerateRequest>& message,
                         const std::shared_ptr<GenerationRequest>& request) {
    const auto enter = [this, message, request] {
      Survive(*message, *request, started());
      return Enter(std::move(*request));
    };
    if (!message->has_resume()) return enter();
    FindStart(message->resume(), *request, [this, message, request, enter] {
      started().set_exact(IsExact(message->resume(), model().info, *request));
      Resumes(started().exact(), /*from_state=*/request->start != nullptr);
      return enter();
    });
    return absl::OkStatus();
  }

  // The end of Submit.
  template <typename EngineRequest>
  absl::Status Enter(EngineRequest request) {
    AFT_RETURN_IF_ERROR(Fill(request, codec_.kept_tokens(request)));
    auto& engine = *(model().*Codec::kEngine);
    const auto self = std::static_pointer_cast<TypedCall>(shared_from_this());
    std::vector<std::shared_ptr<Sink<typename Codec::Part>>> sinks = {self};
    for (uint32_t i = 1; i < codec_.sequences(); ++i) {
      sinks.push_back(std::make_shared<Another>(self, i));
    }
    if constexpr (!kMayFork) {
      return Accepted((engine.*Codec::kAction)(codec_.Split(std::move(request)), sinks));
    } else if (sinks.size() > 1) {
      return Accepted(engine.GenerateGroup(request, sinks));
    } else {
      return Accepted((engine.*Codec::kAction)(std::move(request), self));
    }
  }

  static constexpr bool kMayFork = std::is_base_of_v<GenerateCodec, Codec>;

  // The sink of a sequence behind the first, with which the call starts.
  class Another final : public Sink<typename Codec::Part> {
   public:
    Another(std::shared_ptr<TypedCall> call, uint32_t sequence)
        : call_(std::move(call)), sequence_(sequence) {}

    void OnStarted() override { call_->Begin(); }
    absl::Status OnPart(typename Codec::Part part) override {
      TypedCall& call = *call_;
      return call.Offer([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(call.mutex_) {
        call.codec_.Append(std::move(part), sequence_);
      });
    }
    void OnFinished(const Outcome& outcome) override { call_->End(outcome, sequence_); }

   private:
    const std::shared_ptr<TypedCall> call_;
    const uint32_t sequence_;
  };

  auto& started() { return *outgoing_.mutable_started(); }

  const google::protobuf::MessageLite& outgoing() const override { return outgoing_; }
  bool TakePending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!codec_.Take(outgoing_)) return false;
    if constexpr (requires { outgoing_.finished().state(); }) {
      if (outgoing_.has_finished()) StateLeaves(outgoing_.finished().state().id());
    }
    return true;
  }
  void DropPending() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { codec_.Drop(); }
  size_t pending_bytes() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return codec_.pending_bytes();
  }
  size_t held_bytes() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return codec_.held_bytes();
  }
  void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    codec_.AppendFinished(outcome, sequence, state);
  }
  void SetHandOver(std::string chunk) override {
    if constexpr (requires { outgoing_.mutable_hand_over(); }) {
      outgoing_.mutable_hand_over()->set_chunk(std::move(chunk));
    }
  }
  void SetFinished(const Outcome& outcome) override {
    if constexpr (IsUnary(Codec::kMethod)) {
      MutexLock lock(mutex_);
      if (codec_.sequences() == 1) codec_.AppendFinished(outcome, 0, stored());
      codec_.TakeAnswers(outgoing_);
    } else {
      auto& finished = *outgoing_.mutable_finished();
      codec_.Finish(outcome, finished);
      if constexpr (requires { finished.mutable_state(); }) {
        if (stored() != nullptr) *finished.mutable_state() = *stored();
      }
    }
  }

  Codec codec_;  // what is pending in it is guarded by mutex_
  typename Codec::Response outgoing_;
};

class InferenceService final
    : public v1::InferenceService::WithRawCallbackMethod_Generate<
          v1::InferenceService::WithRawCallbackMethod_Score<
              v1::InferenceService::WithRawCallbackMethod_Encode<v1::InferenceService::Service>>> {
 public:
  // All must outlive the service.
  InferenceService(const CallEnvironment& environment, ModelRegistry& registry,
                   DecodePool& decoders, ClientMetrics& client_metrics, StateAccess& states)
      : environment_{environment, registry, decoders, client_metrics, states} {
    AnswerUnary<TypedCall<CompleteCodec>>("Complete");
    AnswerUnary<AnswerCall<TokenizeCodec>>("Tokenize");
    AnswerUnary<AnswerCall<DetokenizeCodec>>("Detokenize");
  }

  CallReactor* Generate(grpc::CallbackServerContext* context,
                        const grpc::ByteBuffer* request) override {
    return Start<TypedCall<GenerateCodec>>(*context, *request);
  }
  CallReactor* Score(grpc::CallbackServerContext* context,
                     const grpc::ByteBuffer* request) override {
    return Start<TypedCall<ScoreCodec>>(*context, *request);
  }
  CallReactor* Encode(grpc::CallbackServerContext* context,
                      const grpc::ByteBuffer* request) override {
    return Start<TypedCall<EncodeCodec>>(*context, *request);
  }

 private:
  template <typename Call>
  CallReactor* Start(grpc::CallbackServerContext& context, const grpc::ByteBuffer& request) {
    return StreamCall::Start(std::make_shared<Call>(environment_, context), request);
  }

  // gRPC's handler of server-side streams sends what a unary method's client expects: a stream of
  // one response looks the same on the wire. So unary methods have the same calls as the others.
  template <typename Call>
  void AnswerUnary(const char* method) {
    const google::protobuf::MethodDescriptor* const descriptor =
        google::protobuf::DescriptorPool::generated_pool()
            ->FindServiceByName(v1::InferenceService::service_full_name())
            ->FindMethodByName(method);
    MarkMethodRawCallback(
        descriptor->index(),
        new grpc::internal::CallbackServerStreamingHandler<grpc::ByteBuffer, grpc::ByteBuffer>(
            [this](grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
              return Start<Call>(*context, *request);
            }));
  }

  InferenceEnvironment environment_;
};

}  // namespace aft::server
