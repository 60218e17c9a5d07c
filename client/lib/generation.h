#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "client/lib/call.h"
#include "client/lib/call_options.h"
#include "client/lib/stream_checker.h"

namespace aft::client {

// One generation over all the calls that it takes: what each of them asks for, what the application
// sees of its events, and whether another one goes on where it broke. Makes no call itself.
// Internal to the library; thread-compatible.
class Generation {
 public:
  // `client` must outlive it. The deadline, of all calls together, counts from now.
  Generation(const ClientOptions& client, const CallOptions& options, v1::GenerateRequest request);

  const v1::GenerateRequest& request() const { return request_; }
  // Of a call that asks for that. INVALID_ARGUMENT: the request id cannot be sent.
  absl::Status Prepare(Call& call) const;

  enum class Verdict {
    kDeliver,  // for the application
    kKeep,     // not for it
    kBroken,   // breaks the protocol: the call is to be cancelled
  };
  // Of the next event of the call, which becomes what the application is to see.
  Verdict Take(v1::GenerateResponse& event);

  // The call has ended. The pause before the next one; nothing: there is none, and status() is how
  // the generation ended.
  std::optional<std::chrono::milliseconds> End(const grpc::Status& status, Call& call);
  const absl::Status& status() const { return status_; }

  uint32_t received() const { return checker_.received(); }
  uint32_t resumes() const { return resumes_; }
  bool exact() const { return exact_; }

 private:
  Verdict GoOn(const v1::GenerateResponse& event);
  Verdict TakeDelta(v1::Delta& delta);
  void Remember(const v1::Started& started);
  // Whether a call that ended so may be gone on with: the table of client/README.md.
  bool MayGoOn(const absl::Status& error, const Call& call) const;
  absl::Status Final(const absl::Status& error) const;

  const ClientOptions& client_;
  CallOptions options_;  // with the request id, once there is one
  const std::optional<std::chrono::system_clock::time_point> deadline_;
  v1::GenerateRequest request_;  // its `resume` is what has come
  const bool resumable_;
  StreamChecker checker_;  // of what the application sees
  bool exact_ = true;
  uint32_t resumes_ = 0;
  int tries_ = 0;        // calls that were to go on, since the last token
  int in_vain_ = 0;      // of those, the ones that began
  absl::Status cause_;   // of the first of them
  std::string tail_;     // text that came behind the last token
  absl::Status status_;  // of the whole

  // Of the call under way.
  bool begun_ = false;  // Started has come
  std::string broken_;  // how it breaks the protocol
  std::string repeat_;  // text that may come again
  std::string hand_over_;
};

// Before the next try, when `tries` have brought no token: none, then twice as long each time, from
// 0.1 s to 5 s, less up to a half by `chance`, in [0, 1).
std::chrono::milliseconds BackOff(int tries, double chance);

}  // namespace aft::client
