#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

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

// The objects that all calls of models share. They outlive the calls.
struct InferenceEnvironment : CallEnvironment {
  const ModelTable& registry;
  DecodePool& decoders;
  ClientMetrics& client_metrics;
  StateAccess& states;
  RetryHint retry_hint{};
};

// One request, from its bytes to the last message of its answer. It is independent of the protocol:
// an Exchange knows the messages, and a Carrier delivers them to the client. A call passes these
// stages in this order:
//
//   stage     thread               what happens
//   Start     transport            stores who calls and the unparsed message
//   Admit     transport            takes a place in the model's queue, charges for the message
//   Submit    decode pool          parses the message, finds the model, decodes the request
//             decode pool, states  finds the state to continue from, reserves room to store one
//   Enter     decode pool, states  charges for the decoded request, hands it to the engine
//   Begin     engine               the first step with the request begins: messages may leave now
//   Offer     engine               adds a part of the answer
//   End       engine               ends a sequence, once its state is stored if that was asked for
//   Take      carrier              returns the next message
//   Conclude  carrier              sets the final status, makes the last message
//   Report    carrier              writes the access log, counts metrics
//
// "states" is the thread on which the place of the states answers. It may be the caller's.
//
// Admit looks only at the caller, at the size of the message, and at the room in the model's queue
// and in memory. A request that is refused, or that ends before the engine begins with it, has sent
// no message: the client gets only a status, and may therefore retry.
//
// Lifetime: the carrier holds the call until its client is served. The engine holds it, as its
// sink, until the last sequence has ended. Every call passes Report exactly once.
class Call final : public std::enable_shared_from_this<Call> {
 public:
  Call(InferenceEnvironment& environment, std::unique_ptr<Exchange> exchange,
       std::shared_ptr<Carrier> carrier);

  // ---- Called by the carrier.

  // Is called once. An error in `admitted` comes from the transport and ends the call at once. The
  // call owns `message` and frees it when it is parsed or refused.
  void Start(Caller caller, absl::Status admitted, std::unique_ptr<RequestBytes> message);

  // The file of clients was read again and has `client` for this caller. The call ends with
  // PERMISSION_DENIED unless `client` may still use the model. May be called before Start.
  void OnClient(std::shared_ptr<const Client> client);
  // The client is gone, or does not read, or may not call any more. The call ends with `why`, or
  // with DEADLINE_EXCEEDED if `why` is CANCELLED and the deadline has come. The first call
  // counts. May be called before Start.
  void Cancel(const absl::Status& why);

  // Finds what to send next. kMessage: exchange().outgoing() is to be sent. kEnd: the call is over,
  // see ending(). Only the thread that may send calls this, and never again after kEnd. If there is
  // no memory for the last message, the call ends with that error.
  using Next = Outbox::Next;
  Next Take();
  // The message of the last Take has reached the client, or is lost.
  void Written();
  // REQUIRES: Take has returned kEnd.
  const CallEnd& ending() const { return ending_; }
  // The client is served or gone. Releases all memory that is charged to it, and discards stored
  // states whose ids it has not been told.
  void Close();

  // Its outgoing() is the message of the last Take.
  Exchange& exchange() { return *exchange_; }
  const Caller& caller() const { return caller_; }

 private:
  template <typename Part>
  class SequenceSink;
  // A sequence that has ended, and whose turn is stored before the client learns of the end.
  struct EndedSequence {
    EndedSequence(const Outcome& how, uint32_t number) : outcome(how), sequence(number) {}

    Outcome outcome;
    const uint32_t sequence;
    std::atomic<bool> told{false};  // Stored was called
  };

