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

namespace aft::server::kserve {

using BidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// ModelStreamInfer: one stream of requests, each a Call, which run side by side, and their
// responses: of each request in order, of all in turn, one for each token unless the client falls
// far behind. At most one read and one write are outstanding. It reads no further while
// kMostRequests have not been answered, refusals included, so what it holds is bounded by that, by
// max_stream_buffer_bytes and by the ledger. ActiveCalls owns it until gRPC is done with it.
class StreamInfer final : public BidiReactor,
                          public ActiveCall,
                          public Carrier,
                          public OpenStream,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  static constexpr size_t kMostRequests = 128;

  static BidiReactor* Start(TransportEnvironment& transport, InferenceEnvironment& inference,
                            Statistics& statistics, grpc::CallbackServerContext& context);

  StreamInfer(TransportEnvironment& transport, InferenceEnvironment& inference,
              Statistics& statistics, grpc::CallbackServerContext& context);

  void Wake(Call& call) override;
  void EndWhenIdle(const absl::Status& status) override;

  // On gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Admit();
  // Starts a read, unless one is under way or must wait.
  void ReadOn();
  // Ends the stream with `status`, once its calls have ended; they are cancelled for `why`.
  void Abort(const absl::Status& status, const absl::Status& why);
  // Whoever wants the next operation: Pump, if nobody is at it.
  void WakeStream();
  // Starts the next write, or the end of the stream, or gives the right back. REQUIRES: the caller
  // took `writing_`.
  void Pump();
  // Sends what `call` has, if it has anything. False: no write has begun.
  bool SendNext(const std::shared_ptr<Call>& call);
  bool Write(const std::shared_ptr<Call>& call);
  std::vector<std::shared_ptr<Call>> calls() const;
  void OnStuck(Duration waited) override;
  void OnRevoked(const absl::Status& why) override { Abort(why, why); }
  // Each request needs its own model; those to come go by the new record.
  void OnClient(const std::shared_ptr<const Client>& client) override;

  TransportEnvironment& transport_;
  InferenceEnvironment& inference_;
  Statistics& statistics_;
  // Of responses that the client has not read, on the wire, about.
  const std::shared_ptr<std::atomic<size_t>> unread_ = std::make_shared<std::atomic<size_t>>(0);
  // Set by Admit, then constant.
  Caller caller_;  // of every request; its client is the one of the beginning
  bool end_on_error_ = false;

  grpc::ByteBuffer incoming_;  // of the read under way, and of who ends it
  // Of whoever has the right to write: the response under way, and whose it is, which bears its
  // bytes.
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<Call> sent_;
  bool sent_last_ = false;  // it is the last one of its request

  mutable Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;    // Start takes the right, for its metadata
  bool read_all_ ABSL_GUARDED_BY(mutex_) = false;  // the client has half-closed
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> abort_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_when_idle_ ABSL_GUARDED_BY(mutex_);
  struct Open {
    std::shared_ptr<Call> call;
    bool waits = false;  // in turns_
  };
  std::unordered_map<Call*, Open> calls_ ABSL_GUARDED_BY(mutex_);  // that are to be answered
  std::deque<Call*> turns_ ABSL_GUARDED_BY(mutex_);  // those that may have something to send
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace aft::server::kserve
