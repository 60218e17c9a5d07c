#pragma once

#include <grpcpp/support/status.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "client/lib/call.h"
#include "client/lib/call_options.h"
#include "client/lib/stream_checker.h"

namespace aft::client {

// A stream measures its time by `steady`, which cannot be set. `wall` only tells gRPC when a call
// ends.
struct ResumableClocks {
  std::function<std::chrono::system_clock::time_point()> wall = std::chrono::system_clock::now;
  std::function<std::chrono::steady_clock::time_point()> steady = std::chrono::steady_clock::now;
};

// A stream over all its calls: whether another call resumes it after a break, and when. Generation
// and Scoring know what the calls ask for and what the application sees. Makes no calls itself.
// Internal to the library; thread-compatible.
class Resumable {
 public:
  enum class Verdict {
    kDeliver,  // for the application
    kKeep,     // not for the application
    kBroken,   // the event breaks the protocol: cancel the call
  };

  // Prepares a call that asks for the rest of the stream. INVALID_ARGUMENT if the request id cannot
  // be sent.
  absl::Status Prepare(Call& call);

  // The result of the stream.
  const absl::Status& status() const { return status_; }
  uint32_t received() const { return checker_.received(); }
  uint32_t resumes() const { return resumes_; }
  bool exact() const { return exact_; }

 protected:
  // `client` must outlive this object. The deadline, for all calls together, counts from now.
  // `checker` follows the events that the application sees.
  Resumable(const ClientOptions& client, const CallOptions& options, StreamChecker checker,
            ResumableClocks clocks = {});
  Resumable(const Resumable&) = default;
  ~Resumable() = default;

  // Whether a call after the first is under way, and has not begun: its next event must be Started,
  // which the application does not see again.
  bool GoesOn() const { return checker_.started() && !begun_; }
  // Checks the next event of the call. If GoesOn(), the verdict is kKeep or kBroken.
  template <typename Response>
  Verdict Check(const Response& event) {
    if (!GoesOn()) {
      broken_ = checker_.Take(event);
      if (!broken_.empty()) return Verdict::kBroken;
      if (event.has_started()) Begin(event.started().fingerprint());
      return Verdict::kDeliver;
    }
    if (!event.has_started()) {
      broken_ = "the stream was resumed without Started";
    } else if (event.started().fingerprint() != fingerprint_) {
      broken_ = "the stream was resumed with another model";
    }
    if (!broken_.empty()) return Verdict::kBroken;
    Begin(fingerprint_);
    exact_ &= event.started().exact();
    ++resumes_;
    return Verdict::kKeep;
  }
  // To be called when a later call has begun: tells the application.
  void TellResumed(uint32_t sequence) const;
  // The call has delivered something new, so the attempts count anew.
  void HasBrought();

  // The call has ended. Returns the pause before the next one, or nullopt if there is none; then
  // status() is the result of the stream.
  std::optional<std::chrono::milliseconds> EndCall(const grpc::Status& status, Call& call);

  // Whether streams are resumed at all.
  bool resumable() const { return client_->max_resumes > 0; }

  StreamChecker checker_;
  bool exact_ = true;
  absl::Status last_error_;  // of the previous call

 private:
  void Begin(uint64_t fingerprint);
  // Whether a call with this error may be resumed: the table in client/README.md.
  bool MayGoOn(const absl::Status& error, const Call& call) const;
  absl::Status Final(const absl::Status& error) const;

  const ClientOptions* client_;
  CallOptions options_;  // with the request id once it is known
  ResumableClocks clocks_;
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  uint64_t fingerprint_ = 0;  // of the model
  uint32_t resumes_ = 0;
  int tries_ = 0;                                // calls to resume since something new arrived
  int in_vain_ = 0;                              // calls that began since something new arrived
  absl::Status cause_;                           // why the first of these calls was needed
  std::chrono::steady_clock::time_point broke_;  // when that break occurred
  absl::Status status_;

  // These belong to the call under way.
  std::chrono::steady_clock::time_point sent_;
  bool begun_ = false;  // Started has arrived
  std::string broken_;  // how it breaks the protocol
};

// The pause before the next attempt, after `tries` in vain: none at first, then from 0.1 s,
// doubling up to 5 s. It is shortened by up to a half, by `chance` in [0, 1).
std::chrono::milliseconds BackOff(int tries, double chance);

}  // namespace aft::client
