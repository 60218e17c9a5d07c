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

// One scoring over all the calls that it takes, as Generation. Of several texts, those that have
// not finished are asked for again as a whole, and what has come of them is left out. Internal to
// the library; thread-compatible.
class Scoring : public Resumable {
 public:
  Scoring(const ClientOptions& client, const CallOptions& options, v1::ScoreRequest request);

  const v1::ScoreRequest& request() const { return request_; }

  // Of the next event of the call, which becomes what the application is to hear.
  Verdict Take(v1::ScoreResponse& event);
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call);

 private:
  // An event of a later call for texts: the text as the application knows it, and without scores
  // that came before. False: nothing is left of it.
  bool Translate(v1::ScoreResponse& event) const;

  v1::ScoreRequest request_;     // its `resume` is what has come, or its `texts` what is left
  std::vector<uint32_t> texts_;  // of the call: their places among all; empty: there is one text
  std::string numerics_;         // of the first server; of texts
};

}  // namespace aft::client
