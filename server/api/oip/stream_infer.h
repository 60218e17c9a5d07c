#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/oip/statistics.h"
#include "server/call/call.h"
#include "server/transport/active_calls.h"
#include "server/transport/transport_environment.h"

namespace aft::server::oip {

using BidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// ModelStreamInfer: one stream of requests, each of which is a Call. They run in parallel. The
// responses of each request come in order. Requests to decoupled models (language models) take
// turns; all others are answered in the order in which they came, as Triton does it. There is a
// response for each token, unless the client falls far behind. At most one read and one write are
// outstanding. The stream is not read while kMostRequests are unanswered, including refused ones.
// This, max_stream_buffer_bytes and the ledger bound what it holds. ActiveCalls owns it until gRPC
// is done with it.
class StreamInfer final : public BidiReactor,
                          public ActiveCall,
                          public Carrier,
                          public OpenStream,
                          public Sender::Source,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  static constexpr size_t kMostRequests = 128;

  static BidiReactor* Start(TransportEnvironment& transport, InferenceEnvironment& inference,
                            Statistics& statistics, grpc::CallbackServerContext& context);

  StreamInfer(TransportEnvironment& transport, InferenceEnvironment& inference,
              Statistics& statistics, grpc::CallbackServerContext& context);

  void Wake(Call& call) override;
  void WakeLater(Call& call) override;
  absl::Status Serialize(const google::protobuf::MessageLite& message) override;
  void EndWhenIdle(const absl::Status& status) override;

  // These run on gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Admit();
  // Starts a read, unless one is under way or must wait.
  void ReadOn();
  // Ends the stream with `status` once its calls have ended. They are cancelled with `why`.
  void Abort(const absl::Status& status, const absl::Status& why);
  // Calls Pump, unless another thread has set `writing_`.
  void WakeStream();
  // Notes that `call` may have something to send. Returns whether the caller has to call Pump: it
  // has set `writing_`.
  bool TakeTurn(Call& call);
  // Later requests need not wait for the answer to `call` any more: its model is decoupled, or it
  // is answered. Returns whether another call has its turn because of that. REQUIRES: `call` has
  // had no turn, or is the first in order_.
  bool LeaveOrder(Call& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Send() override { Pump(); }
  void Fail(const absl::Status& why) override { Abort(why, why); }
  // Starts the next write or the end of the stream, or resets `writing_`. REQUIRES: the caller has
  // set `writing_`.
  void Pump();
  // Sends the next message of `call`. Returns false if no write has begun.
  bool SendNext(const std::shared_ptr<Call>& call);
  // Starts to write outgoing(), or the error of the call. Returns false if no write has begun.
  bool Write(const std::shared_ptr<Call>& call);
  std::vector<std::shared_ptr<Call>> calls() const;
  void OnStuck(Duration waited) override;
  void OnRevoked(const absl::Status& why) override { Abort(why, why); }
  // Each request needs its own model. Later requests use the new record of the client.
  void OnClient(const std::shared_ptr<const Client>& client) override;

  TransportEnvironment& transport_;
  InferenceEnvironment& inference_;
  Statistics& statistics_;
  // The size on the wire of responses that the client has not read, about.
  const std::shared_ptr<std::atomic<size_t>> unread_ = std::make_shared<std::atomic<size_t>>(0);
  // Set by Admit, then constant.
  Caller caller_;  // of every request; its client is that at the beginning
  bool end_on_error_ = false;

  grpc::ByteBuffer incoming_;  // used by the read under way, and by the thread that ends it
  bool began_ = false;         // a request has been read; used like incoming_
  // Only the thread that set `writing_` uses these: the response under way, and the call to which
  // it belongs and which is charged for it.
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<Call> sent_;
  bool sent_last_ = false;  // the last response of its request

  mutable Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;    // set until Start calls Pump
  bool read_all_ ABSL_GUARDED_BY(mutex_) = false;  // the client has half-closed
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> abort_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_when_idle_ ABSL_GUARDED_BY(mutex_);
  struct Open {
    std::shared_ptr<Call> call;
    bool waits = false;  // has something to send, perhaps; in turns_, if it may send now
  };
  std::unordered_map<Call*, Open> calls_ ABSL_GUARDED_BY(mutex_);  // calls that have not ended
  std::deque<Call*> turns_ ABSL_GUARDED_BY(mutex_);  // calls that may send, as their turns come
  // Calls whose answers leave in this order. A call is here until its model is known to be
  // decoupled, or until it ends.
  std::deque<Call*> order_ ABSL_GUARDED_BY(mutex_);
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server::oip
