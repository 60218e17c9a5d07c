#include "client/lib/generation.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/lib/error_details.h"
#include "client/lib/rpc_error.h"

namespace aft::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::system_clock;

// gRPC's limit of a message.
constexpr size_t kMaxRequestBytes = size_t{4} << 20;

// Servers on which a stream begins and breaks without a token, in a row: a request that brings
// servers down is not carried to all of them.
constexpr int kMostInVain = 3;

std::optional<system_clock::time_point> Deadline(milliseconds deadline) {
  if (deadline.count() <= 0) return std::nullopt;
  return system_clock::now() + deadline;
}

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

Generation::Generation(const ClientOptions& client, const CallOptions& options,
                       v1::GenerateRequest request)
    : client_(client),
      options_(options),
      deadline_(Deadline(options.deadline.value_or(client.deadline))),
      request_(std::move(request)),
      // Several sequences cannot go on in one call.
      resumable_(client.max_resumes > 0 && request_.n() <= 1),
      checker_(static_cast<uint32_t>(request_.resume().token_ids_size())) {
  if (resumable_) request_.set_resumable(true);
  checker_.ExpectSequences(request_.n());
}

absl::Status Generation::Prepare(Call& call) const {
  AFT_RETURN_IF_ERROR(call.Prepare(client_, options_));
  if (deadline_) call.context.set_deadline(*deadline_);
  return absl::OkStatus();
}

Generation::Verdict Generation::Take(v1::GenerateResponse& event) {
  if (checker_.started() && !begun_) return GoOn(event);
  broken_ = checker_.Take(event);
  if (!broken_.empty()) return Verdict::kBroken;
  if (event.has_started()) {
    begun_ = true;
    exact_ = !request_.has_resume() || event.started().exact();
    Remember(event.started());
  } else if (event.has_delta()) {
    return TakeDelta(*event.mutable_delta());
  } else if (event.has_hand_over() && resumable_) {
    // Of one that does not fit a request no more than that is kept.
    if (hand_over_.size() <= kMaxRequestBytes) hand_over_ += event.hand_over().chunk();
    return Verdict::kKeep;
  }
  return Verdict::kDeliver;
}

// The first event of a later call: the application has had its Started.
Generation::Verdict Generation::GoOn(const v1::GenerateResponse& event) {
  if (!event.has_started()) {
    broken_ = "the stream went on without Started";
  } else if (event.started().fingerprint() != request_.resume().fingerprint()) {
    broken_ = "the stream went on with another model";
  }
  if (!broken_.empty()) return Verdict::kBroken;
  begun_ = true;
  exact_ &= event.started().exact();
  ++resumes_;
  Remember(event.started());
  if (options_.on_resumed) options_.on_resumed({cause_, received(), exact_});
  return Verdict::kKeep;
}

Generation::Verdict Generation::TakeDelta(v1::Delta& delta) {
  if (!resumable_) return Verdict::kDeliver;
  std::string& text = *delta.mutable_text();
  if (!text.empty() && !repeat_.empty()) {
    if (absl::StartsWith(text, repeat_)) text.erase(0, repeat_.size());
    repeat_.clear();
    if (text.empty() && delta.token_ids().empty()) return Verdict::kKeep;
  }
  if (delta.token_ids().empty()) {
    tail_ += text;
    return Verdict::kDeliver;
  }
  request_.mutable_resume()->mutable_token_ids()->MergeFrom(delta.token_ids());
  tail_.clear();
  tries_ = 0;
  in_vain_ = 0;
  return Verdict::kDeliver;
}

void Generation::Remember(const v1::Started& started) {
  if (!resumable_) return;
  request_.mutable_sampling()->set_seed(started.seed());
  v1::Resume& resume = *request_.mutable_resume();
  resume.set_fingerprint(started.fingerprint());
  resume.set_numerics(started.numerics());
  resume.set_resume_id(started.resume_id());
}

std::optional<milliseconds> Generation::End(const grpc::Status& status, Call& call) {
  call.facts.cancelled |= IsCancelled(options_);
  call.facts.started = begun_;
  call.facts.received_tokens = received();
  // Nothing is missing of a stream that has finished, whatever became of its trailers.
  if (checker_.finished() && broken_.empty()) return std::nullopt;
  const absl::Status error = call.StreamStatus(status, /*finished=*/false, broken_);
  if (tries_ == 0) {
    cause_ = error;
  } else if (begun_) {
    ++in_vain_;
  }
  const ErrorDetails details = GetErrorDetails(error);
  const milliseconds pause =
      std::max(BackOff(tries_, Chance()), details.retry_after.value_or(milliseconds(0)));
  const bool in_time = !deadline_ || system_clock::now() + pause < *deadline_;
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
  v1::Resume& resume = *request_.mutable_resume();
  if (!hand_over_.empty()) resume.set_state(std::exchange(hand_over_, ""));
  // Without the state the server reads the tokens, which are far smaller.
  if (request_.ByteSizeLong() > kMaxRequestBytes || absl::IsResourceExhausted(error)) {
    resume.clear_state();
  }
  begun_ = false;
  repeat_ = tail_;
  return pause;
}

bool Generation::MayGoOn(const absl::Status& error, const Call& call) const {
  if (!resumable_ || !checker_.started() || request_.resume().fingerprint() == 0 ||
      tries_ >= client_.max_resumes || in_vain_ >= kMostInVain || ForbidsRetry(call.context)) {
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

absl::Status Generation::Final(const absl::Status& error) const {
  if (tries_ == 0) return error;
  absl::Status status(
      error.code(),
      absl::StrCat(error.message(), "; the stream had to go on because ", cause_.message()));
  SetErrorDetails(GetErrorDetails(error), status);
  return status;
}

}  // namespace aft::client
