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
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "server/call/call_environment.h"
#include "server/call/call_states.h"
#include "server/call/carrier.h"
#include "server/call/decode_pool.h"
#include "server/call/exchange.h"
#include "server/call/outbox.h"
#include "server/call/retry_hint.h"
#include "server/engine/request.h"
#include "server/registry/model_table.h"
#include "server/states/state_access.h"

namespace aft::server {

// What the calls of models share. Outlives them all.
struct InferenceEnvironment : CallEnvironment {
  const ModelTable& registry;
  DecodePool& decoders;
  ClientMetrics& client_metrics;
  StateAccess& states;
  RetryHint retry_hint{};
};

// One request on its way to an engine and back, whatever brought it: an Exchange knows its
// messages, a Carrier its client. The stations, in this order:
//
//   Start     transport's thread   the caller is known
//   Admit                          a place in the model's queue, a charge for the bytes
//   Submit    decode pool          parse, find the model, decode
//             states' thread       find what the request goes on from, keep room for what it leaves
//   Enter     decode pool          charge for what stays, hand over to the engine
//   Begin     engine's thread      the first step holds it: the first message may leave
//   Offer                          a part of the answer
//   End                            a sequence has ended; what it leaves behind is stored first
//   Take      carrier's thread     the next message
//   Conclude                       the last one: final status, access log, metrics
//
// Admit looks at nothing but the caller, the message's size and what the model has room for. A
// request that is refused, or released before it has begun, has sent nothing: its status is all
// that the client gets, so that the client may retry.
//
// Lifetime: the carrier holds the call until its client is served, and the engine holds it as its
// sink: it goes when both are done. Every call ends in Conclude, exactly once.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  Call(InferenceEnvironment& environment, std::unique_ptr<Exchange> exchange,
       std::shared_ptr<Carrier> carrier);

  // ---- For the carrier.

  // Once. `admitted`: an error of the transport's, that ends the call at once. `message` lives as
  // long as the call needs it.
  void Start(Caller caller, absl::Status admitted, std::unique_ptr<RequestBytes> message);

  // What the file of clients says of the client now: the call ends with PERMISSION_DENIED unless it
  // still permits the model. May come before Start.
  void OnClient(std::shared_ptr<const Client> client);
  // The client is gone, or does not read, or may not call any more. `why`: what the call ends with,
  // unless that was the client's deadline. The first one counts; may come before Start.
  void Cancel(const absl::Status& why);

  // Of whoever may send: what is next. kMessage: outgoing() of the exchange; kEnd: the call is
  // over, see ending(). Not to be called again after kEnd.
  using Next = Outbox::Next;
  Next Take();
  // The message of the last Take is with the client, or lost.
  void Written();
  // REQUIRES: Take has returned kEnd.
  const CallEnd& ending() const { return ending_; }
  // The client is served, or gone: nothing is charged any more, and states that it has not heard
  // of go.
  void Close();

  // What Take has made: its outgoing().
  Exchange& exchange() { return *exchange_; }
  const Caller& caller() const { return caller_; }

 private:
  template <typename Part>
  class SequenceSink;

  // ---- The way in.
  absl::Status Admit();
  absl::Status Reserve(const std::string& model);
  // Runs a part of the way in; an error, its own, an exception or that the call is cancelled, ends
  // the call.
  void Attempt(absl::FunctionRef<absl::Status()> part);
  void Refuse(const absl::Status& status);
  absl::Status Submit();
  absl::Status FindUser();
  absl::Status FindModel();
  absl::Status CheckModel() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If the request names no version: goes over to the one of that fingerprint, where there is one.
  // False: nothing has changed.
  bool PreferVersion(uint64_t fingerprint);
  absl::Status Decode();
  // Whether the engine could ever take so many sequences at one time.
  absl::Status CheckSequences() const;
  // Counts a request with a bad field; returns `status`.
  absl::Status Invalid(absl::Status status) const;
  // Counts the error as Invalid does, unless the place of the states is full or cannot be reached.
  absl::Status StateError(absl::Status status) const;
  // Sets what a text before has left behind, for every sequence.
  absl::Status SetPrevious(const std::shared_ptr<const SequenceState>& previous);
  // Keeps room for what is to be stored, and finds where a broken stream continues.
  absl::Status PrepareTurn();
  // Sees that the stream survives this server, if it is to.
  absl::Status PrepareStream();
  absl::Status Enter();
  // The message is gone: charges for what stays of it, and for what is known of the answer.
  absl::Status Charge();
  absl::StatusOr<RequestHandle> Ask();
  // Ends a call that no engine has a part in.
  absl::Status Answer();

  // ---- The engine's side.
  void Begin();
  template <typename Part>
  absl::Status Offer(Part part, uint32_t sequence);
  void End(const Outcome& outcome, uint32_t sequence);
  void Store(Outcome outcome, uint32_t sequence);
  void HandOver(const Outcome& outcome, uint32_t sequence);
  void EndNow(const Outcome& outcome, uint32_t sequence, std::optional<v1::State> stored);
  void CancelAll(RequestHandle first);

  // ---- The way out.
  void Conclude();
  void Report();
  void CountResumed();

  InferenceEnvironment& environment_;
  const std::unique_ptr<Exchange> exchange_;
  const std::shared_ptr<Carrier> carrier_;
  const TimePoint arrival_;

  // Set on the way in, then constant.
  Caller caller_;
  TimePoint deadline_;
  std::unique_ptr<RequestBytes> message_;  // until it is parsed
  std::string user_;                       // of a client that shares its turns by user
  bool names_version_ = false;
  std::string model_name_;           // as requested; once it is found, its own
  ModelMetrics* metrics_ = nullptr;  // of the model that the request names, if there is one
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Reservation> reservation_;  // from Admit to Enter
  DecodedRequest decoded_;                    // until Enter
  uint32_t sequences_ = 1;
  bool stores_if_room_ = false;             // what cannot be stored is no error
  size_t answered_bytes_ = 0;               // of an answer that Submit made itself
  prometheus::Counter* resumed_ = nullptr;  // null once it has counted the stream, which goes on
  bool refused_ = false;
  CallStates states_;
  Outbox outbox_;

  // Of whoever may send.
  std::optional<TimePoint> taken_at_;  // of the message under way
  Duration writing_{};                 // how long messages were under way
  CallEnd ending_;

  mutable Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool found_ ABSL_GUARDED_BY(mutex_) = false;                    // model_name_ is the model's own
};

}  // namespace aft::server
