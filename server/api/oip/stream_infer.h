#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/api/oip/infer_call.h"
#include "server/call/call_ids.h"

namespace aft::server::kserve {

using BidiReactor = grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>;

// ModelStreamInfer: one stream of requests, which run side by side, and their responses, in the
// order in which they came to be, one for each token unless the client falls far behind. At most
// one read and one write are outstanding. It reads no further while kMostRequests have not been
// answered, refusals included, so what it holds is bounded by that, by max_stream_buffer_bytes and
// by the ledger. ActiveCalls owns it until gRPC is done with it.
class StreamInfer final : public BidiReactor,
                          public ActiveCall,
                          public Carrier,
                          public OpenStream,
                          public std::enable_shared_from_this<StreamInfer> {
 public:
  static constexpr size_t kMostRequests = 128;

  static BidiReactor* Start(InferEnvironment& environment, grpc::CallbackServerContext& context);

  StreamInfer(InferEnvironment& environment, grpc::CallbackServerContext& context);

  void EndWhenIdle(const absl::Status& status) override;

  // On gRPC's threads.
  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // What waits to be written: a token, or the end of a call. Of a client that is far behind, a part
  // may be several tokens.
  struct Part {
    std::shared_ptr<InferCall> call;
    std::optional<TokenDelta> token;
    size_t bytes = 0;  // on the wire, about
  };

  absl::Status Admit();
  absl::Status SendToken(std::shared_ptr<InferCall> call, TokenDelta delta) override;
  void SendEnd(std::shared_ptr<InferCall> call) override;
  void AddToken(std::shared_ptr<InferCall> call, TokenDelta delta)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a read, unless one is under way or must wait.
  void ReadOn();
  // Ends the stream with `status`, once its calls have ended; they are cancelled.
  void Abort(const absl::Status& status, const absl::Status& why);
  // Whoever wants the next operation: Pump, if nobody is at it.
  void Wake();
  // Starts the next write, or the end of the stream, or gives the right back. REQUIRES: the caller
  // took `writing_`.
  void Pump();
  // False: there is nothing to write of this part.
  bool Write(const Part& part);
  bool Recharge() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnStuck(Duration waited) override;
  void OnRevoked(const absl::Status& why) override { Abort(why, why); }
  // Each request needs its own model; those to come go by the new record.
  void OnClient(const std::shared_ptr<const Client>& client) override;

  InferEnvironment& environment_;
  // Set by Admit, then constant.
  CallIds ids_;
  bool end_on_error_ = false;

  grpc::ByteBuffer incoming_;  // of the read under way, and of who ends it
  // Of whoever has the right to write: the answer under way, and whose it is, which bears its
  // bytes.
  grpc::ByteBuffer outgoing_;
  std::shared_ptr<InferCall> sent_;

  Mutex mutex_;
  std::shared_ptr<const Client> client_ ABSL_GUARDED_BY(mutex_);  // as last read
  bool reading_ ABSL_GUARDED_BY(mutex_) = false;
  bool writing_ ABSL_GUARDED_BY(mutex_) = true;    // Start takes the right, for its metadata
  bool read_all_ ABSL_GUARDED_BY(mutex_) = false;  // the client has half-closed
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<absl::Status> abort_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_when_idle_ ABSL_GUARDED_BY(mutex_);
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
  size_t part_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all parts
  // Those that are to be answered, with the last token of each in parts_, or null.
  std::unordered_map<std::shared_ptr<InferCall>, Part*> calls_ ABSL_GUARDED_BY(mutex_);
  MemoryLedger::Charge charge_ ABSL_GUARDED_BY(mutex_);
  GaugePart undelivered_ ABSL_GUARDED_BY(mutex_);  // of all parts
};

}  // namespace aft::server::kserve
