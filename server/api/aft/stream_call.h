#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "google/protobuf/message.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/admission/memory_ledger.h"
#include "server/call/call_ids.h"
#include "server/call/decode_pool.h"
#include "server/call/retry_hint.h"
#include "server/call/stream_keeper.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"
#include "server/states/state_access.h"
#include "server/transport/call_environment.h"
#include "server/transport/call_metadata.h"

namespace aft::server {

// What the calls of InferenceService share. Outlives them all.
struct InferenceEnvironment : CallEnvironment {
  ModelRegistry& registry;
  DecodePool& decoders;
  ClientMetrics& client_metrics;
  StateAccess& states;
  RetryHint retry_hint{};
};

using CallReactor = grpc::ServerWriteReactor<grpc::ByteBuffer>;

// Whether the method answers with one response, at the end; and whether no engine has a part in it.
constexpr bool IsUnary(Method method) {
  return method == Method::kComplete || method == Method::kTokenize ||
         method == Method::kDetokenize;
}
constexpr bool NeedsNoEngine(Method method) {
  return IsUnary(method) && method != Method::kComplete;
}

// One call of InferenceService: gRPC's reactor on one side; TypedCall, which derives from it, is
// the engine's sink on the other and knows the messages.
//
// The way of a request: Admit, on gRPC's thread, looks at nothing but metadata, the message's size
// and what the model has room for; Submit, on a thread of the decode pool, parses, tokenises and
// hands over to the engine. A request that is refused, or released before it has begun, has sent
// nothing: its status is all that the client gets (Trailers-Only), so that the client may retry.
//
// At most one operation of a stream may be outstanding, and operations come from two sides (the
// engine's thread, gRPC's). So there is one right to start the next operation, `writing_`: who
// takes it calls Pump, which starts the write or the end of the stream; OnWriteDone pumps on. While
// a write is under way the engine's output collects in what the method keeps pending. An operation
// that gets nowhere, because the client does not read, has the call cancelled (ActiveCall).
//
// A unary method is on the wire a stream of one response, and here as well: nothing leaves before
// the end.
//
// Lifetime: ActiveCalls owns the call from Start to OnDone, and the engine holds it as its sink: it
// goes when both are done. Every call ends in Conclude, exactly once.
class StreamCall : public CallReactor,
                   public ActiveCall,
                   public std::enable_shared_from_this<StreamCall> {
 public:
  // Returns the reactor for gRPC. `message` lives until OnDone, as gRPC promises; it is emptied
  // once it is parsed.
  static CallReactor* Start(const std::shared_ptr<StreamCall>& call,
                            const grpc::ByteBuffer& message);

  // On gRPC's threads.
  void OnWriteDone(bool ok) final;
  void OnCancel() final;
  void OnDone() final;

 protected:
  // `context` lives until OnDone, as gRPC promises.
  StreamCall(Method method, InferenceEnvironment& environment,
             grpc::CallbackServerContext& context);

  // What a method adds.

  // From the message to the engine's acceptance, or to FindPrevious; leaves the first message of
  // the stream in outgoing().
  virtual absl::Status Submit(const grpc::ByteBuffer& message) = 0;
  // The message to write; of whoever has the right to write.
  virtual const google::protobuf::MessageLite& outgoing() const = 0;
  // Moves what is pending, or a part of it, to outgoing(). False: nothing is.
  virtual bool TakePending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual void DropPending() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // About: on the wire, and in memory.
  virtual size_t pending_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  virtual size_t held_bytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;
  // Makes outgoing() a HandOver.
  virtual void SetHandOver(std::string chunk) = 0;
  // Makes outgoing() the last message of the stream; of a unary method, the only one, for all
  // sequences. REQUIRES: outcome.status is OK.
  virtual void SetFinished(const Outcome& outcome) = 0;
  // The last message of one of several sequences, behind what is pending of it.
  virtual void AppendFinished(const Outcome& outcome, uint32_t sequence, const v1::State* state)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) = 0;

  // For Submit, in this order.

