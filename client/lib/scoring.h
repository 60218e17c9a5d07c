#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <optional>

#include "aft/v1/inference.pb.h"
#include "client/lib/resumable.h"

namespace aft::client {

// One scoring over all the calls that it takes, as Generation. Internal to the library;
// thread-compatible.
class Scoring : public Resumable {
 public:
  Scoring(const ClientOptions& client, const CallOptions& options, v1::ScoreRequest request);

  const v1::ScoreRequest& request() const { return request_; }

  // Of the next event of the call.
  Verdict Take(const v1::ScoreResponse& event);
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call) {
    return EndCall(status, call);
  }

 private:
  v1::ScoreRequest request_;  // its `resume` is what has come
};

}  // namespace aft::client
