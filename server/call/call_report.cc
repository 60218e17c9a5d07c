#include "server/call/call_report.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "server/observability/log.h"

namespace aft::server {
namespace {

double Milliseconds(Duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

const std::string& NameOf(const Caller& caller) {
  static const std::string& none = *new std::string();
  return caller.client != nullptr ? caller.client->name : none;
}

void LogRequestWithoutModel(const Caller& caller, Method method, const absl::Status& status,
                            Duration total) {
  log::Info("request.done", {{"id", caller.ids.request},
                             {"peer", caller.peer},
                             {"client", NameOf(caller)},
                             {"method", MethodName(method)},
                             {"code", absl::StatusCodeToString(status.code())},
                             {"reason", status.message()},
                             {"total_ms", Milliseconds(total)},
                             {"trace_id", caller.ids.trace.trace_id},
                             {"span_id", caller.ids.trace.span_id},
                             {"parent_id", caller.ids.trace.parent_id}});
}

}  // namespace

void LogRequest(const CallReport& report) {
  const CallEnd& ending = report.ending;
  const Usage& usage = ending.usage;
  const Timings& timings = ending.timings;
  const Phases phases(timings);
  const CallIds& ids = report.caller.ids;
  const std::string reason =
      ending.status.ok()
          ? kFinishReasonNames[static_cast<size_t>(report.reason)]
          : absl::StrCat(ending.path.empty() ? "" : ending.path + ": ", ending.status.message());
  const auto log = absl::IsInternal(ending.status) ? log::Error : log::Info;
  log("request.done", {{"id", ids.request},
                       {"peer", report.caller.peer},
                       {"client", NameOf(report.caller)},
                       {"method", MethodName(report.method)},
                       {"model", report.model},
                       {"code", absl::StatusCodeToString(ending.status.code())},
                       {"reason", reason},
                       {"n", report.sequences},
                       {"prompt_tokens", usage.prompt_tokens},
                       {"generated_tokens", usage.generated_tokens},
                       {"resumed_tokens", usage.resumed_tokens},
                       {"queue_ms", Milliseconds(timings.queue)},
                       {"ttft_ms", Milliseconds(timings.first_token)},
                       {"total_ms", Milliseconds(report.total)},
                       {"cached_tokens", usage.cached_tokens},
                       {"cache_miss", kCacheMissNames[static_cast<size_t>(usage.cache_miss)]},
                       {"diverged_at", usage.diverged_at},
                       {"prefill_ms", Milliseconds(phases.prefill)},
                       {"decode_ms", Milliseconds(phases.decode)},
                       {"write_ms", Milliseconds(report.writing)},
                       {"trace_id", ids.trace.trace_id},
                       {"span_id", ids.trace.span_id},
                       {"parent_id", ids.trace.parent_id}});
}

void ReportWithoutModel(const CallEnvironment& environment, const Caller& caller, Method method,
                        TimePoint arrival, const absl::Status& status) {
  environment.Report(method, arrival, status.code());
  if (!status.ok() && !absl::IsInternal(status) && !environment.LogsRefusal()) return;
  LogRequestWithoutModel(caller, method, status, std::chrono::steady_clock::now() - arrival);
}

void ReportRefusal(const CallEnvironment& environment, ClientMetrics& clients, const Caller& caller,
                   Method method, const absl::Status& status, Duration total) {
  environment.metrics.calls.Count(method, status.code());
  const bool of_model = static_cast<size_t>(method) < kModelMethods;
  if (!of_model && method != Method::kHttpHead) environment.metrics.calls.Observe(method, total);
  if (of_model && caller.client != nullptr) {
    clients.Count(caller.client->name, status.code(), /*tokens=*/0);
  }
  if (!environment.LogsRefusal()) return;
  if (!of_model) return LogRequestWithoutModel(caller, method, status, total);
  CallEnd ending;
  ending.status = status;
  LogRequest({.caller = caller,
              .method = method,
              .model = "",
              .sequences = 1,
              .ending = ending,
              .reason = FinishReason::kDone,
              .total = total,
              .writing = Duration(0)});
}

void LogStuck(const Caller& caller, Method method, Duration waited) {
  log::Warning("request.stuck", {{"id", caller.ids.request},
                                 {"peer", caller.peer},
                                 {"client", NameOf(caller)},
                                 {"method", MethodName(method)},
                                 {"waited_ms", Milliseconds(waited)},
                                 {"trace_id", caller.ids.trace.trace_id}});
}

}  // namespace aft::server
