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

// One generation over all the calls that it takes: what each of them asks for, and what the
// application sees of its events. One of several sequences (GenerateRequest.n) has one call that
// breaks; then each sequence goes on by itself. Internal to the library; thread-compatible.
class Generation : public Resumable {
 public:
  Generation(const ClientOptions& client, const CallOptions& options, v1::GenerateRequest request);
  // One sequence of `all`, whose call has broken and is to be gone on with.
  Generation(const Generation& all, uint32_t sequence);

  const v1::GenerateRequest& request() const { return request_; }
  // How many sequences its next call has.
  uint32_t sequences() const { return static_cast<uint32_t>(answers_.size()); }
  bool finished(uint32_t sequence) const { return checker_.finished(sequence); }

  // Of the next event of the call, which becomes what the application is to see.
  Verdict Take(v1::GenerateResponse& event);

  // As Resumable::EndCall. With several sequences the calls that follow are those of Generations
  // made of this one.
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call);

 private:
  // What has come of a sequence.
  struct Answer {
    v1::Resume output;  // of several; a single one's is in the request
    std::string tail;   // text behind the last token
  };

  v1::Resume& OutputOf(uint32_t sequence) {
    return answers_.size() == 1 ? *request_.mutable_resume() : answers_[sequence].output;
  }
  Verdict TakeDelta(v1::Delta& delta, uint32_t sequence);
  void Remember(const v1::Started& started);

  v1::GenerateRequest request_;  // with the output of a single sequence
  const uint32_t sequence_ = 0;  // that the first one is in the application's request
  std::vector<Answer> answers_;

  // Of the call under way.
  std::string repeat_;  // text that may come again
  std::string hand_over_;
};

}  // namespace aft::client
