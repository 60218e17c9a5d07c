#include "server/call/call_environment.h"

#include <chrono>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "server/config/memory_plan.h"
#include "server/observability/log.h"

namespace aft::server {

void CallEnvironment::Report(Method method, TimePoint arrival, absl::StatusCode code) const {
  metrics.calls.Count(method, code);
  metrics.calls.Observe(method, std::chrono::steady_clock::now() - arrival);
}

bool CallEnvironment::LogsRefusal() const {
  const auto left_out = refusal_lines.Pass(std::chrono::steady_clock::now());
  if (left_out.value_or(0) > 0) log::Info("request.left_out", {{"refused", *left_out}});
  return left_out.has_value();
}

absl::Status CallEnvironment::CheckMessage(size_t bytes, bool with_tensors) const {
  const int64_t most = with_tensors ? TensorMessageBytes(limits) : limits.max_message_bytes;
  if (static_cast<int64_t>(bytes) <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("Received message larger than max (", bytes, " vs. ", most, "): limits.",
                   with_tensors ? "max_tensor_message_bytes" : "max_message_bytes"));
}

absl::Status CallEnvironment::RefuseForMemory(std::pair<size_t, bool> need,
                                              absl::string_view what) const {
  const auto [bytes, may_ever] = need;
  if (may_ever) return RefuseForMemory();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " would take ", bytes,
                   " bytes, more than max_client_memory_bytes or max_memory_bytes"));
}

bool HoldUnsent(size_t fixed, size_t unsent, MemoryLedger::Charge& charge, GaugePart& undelivered) {
  constexpr int64_t kSlack = 4096;
  const auto held = static_cast<int64_t>(fixed + unsent);
  const bool near = held <= charge.bytes() && charge.bytes() - held < kSlack;
  if (near && unsent > 0) return true;
  undelivered.Set(static_cast<double>(unsent));
  return near || charge.Resize(held);
}

}  // namespace aft::server
