#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "server/engine/request.h"
#include "server/observability/metrics.h"
#include "server/scheduling/admission_budget.h"

namespace aft::server {

// One accepted request, as RequestLoop and Inbox see it. The engine's caller makes it; then the
// engine thread alone owns it.
struct Job : RequestHeader {
  Job(RequestHeader header, int64_t text_tokens, std::shared_ptr<FinishSink> sink)
      : RequestHeader(std::move(header)), tokens(text_tokens), finish_sink(std::move(sink)) {
    usage.prompt_tokens = static_cast<uint32_t>(text_tokens);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  virtual ~Job() = default;

  const int64_t tokens;  // the model has to read them, and they count against the queue's budget
  Usage usage;           // as far as it is known in advance
  const std::shared_ptr<FinishSink> finish_sink;

  // The least number of `tokens` that must be computed before the answer can begin.
  int64_t least_unread = tokens;

  RequestHandle handle = 0;
  AdmissionBudget::Charge charge;

  std::optional<TimePoint> started_at;  // when its first step began
  // Whether any text of its call has begun. Null: the call has only one text.
  std::shared_ptr<bool> call_began;
  bool began() const { return started_at.has_value() || (call_began != nullptr && *call_began); }
  std::optional<TimePoint> first_output_at;  // when its first tokens came
  std::optional<Ending> cancelled;           // why it ends, if RequestLoop::Cancel ends it
};

// Returns the error of a job whose time is over. It has passed its deadline, which is that of the
// client or `arrival + max_request`, or it has waited too long in the queue.
inline absl::Status WhyExpired(const Job& job, TimePoint now, std::chrono::milliseconds max_queue,
                               std::chrono::milliseconds max_request) {
  if (now < job.deadline) {
    return absl::ResourceExhaustedError(
        absl::StrCat("it waited for longer than scheduling.max_queue_ms=", max_queue.count()));
  }
  if (job.deadline < job.arrival + max_request) {
    return absl::DeadlineExceededError("the client's deadline has passed");
  }
  return absl::DeadlineExceededError(
      absl::StrCat("it took longer than limits.max_request_ms=", max_request.count()));
}

}  // namespace aft::server