  // ---- The way in.
  absl::Status Admit();
  absl::Status Reserve(const std::string& model);
  // Sets model_name_ and metrics_. `model`: the requested name, which counts if model_ is null.
  void SetModelName(const std::string& model);
  // Runs one part of the way in. The call is refused if the part fails or throws, or if the client
  // has cancelled.
  void Attempt(absl::FunctionRef<absl::Status()> part);
  void Refuse(const absl::Status& status);
  absl::Status Submit();
  absl::Status FindUser();
  absl::Status FindModel();
  absl::Status CheckModel() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // If the request names no version, switches to the version of the model with that fingerprint.
  // Returns false, and changes nothing, if there is no such other version.
  bool PreferVersion(uint64_t fingerprint);
  // Sets decoded_. The caller counts the errors, because another version may take the request.
  absl::Status Decode();
  // Checks that the engine could ever run all sequences of the call at the same time.
  absl::Status CheckSequences() const;
  // Counts a request with a bad field; returns `status`.
  absl::Status Invalid(absl::Status status) const;
  // Returns the error to tell if a state cannot be used because of `status`: `status` if the place
  // of the states is full or unreachable, because another try may succeed. Else the error of Decode
  // if there is one, or `status`, counted as Invalid does.
  absl::Status StateError(const absl::Status& status,
                          const absl::Status& decoded = absl::OkStatus()) const;
  // Makes every sequence continue from the state in `found`. `decoded` is the result of Decode. If
  // the state switches the version, the request is decoded again, and only the new result counts.
  using Found = absl::StatusOr<std::shared_ptr<const SequenceState>>;
  absl::Status SetPrevious(const Found& found, absl::Status decoded);
  // The version is final. Checks the sequences, reserves room for the states to store, and finds
  // the state where a broken stream continues.
  absl::Status PrepareTurn();
  // Arranges that a resumable stream survives this server.
  absl::Status PrepareStream();
  absl::Status Enter();
  // The message is freed. Charges for what the decoded request keeps, and for the known part of the
  // answer.
  absl::Status Charge();
  absl::StatusOr<RequestHandle> Ask();
  // Ends a call whose answer the exchange has made without an engine.
  absl::Status Answer();

  // ---- The engine's side.
  void Begin();
  template <typename Part>
  absl::Status Offer(Part part, uint32_t sequence);
  void End(const Outcome& outcome, uint32_t sequence);
  // Stores the turn of the sequence, then calls Stored.
  void Store(const std::shared_ptr<EndedSequence>& ended);
  // Ends the sequence. `state`: of its turn, if that was stored. An error is that of the call,
  // unless the request stores only if there is room. Only the first call for a sequence counts.
  void Stored(EndedSequence& ended, absl::StatusOr<std::optional<v1::State>> state);
  void HandOver(const Outcome& outcome, uint32_t sequence);
  void EndNow(const Outcome& outcome, uint32_t sequence, std::optional<v1::State> stored);
  // Cancels all sequences. `first`: as Outbox::Accepted knows it.
  void CancelAll(RequestHandle first);

  // ---- The way out.
  // May throw. An error is that of the last message.
  absl::Status Conclude();
  absl::Status Report();
  void CountResumed() {
    if (auto* const counter = std::exchange(resumed_, nullptr)) counter->Increment();
  }

  InferenceEnvironment& environment_;
  const std::unique_ptr<Exchange> exchange_;
  const std::shared_ptr<Carrier> carrier_;
  const TimePoint arrival_;

  // These are set on the way in, and are constant after that.
  Caller caller_;
  TimePoint deadline_;
  std::unique_ptr<RequestBytes> message_;  // until it is parsed
  std::string user_;                       // of a client that shares its turns by user
  bool names_version_ = false;
  std::string model_name_;           // as requested; the model's own name once it is found
  ModelMetrics* metrics_ = nullptr;  // of the requested model; null if unknown
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Reservation> reservation_;  // from Admit to Enter
  DecodedRequest decoded_;                    // until Enter
  uint32_t sequences_ = 1;
  bool stores_if_room_ = false;             // a state that cannot be stored is no error
  size_t answered_bytes_ = 0;               // size of an answer that Submit made
  prometheus::Counter* resumed_ = nullptr;  // null once the resumed stream is counted
  bool refused_ = false;
  bool too_large_ = false;  // the message is
  CallStates states_;
  Outbox outbox_;

  // Only the thread that may send uses these.
  std::optional<TimePoint> taken_at_;  // when the message under way was taken
  Duration writing_{};                 // how long messages were under way in total
  bool reported_ = false;
  CallEnd ending_;

  mutable Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool found_ ABSL_GUARDED_BY(mutex_) = false;  // model_name_ is the model's own name
};

}  // namespace aft::server
