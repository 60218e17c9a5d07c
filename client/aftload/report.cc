#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "client/aftload/load.h"

namespace aft::client {
namespace {

using Json = nlohmann::ordered_json;

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

double TokensPerSecond(const LoadReport& report) {
  return Ratio(static_cast<double>(report.stats.tokens), report.seconds);
}

std::string Row(absl::string_view name, const Histogram& values) {
  return absl::StrFormat("%-22s %10.3f %10.3f %10.3f %10.3f\n", name, values.Quantile(0.5) * 1e3,
                         values.Quantile(0.9) * 1e3, values.Quantile(0.99) * 1e3,
                         values.Mean() * 1e3);
}

Json ToJson(const Histogram& values) {
  return {{"count", values.count()},
          {"p50", values.Quantile(0.5) * 1e3},
          {"p90", values.Quantile(0.9) * 1e3},
          {"p99", values.Quantile(0.99) * 1e3},
          {"mean", values.Mean() * 1e3}};
}

}  // namespace

std::string TextReport(const LoadOptions& options, const LoadReport& report) {
  const LoadStats& stats = report.stats;
  std::string text = options.rate > 0
                         ? absl::StrFormat("open loop, %g requests/s, at most %d streams",
                                           options.rate, options.streams)
                         : absl::StrFormat("closed loop, %d streams", options.streams);
  absl::StrAppendFormat(&text, ", %d tokens each, %.2f s\n", options.max_tokens, report.seconds);
  absl::StrAppendFormat(&text, "requests               %d completed, %d cut at the end\n",
                        stats.completed, stats.cut);
  if (stats.refused > 0) {
    absl::StrAppendFormat(&text, "refused                %d times, sent again %d times\n",
                          stats.refused, stats.retried);
  }
  for (const auto& [code, count] : stats.errors) {
    absl::StrAppendFormat(&text, "failed                 %d %s\n", count, code);
  }
  absl::StrAppendFormat(&text, "tokens/s               %.1f in total, %.1f in the median stream\n",
                        TokensPerSecond(report), Ratio(1, stats.stream_token.Quantile(0.5)));
  absl::StrAppendFormat(&text, "%-22s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "mean");
  absl::StrAppend(&text, Row("time to first token", stats.first_token),
                  Row("between tokens", stats.inter_token), Row("whole request", stats.request));
  if (stats.early.tokens > 0 && stats.late.tokens > 0) {
    absl::StrAppendFormat(
        &text, "ms per token           %.4f in the first tenth, %.4f in the last: %.3f times\n",
        stats.early.SecondsPerToken() * 1e3, stats.late.SecondsPerToken() * 1e3,
        Ratio(stats.late.SecondsPerToken(), stats.early.SecondsPerToken()));
  }
  absl::StrAppendFormat(&text, "this client            %.2f s of CPU, %.0f %% of one core\n",
                        report.client_cpu_seconds,
                        100 * Ratio(report.client_cpu_seconds, report.seconds));
  return text;
}

std::string JsonReport(const LoadOptions& options, const LoadReport& report) {
  const LoadStats& stats = report.stats;
  Json json = {
      {"model", options.model},
      {"loop", options.rate > 0 ? "open" : "closed"},
      {"rate", options.rate},
      {"streams", options.streams},
      {"connections", options.connections},
      {"max_tokens", options.max_tokens},
      {"prompt_bytes", options.prompt.empty() ? options.prompt_bytes : options.prompt.size()},
      {"seed", options.seed},
      {"seconds", report.seconds},
      {"client_cpu_seconds", report.client_cpu_seconds},
      {"completed", stats.completed},
      {"cut", stats.cut},
      {"refused", stats.refused},
      {"retried", stats.retried},
      {"failed", stats.failed()},
      {"errors", stats.errors},
      {"tokens", stats.tokens},
      {"tokens_per_second", TokensPerSecond(report)},
      {"stream_tokens_per_second_p50", Ratio(1, stats.stream_token.Quantile(0.5))},
      {"first_token_ms", ToJson(stats.first_token)},
      {"inter_token_ms", ToJson(stats.inter_token)},
      {"request_ms", ToJson(stats.request)},
      {"early_ms_per_token", stats.early.SecondsPerToken() * 1e3},
      {"late_ms_per_token", stats.late.SecondsPerToken() * 1e3}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace aft::client
