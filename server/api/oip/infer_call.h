#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "inference/grpc_service.pb.h"
#include "server/admission/memory_ledger.h"
#include "server/api/aft/stream_call.h"
#include "server/api/oip/answer.h"
#include "server/api/oip/request.h"
#include "server/api/oip/statistics.h"
#include "server/call/call_ids.h"
#include "server/engine/request.h"
#include "server/registry/model_registry.h"
#include "server/transport/call_metadata.h"

namespace aft::server::kserve {

// What the calls of inference.GRPCInferenceService share. Outlives them all.
struct InferEnvironment : InferenceEnvironment {
  Statistics& statistics;
};

class InferCall;

// Brings the responses of requests to their client.
class Carrier {
 public:
  virtual ~Carrier() = default;

  // A part of the answer of a call that streams; on the engine's thread. RESOURCE_EXHAUSTED: too
  // much is unread.
  virtual absl::Status SendToken(std::shared_ptr<InferCall> call, TokenDelta delta) = 0;

  // The call has ended, and gets its last response or its error. Once for every call.
  virtual void SendEnd(std::shared_ptr<InferCall> call) = 0;
};

// Who sent a request, and what its call says of it.
struct Caller {
  CallIds ids;  // of the call
  std::string peer;
  std::shared_ptr<const Client> client;
  TimePoint deadline;  // of the call
};

// One request of ModelInfer or ModelStreamInfer: what StreamCall is to the methods of aft.v1, with
// the same way to the engine, but without a stream of its own: its responses go to a Carrier. The
// engine takes all sequences of an encoder's request, or none; the first that fails ends the
// others.
class InferCall final : public TokenSink, public std::enable_shared_from_this<InferCall> {
 public:
  InferCall(Method method, InferEnvironment& environment, Caller caller,
            std::shared_ptr<Carrier> carrier);

  // Takes a place for the request and has it decoded on a thread of the decode pool.
  void Start(grpc::ByteBuffer message);

  // The carrier has lost its client. `why`: what this ends with, unless that was its deadline.
  void Cancel(const absl::Status& why);
  // What the file of clients says of the client now: the request ends with PERMISSION_DENIED,
  // unless its model is still permitted.
  void OnClient(std::shared_ptr<const Client> client);

  // For the carrier, from one thread at a time.

  // The response of a token.
  void WriteToken(const TokenDelta& delta, inference::ModelInferResponse& response);
  // After SendEnd. False: there is no last response. REQUIRES: status() is OK.
  bool WriteEnd(inference::ModelInferResponse& response);
  // After SendEnd.
  const absl::Status& status() const { return outcome_.status; }
  const std::string& id() const { return id_; }  // that the request gave itself
  const std::string& call_id() const { return caller_.ids.request; }
  // When to try a refused request again; nullopt: it was not refused for want of room.
  std::optional<int64_t> RetryAfterMs() const;

  // Sink of a language model, on the engine's thread.
  void OnStarted() override { begun_ = true; }
  absl::Status OnPart(TokenDelta delta) override;
  void OnFinished(const Outcome& outcome) override { Settle(outcome); }

 private:
  class RowSink;

  absl::Status Admit();
  absl::Status Reserve(const std::string& model);
  void Decode();
  // An error: the engine has nothing of it.
  absl::Status Submit();
  absl::Status FindModel(const inference::ModelInferRequest& message);
  absl::Status CheckModel() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Charge(size_t input_bytes, size_t requests);
  void Fill(RequestHeader& header, std::chrono::microseconds timeout);
  void Accepted(const absl::StatusOr<RequestHandle>& handle);
  void CancelAll(RequestHandle first);
  void Refuse(absl::Status status);
  // One of the engine's requests has ended so.
  void Settle(Outcome outcome);
  void End();
  absl::Status FinalStatus() const;
  void Report();
  void FillNames(inference::ModelInferResponse& response, bool final) const;

  const Method method_;
  InferEnvironment& environment_;
  const Caller caller_;
  const std::shared_ptr<Carrier> carrier_;
  const TimePoint arrival_;

  // Set by Admit and Submit, then constant.
  grpc::ByteBuffer message_;  // until it is parsed
  std::string id_;
  std::string model_name_;           // as requested; once it is found, its own
  ModelMetrics* metrics_ = nullptr;  // of the model that the request names, if there is one
  std::shared_ptr<const ServedModel> model_;
  std::shared_ptr<Reservation> reservation_;  // from Admit to Fill
  size_t requests_ = 0;                       // of the engine, whose handles follow each other
  bool streams_ = false;
  bool empty_final_ = false;

  std::unique_ptr<Answer> answer_;  // of whoever has the call: decode pool, engine, carrier
  MemoryLedger::Charge charge_;     // likewise
  size_t request_bytes_ = 0;        // of charge_
  GaugePart undelivered_;           // of an answer that is gathered
  bool begun_ = false;              // engine's thread, then the carrier's

  mutable Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool found_ ABSL_GUARDED_BY(mutex_) = false;                    // model_name_ is the model's own
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status cancelled_with_ ABSL_GUARDED_BY(mutex_);
  TimePoint cancelled_at_ ABSL_GUARDED_BY(mutex_);
  size_t left_ ABSL_GUARDED_BY(mutex_) = 0;      // the engine's requests that have not ended
  bool failed_ ABSL_GUARDED_BY(mutex_) = false;  // one of them has
  bool refused_ = false;                         // the engine has none of them; set before End
  std::optional<RequestHandle> handle_ ABSL_GUARDED_BY(mutex_);  // of the first
  // Of the first that failed, else of the last one; of all. Constant from End on.
  Outcome outcome_;
  uint64_t computed_tokens_ = 0;
};

}  // namespace aft::server::kserve
