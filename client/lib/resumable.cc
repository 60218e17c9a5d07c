#include "client/lib/resumable.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lib/error_details.h"
#include "client/lib/rpc_error.h"

namespace aft::client {
namespace {

using std::chrono::duration_cast;
using std::chrono::milliseconds;

// How many servers in a row may begin the stream and break without a new token. This limit keeps a
// request that crashes servers from reaching all of them.
constexpr int kMostInVain = 3;

double Chance() {
  static thread_local std::minstd_rand random{std::random_device()()};
  return std::uniform_real_distribution<double>()(random);
}

}  // namespace

milliseconds BackOff(int tries, double chance) {
  if (tries == 0) return milliseconds(0);
  const int longest = std::min(5000, 100 << std::min(tries - 1, 10));
  return milliseconds(static_cast<int64_t>(longest * (1 - chance / 2)));
}

Resumable::Resumable(const ClientOptions& client, const CallOptions& options, StreamChecker checker,
                     ResumableClocks clocks)
    : checker_(std::move(checker)),
      client_(&client),
      options_(options),
      clocks_(std::move(clocks)) {
  const auto time = TimeFor(options.deadline.value_or(client.deadline));
  if (time) deadline_ = clocks_.steady() + *time;
}

absl::Status Resumable::Prepare(Call& call) {
  AFT_RETURN_IF_ERROR(call.Prepare(*client_, options_));
  sent_ = clocks_.steady();
  if (deadline_) call.context.set_deadline(clocks_.wall() + (*deadline_ - sent_));
  return absl::OkStatus();
}

void Resumable::Begin(uint64_t fingerprint) {
  begun_ = true;
  ++in_vain_;  // until it brings something new
  fingerprint_ = fingerprint;
}

void Resumable::TellResumed(uint32_t sequence) const {
  if (!options_.on_resumed) return;
  options_.on_resumed({.cause = cause_,
                       .tokens = received(),
                       .exact = exact_,
                       .sequence = sequence,
                       .tries = tries_,
                       .until_sent = duration_cast<milliseconds>(sent_ - broke_),
                       .until_started = duration_cast<milliseconds>(clocks_.steady() - sent_)});
}

void Resumable::HasBrought() {
  tries_ = 0;
  in_vain_ = 0;
}

std::optional<milliseconds> Resumable::EndCall(const grpc::Status& status, Call& call) {
  call.facts.cancelled |= IsCancelled(options_);
  call.facts.started = begun_;
  call.facts.received_tokens = received();
  // A finished stream is complete, even if its trailers are missing.
  if (checker_.finished() && broken_.empty()) return std::nullopt;
  const absl::Status error = call.StreamStatus(status, /*finished=*/false, broken_);
  if (tries_ == 0) {
    cause_ = error;
    broke_ = clocks_.steady();
  }
  const ErrorDetails details = GetErrorDetails(error);
  const milliseconds pause =
      std::max(BackOff(tries_, Chance()), details.retry_after.value_or(milliseconds(0)));
  const bool in_time = !deadline_ || clocks_.steady() + pause < *deadline_;
  if (!in_time || !MayGoOn(error, call)) {
    status_ = Final(error);
    return std::nullopt;
  }
  if (call.facts.cancelled) {
    status_ = call.StreamStatus({grpc::CANCELLED, ""}, /*finished=*/false, "");
    return std::nullopt;
  }
  ++tries_;
  const std::string id = RequestId(call.context);
  if (options_.request_id.empty() && CheckRequestId(id).ok()) options_.request_id = id;
  last_error_ = error;
  begun_ = false;
  if (options_.on_resuming) options_.on_resuming({error, tries_, client_->max_resumes, pause});
  return pause;
}

bool Resumable::MayGoOn(const absl::Status& error, const Call& call) const {
  if (!checker_.started() || fingerprint_ == 0 || tries_ >= client_->max_resumes ||
      in_vain_ >= kMostInVain || !GetErrorDetails(error).may_retry) {
    return false;
  }
  switch (error.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return true;
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
      return !IsOfServer(call.context);
    case absl::StatusCode::kResourceExhausted:
      return !begun_;
    default:
      return false;
  }
}

absl::Status Resumable::Final(const absl::Status& error) const {
  if (tries_ == 0) return error;
  absl::Status status(
      error.code(),
      absl::StrCat(error.message(), "; the stream had to be resumed because ", cause_.message()));
  SetErrorDetails(GetErrorDetails(error), status);
  return status;
}

}  // namespace aft::client
