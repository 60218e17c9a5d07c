#include "server/call/call_environment.h"

#include <chrono>

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

bool HoldUnsent(size_t fixed, size_t unsent, MemoryLedger::Charge& charge, GaugePart& undelivered) {
  constexpr int64_t kSlack = 4096;
  const auto held = static_cast<int64_t>(fixed + unsent);
  const bool near = held <= charge.bytes() && charge.bytes() - held < kSlack;
  if (near && unsent > 0) return true;
  undelivered.Set(static_cast<double>(unsent));
  return near || charge.Resize(held);
}

}  // namespace aft::server
