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

// One generation over all its calls: what each call asks for, and which events the application
// sees. If the call of a generation with several sequences (GenerateRequest.n) breaks, each
// sequence is then resumed by itself. Internal to the library; thread-compatible.
class Generation : public Resumable {
 public:
  Generation(const ClientOptions& client, const CallOptions& options, v1::GenerateRequest request,
             ResumableClocks clocks = {});
  // One sequence of `all`, whose call has broken and is to be resumed.
  Generation(const Generation& all, uint32_t sequence);

  const v1::GenerateRequest& request() const { return request_; }
  // The number of sequences in the next call.
  uint32_t sequences() const { return static_cast<uint32_t>(answers_.size()); }
  bool finished(uint32_t sequence) const { return checker_.finished(sequence); }

  // Takes the next event of the call, and changes it to what the application is to see.
  Verdict Take(v1::GenerateResponse& event);

  // Does the same as Resumable::EndCall. With several sequences, Generations that are made of this
  // one make the following calls.
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call);

 private:
  // The part of a sequence that has arrived.
  struct Answer {
    v1::Resume output;  // if there are several; else request_ has it
    std::string tail;   // text after the last token
  };

  v1::Resume& OutputOf(uint32_t sequence) {
    return answers_.size() == 1 ? *request_.mutable_resume() : answers_[sequence].output;
  }
  bool DropKnown(v1::ScoreChunk& scores) const;
  Verdict TakeDelta(v1::Delta& delta, uint32_t sequence);
  void Remember(const v1::Started& started);

  v1::GenerateRequest request_;  // has the output if there is one sequence
  const uint32_t sequence_ = 0;  // number of the first one in the application's request
  std::vector<Answer> answers_;

  // These belong to the call under way.
  std::string repeat_;  // text that may arrive again
  std::string hand_over_;
};

}  // namespace aft::client