  // Frees the bytes.
  absl::Status Parse(const grpc::ByteBuffer& bytes, google::protobuf::Message& message);
  absl::Status FindModel(const std::string& name, const std::string& version);
  // If the request names no version: goes over to the one of that fingerprint, where there is one.
  // False: nothing has changed.
  bool PreferVersion(uint64_t fingerprint);
  const ServedModel& model() const { return *model_; }
  const Client& client() const { return *client_; }
  const LimitsConfig& limits() const { return environment_.limits; }
  // The model serves other methods: FAILED_PRECONDITION.
  absl::Status WrongTask();
  // Counts a request with a bad field; returns `status`.
  absl::Status Invalid(absl::Status status);
  // Once a version is chosen, before anything is computed from the numbers of `previous`.
  absl::Status CheckPrevious(const TurnRequest& request);
  // Finds what the request goes on from, null: nothing, and then does the rest of Submit: at once,
  // or when the place where states rest has answered. What happens then is no matter of the caller.
  // `rest` keeps `previous` and `request` alive.
  void FindPrevious(const v1::Previous* previous, TurnRequest& request,
                    std::function<absl::Status()> rest);
  // The call ends when so many sequences have. `possible`: why they can never be accepted, or run,
  // at one time; it is returned.
  absl::Status ExpectSequences(uint32_t sequences, absl::Status possible);
  // Keeps places for what the sequences leave behind; null: nothing. `texts` and `most_outputs`:
  // tokens of each sequence, and that may come.
  absl::Status KeepPlaces(const v1::Store* store, const std::vector<size_t>& texts,
                          int64_t most_outputs, TurnRequest& request);
  // Finds a state that the stream left behind, and then does the rest of Submit, as FindPrevious.
  // It is no error that there is none.
  void FindStart(const v1::Resume& resume, GenerationRequest& request,
                 std::function<absl::Status()> rest);
  // The request goes on with a stream: it counts as one that does so.
  void Resumes(bool exact, bool from_state);
  // When the engine begins with it, or at its end, if there is nothing to begin with.
  void CountResumed();
  // The stream is to survive this server, if its client can resume it; fills what Started says of
  // that.
  void Survive(const v1::GenerateRequest& message, GenerationRequest& request,
               v1::Started& started);
  // Ends Submit, and the call, with outgoing(). REQUIRES: NeedsNoEngine.
  absl::Status Answer();
  // The message is parsed and gone; of it, `tokens` stay. RESOURCE_EXHAUSTED: there is no room for
  // them, or for what is held of the answer already.
  absl::Status Fill(RequestHeader& header, size_t tokens);
  // Ends Submit with what the engine said.
  absl::Status Accepted(const absl::StatusOr<RequestHandle>& handle);

  // For the sink, on the engine's thread.

  // The first message may leave; of several sequences, with the first that begins.
  void Begin();
  // Lets `append` add to what is pending. RESOURCE_EXHAUSTED: too much is unsent; what was pending
  // is gone.
  absl::Status Offer(absl::FunctionRef<void()> append);
  // The outcome ends the sequence, once what it leaves behind is stored, on a thread of the decode
  // pool; and the stream with the last sequence. Where one fails, the others are cancelled.
  void End(const Outcome& outcome, uint32_t sequence = 0);

