#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/lib/call.h"
#include "client/lib/call_options.h"
#include "client/lib/stream_checker.h"

namespace aft::client {

// A stream over all the calls that it takes: whether another one goes on where it broke, and when.
// What the calls ask for and what the application sees of them, Generation and Scoring know. Makes
// no call itself. Internal to the library; thread-compatible.
class Resumable {
 public:
  enum class Verdict {
    kDeliver,  // for the application
    kKeep,     // not for it
    kBroken,   // breaks the protocol: the call is to be cancelled
  };

  // Of a call that asks for what is left. INVALID_ARGUMENT: the request id cannot be sent.
  absl::Status Prepare(Call& call);

  // How the stream ended.
  const absl::Status& status() const { return status_; }
  uint32_t received() const { return checker_.received(); }
  uint32_t resumes() const { return resumes_; }
  bool exact() const { return exact_; }

 protected:
  // `client` must outlive it. The deadline, of all calls together, counts from now. `checker`: of
  // what the application sees.
  Resumable(const ClientOptions& client, const CallOptions& options, StreamChecker checker);
  Resumable(const Resumable&) = default;
  ~Resumable() = default;

  // Whether the call under way is a later one, and this its first event: Started, which the
  // application has had.
  bool GoesOn() const { return checker_.started() && !begun_; }
  // The next event of the call, whichever it is. For one that GoesOn the verdict is kKeep or
  // kBroken.
  template <typename Response>
  Verdict Check(const Response& event) {
    if (!GoesOn()) {
      broken_ = checker_.Take(event);
      if (!broken_.empty()) return Verdict::kBroken;
      if (event.has_started()) Begin(event.started().fingerprint());
      return Verdict::kDeliver;
    }
    if (!event.has_started()) {
      broken_ = "the stream went on without Started";
    } else if (event.started().fingerprint() != fingerprint_) {
      broken_ = "the stream went on with another model";
    }
    if (!broken_.empty()) return Verdict::kBroken;
    Begin(fingerprint_);
    exact_ &= event.started().exact();
    ++resumes_;
    return Verdict::kKeep;
  }
  // To be called for a later call when the stream has begun to go on.
  void TellResumed(uint32_t sequence) const;
  // The call has brought something, so that going on was not in vain.
  void HasBrought();

  // The call has ended. The pause before the next one; nothing: there is none, and status() is how
  // the stream ended.
  std::optional<std::chrono::milliseconds> EndCall(const grpc::Status& status, Call& call);

  // Whether breaks are gone on with at all.
  bool resumable() const { return client_->max_resumes > 0; }

  StreamChecker checker_;
  bool exact_ = true;
  absl::Status last_error_;  // of the call that ended last

 private:
  void Begin(uint64_t fingerprint);
  // Whether a call that ended so may be gone on with: the table of client/README.md.
  bool MayGoOn(const absl::Status& error, const Call& call) const;
  absl::Status Final(const absl::Status& error) const;

  const ClientOptions* client_;
  CallOptions options_;  // with the request id, once there is one
  std::optional<std::chrono::system_clock::time_point> deadline_;
  uint64_t fingerprint_ = 0;  // of the model
  uint32_t resumes_ = 0;
  int tries_ = 0;                                // calls that were to go on, since something came
  int in_vain_ = 0;                              // of those, the ones that began
  absl::Status cause_;                           // of the first of them
  std::chrono::steady_clock::time_point broke_;  // when that was
  absl::Status status_;

  // Of the call under way.
  std::chrono::steady_clock::time_point sent_;
  bool begun_ = false;  // Started has come
  std::string broken_;  // how it breaks the protocol
};

// Before the next try, when `tries` have brought nothing: none, then twice as long each time, from
// 0.1 s to 5 s, less up to a half by `chance`, in [0, 1).
std::chrono::milliseconds BackOff(int tries, double chance);

}  // namespace aft::client
