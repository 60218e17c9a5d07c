#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aft/v1/inference.pb.h"
#include "client/lib/resumable.h"

namespace aft::client {

// One scoring over all its calls, like Generation. Of several texts, those that have not finished
// are sent again from their beginning, and scores that have arrived before are skipped. Internal to
// the library; thread-compatible.
class Scoring : public Resumable {
 public:
  Scoring(const ClientOptions& client, const CallOptions& options, v1::ScoreRequest request);

  const v1::ScoreRequest& request() const { return request_; }

  // Takes the next event of the call, and changes it to what the application is to see.
  Verdict Take(v1::ScoreResponse& event);
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call);

 private:
  // Changes an event of a later call with texts: it gets the application's number of the text, and
  // loses scores that have arrived before. Returns false if nothing is left of it.
  bool Translate(v1::ScoreResponse& event) const;

  v1::ScoreRequest request_;     // its `resume` has what arrived, or its `texts` the rest
  std::vector<uint32_t> texts_;  // numbers of the texts of the call; empty: one text
  std::string numerics_;         // of the first server; only with several texts
};

}  // namespace aft::client