  // For SetFinished: what was stored; null: nothing.
  const v1::State* stored() const { return stored_.has_value() ? &*stored_ : nullptr; }
  // The client learns of that state before the end of the call.
  void StateLeaves(const std::string& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;  // guards what is pending

 private:
  absl::Status Admit(const grpc::ByteBuffer& message);
  absl::Status Reserve(const std::string& model);
  // Does a part of Submit; an error, its own, an exception or that the call is cancelled, ends it.
  void Attempt(absl::FunctionRef<absl::Status()> part);
  void Refuse(absl::Status status);
  // What is charged follows what is held, and so does the metric. False: there is no room.
  bool Recharge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Serialises outgoing() into outgoing_bytes_.
  absl::Status Serialize();
  // Starts the next operation, or gives the right back. REQUIRES: the caller took `writing_`.
  void Pump();
  // Ends the stream, after the access log and the counters. REQUIRES: as Pump; never given back.
  void Conclude(Outcome outcome);
  void OnStuck(Duration waited) final;
  void OnRevoked(const absl::Status& why) final;
  void Report(const Outcome& outcome);
  // What the call ends with: the outcome's, unless that only says that it was cancelled.
  absl::Status FinalStatus(const Outcome& outcome) const;
  void Store(Outcome outcome, uint32_t sequence);
  void EndNow(const Outcome& outcome, uint32_t sequence, std::optional<v1::State> stored);
  void CancelAll(RequestHandle first);
  void HandOver(const Outcome& outcome, uint32_t sequence);
  // Makes outgoing() the next part of hand_over_. False: there is none.
  bool TakeHandOver() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ForgetKept(absl::StatusCode code, bool begun);
  // Invalid, unless that what states rest in has no room, or is not there.
  absl::Status StateError(absl::Status status);

  // Whether the sequences are texts.
  bool HasTexts() const {
    return sequences_ > 1 && (method_ == Method::kScore || method_ == Method::kEncode);
  }

  const Method method_;
  const bool unary_;
  InferenceEnvironment& environment_;
  const TimePoint arrival_;
  const TimePoint deadline_;
  // Set by Admit and Submit, then constant.
  CallIds ids_;
  std::shared_ptr<const Client> client_;
  std::string model_name_;  // as requested; once it is found, its own
  bool names_version_ = false;
  ModelMetrics* metrics_ = nullptr;  // of the model that the request names, if there is one
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Reservation> reservation_;  // from Admit to Fill
  prometheus::Counter* resumed_ = nullptr;    // null once it has counted the stream, which goes on
  std::string found_id_;                      // under which a state was found
  std::shared_ptr<StreamKeeper> keeper_;      // null: the stream leaves nothing behind
  bool hands_to_client_ = false;              // what it leaves behind at a drain
  size_t kept_bytes_ = 0;                     // that the keeper may hold
  size_t previous_bytes_ = 0;                 // of a state that the request brought
  uint32_t sequences_ = 1;                    // that the engine is asked for
  std::vector<StateAccess::Place> places_;    // of the states that are to be stored, or none
  std::optional<v1::State> stored_;           // set before outcome_; of a single sequence

  size_t answer_bytes_ = 0;          // that Submit made itself
  grpc::ByteBuffer outgoing_bytes_;  // of whoever has the right to write

  bool refused_ = false;                         // set before Conclude
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;  // until Fill, Start and Decode have it
  enum class First { kKept, kMayLeave, kSent } first_ ABSL_GUARDED_BY(mutex_) = First::kKept;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  TimePoint cancelled_at_ ABSL_GUARDED_BY(mutex_);
  absl::Status revoked_ ABSL_GUARDED_BY(mutex_);  // why, once the client may not call any more
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
  size_t request_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of charge_
  size_t sending_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of charge_: of the write under way
  GaugePart undelivered_ ABSL_GUARDED_BY(mutex_);     // of what is pending and being sent
  std::optional<RequestHandle> handle_ ABSL_GUARDED_BY(mutex_);  // of the first sequence
  uint32_t ended_ ABSL_GUARDED_BY(mutex_) = 0;                   // sequences
  bool told_all_ ABSL_GUARDED_BY(mutex_) = false;    // a unary call ends with its response
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;      // a sequence has: nothing is taken any more
  Outcome total_ ABSL_GUARDED_BY(mutex_);            // of several sequences, those that have ended
  std::string failed_text_ ABSL_GUARDED_BY(mutex_);  // of several: "texts[3]: ", by a defect
  uint64_t computed_tokens_ ABSL_GUARDED_BY(mutex_) = 0;  // of all sequences
  // States that are stored, and whose Finished has not left.
  std::vector<std::string> unknown_states_ ABSL_GUARDED_BY(mutex_);
  std::optional<Outcome> outcome_ ABSL_GUARDED_BY(mutex_);
  std::string hand_over_ ABSL_GUARDED_BY(mutex_);  // sealed; set before outcome_
  size_t handed_over_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace aft::server
