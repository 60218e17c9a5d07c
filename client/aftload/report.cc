#include "client/aftload/report.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/json.h"

namespace aft::client {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr std::array<const char*, kBehaviours> kBehaviourNames = {"normal", "cancels", "slow",
                                                                  "deadline"};

double Ratio(double a, double b) { return b > 0 ? a / b : 0; }

bool IsOpen(const LoadOptions& options) { return options.arrivals.rate > 0; }

std::string MaxTokensText(const WorkloadOptions& workload) {
  for (const Prompt& prompt : workload.prompts) {
    if (prompt.max_tokens) return "file";
  }
  return workload.max_tokens.text();
}

std::string PromptBytesText(const WorkloadOptions& workload) {
  if (workload.prompts.empty()) return workload.prompt_bytes.text();
  // The length is known, for example of the text of --prompt.
  if (workload.prompts.size() == 1) return absl::StrCat(workload.prompts[0].text.size());
  return "file";
}

double TokensPerSecond(const LoadReport& report) {
  return Ratio(static_cast<double>(report.stats.tokens), report.seconds);
}

// The share of the normal requests that were good, whatever their outcome.
double GoodputRatio(const LoadStats& stats) {
  const Outcomes& normal = stats.normal();
  return Ratio(static_cast<double>(stats.good),
               static_cast<double>(normal.completed + normal.failed() + normal.cut));
}

std::string Row(absl::string_view name, const Histogram& values) {
  return absl::StrFormat("%-22s %10.3f %10.3f %10.3f %10.3f %10.3f\n", name,
                         values.Quantile(0.5) * 1e3, values.Quantile(0.9) * 1e3,
                         values.Quantile(0.99) * 1e3, values.Max() * 1e3, values.Mean() * 1e3);
}

// Returns a text such as "12 completed, 3 cut at the end, 1 UNAVAILABLE".
std::string OutcomesText(const Outcomes& outcomes) {
  std::string text = absl::StrCat(outcomes.completed, " completed");
  if (outcomes.cancelled > 0) absl::StrAppend(&text, ", ", outcomes.cancelled, " cancelled");
  if (outcomes.expired > 0) absl::StrAppend(&text, ", ", outcomes.expired, " at their deadline");
  absl::StrAppend(&text, ", ", outcomes.cut, " cut at the end");
  for (const auto& [code, count] : outcomes.errors) absl::StrAppend(&text, ", ", count, " ", code);
  return text;
}

OrderedJson ToJson(const Outcomes& outcomes) {
  return {{"completed", outcomes.completed}, {"cut", outcomes.cut},
          {"cancelled", outcomes.cancelled}, {"expired", outcomes.expired},
          {"failed", outcomes.failed()},     {"errors", outcomes.errors}};
}

OrderedJson ToJson(const Limits& limits) {
  OrderedJson json = OrderedJson::object();
  if (limits.ttft_ms) json["ttft"] = *limits.ttft_ms;
  if (limits.tpot_ms) json["tpot"] = *limits.tpot_ms;
  if (limits.e2el_ms) json["e2el"] = *limits.e2el_ms;
  return json;
}

struct Metric {
  const char* name;
  const Histogram& values;
};

std::vector<Metric> Metrics(const LoadStats& stats) {
  return {{"ttft", stats.ttft},      {"tpot", stats.tpot},         {"itl", stats.itl},
          {"e2el", stats.e2el},      {"send_lag", stats.send_lag}, {"refusal", stats.refusal},
          {"longest_gap", stats.gap}};
}

void AddTimes(const LoadStats& stats, OrderedJson& json) {
  for (const Metric& metric : Metrics(stats)) {
    const auto add = [&](const char* what, double seconds) {
      json[absl::StrCat(what, "_", metric.name, "_ms")] = seconds * 1e3;
    };
    add("mean", metric.values.Mean());
    add("median", metric.values.Quantile(0.5));
    add("std", metric.values.StandardDeviation());
    add("p90", metric.values.Quantile(0.9));
    add("p99", metric.values.Quantile(0.99));
    add("max", metric.values.Max());
    json[absl::StrCat("count_", metric.name)] = metric.values.count();
  }
}

// The distributions as quantiles, dense enough to draw.
OrderedJson Quantiles(const LoadStats& stats) {
  std::vector<double> shares(100);
  for (size_t i = 0; i < shares.size(); ++i) shares[i] = static_cast<double>(i) / 100;
  shares.insert(shares.end(), {0.995, 0.999, 0.9999, 1});
  OrderedJson json = {{"q", shares}};
  for (const Metric& metric : Metrics(stats)) {
    if (metric.values.count() == 0) continue;
    OrderedJson& values = json[absl::StrCat(metric.name, "_ms")] = OrderedJson::array();
    for (const double share : shares) values.push_back(metric.values.Quantile(share) * 1e3);
  }
  return json;
}

// The breaks, longest first.
OrderedJson Breaks(const LoadStats& stats) {
  std::vector<Break> breaks = stats.breaks;
  std::sort(breaks.begin(), breaks.end(),
            [](const Break& a, const Break& b) { return a.whole() > b.whole(); });
  const auto ms = [](Clock::duration time) {
    return std::chrono::duration<double, std::milli>(time).count();
  };
  OrderedJson json = OrderedJson::array();
  for (const Break& one : breaks) {
    json.push_back({{"request_id", one.request_id},
                    {"tokens", one.tokens},
                    {"tries", one.tries},
                    {"gap_ms", ms(one.whole())},
                    {"until_broken_ms", ms(one.until_broken)},
                    {"until_sent_ms", ms(one.until_sent)},
                    {"until_started_ms", ms(one.until_started)},
                    {"until_token_ms", ms(one.until_token)}});
  }
  return json;
}

OrderedJson Timeline(const LoadStats& stats) {
  OrderedJson json = {{"interval_s", 1},
                      {"output_tokens", OrderedJson::array()},
                      {"completed", OrderedJson::array()},
                      {"failed", OrderedJson::array()}};
  for (const Second& second : stats.seconds) {
    json["output_tokens"].push_back(second.output_tokens);
    json["completed"].push_back(second.completed);
    json["failed"].push_back(second.failed);
  }
  return json;
}

uint64_t PeakTokensPerSecond(const LoadStats& stats) {
  uint64_t peak = 0;
  for (const Second& second : stats.seconds) peak = std::max(peak, second.output_tokens);
  return peak;
}

}  // namespace

std::string TextReport(const LoadOptions& options, const LoadReport& report) {
  const LoadStats& stats = report.stats;
  const Arrivals& arrivals = options.arrivals;
  std::string text =
      IsOpen(options)
          ? absl::StrFormat("open loop, %g requests/s (burstiness %g), at most %d streams",
                            arrivals.rate, arrivals.burstiness, options.streams)
          : absl::StrFormat("closed loop, %d streams", options.streams);
  absl::StrAppendFormat(&text, ", %s tokens each, %.2f s\n", MaxTokensText(options.workload),
                        report.seconds);
  absl::StrAppendFormat(&text, "requests               %s\n", OutcomesText(stats.normal()));
  for (size_t i = 1; i < kBehaviours; ++i) {
    const Outcomes& outcomes = stats.outcomes[i];
    if (outcomes.completed + outcomes.cut + outcomes.cancelled + outcomes.expired +
            outcomes.failed() >
        0) {
      absl::StrAppendFormat(&text, "  %-20s %s\n", kBehaviourNames[i], OutcomesText(outcomes));
    }
  }
  if (stats.targets.size() > 1) {
    for (const auto& [address, outcomes] : stats.targets) {
      absl::StrAppendFormat(&text, "  %-20s %s\n", address, OutcomesText(outcomes));
    }
  }
  if (stats.refused > 0) {
    absl::StrAppendFormat(&text, "refused                %d times, sent again %d times\n",
                          stats.refused, stats.retried);
  }
  if (options.resume) {
    absl::StrAppendFormat(&text,
                          "resumed                %d streams, %d times, at most %d times each, "
                          "%d of them inexact\n",
                          stats.resumed_streams, stats.resumes, stats.most_resumes,
                          stats.inexact_streams);
  }
  if (options.verify > 0) {
    const Differences& differences = stats.differences;
    absl::StrAppendFormat(
        &text,
        "verified               %d tokens lost, %d repeated, %d changed; %d texts "
        "changed\n",
        differences.lost, differences.repeated, differences.changed, differences.changed_texts);
  }
  absl::StrAppendFormat(&text,
                        "requests/s             %.2f completed, at most %d at once\n"
                        "tokens/s               %.1f in total, %.1f in the median stream\n",
                        Ratio(static_cast<double>(stats.normal().completed), report.seconds),
                        report.max_running, TokensPerSecond(report),
                        Ratio(1, stats.tpot.Quantile(0.5)));
  if (options.limits.any()) {
    absl::StrAppendFormat(&text, "goodput                %.2f requests/s, %.1f %% of all\n",
                          Ratio(static_cast<double>(stats.good), report.seconds),
                          100 * GoodputRatio(stats));
  }
  absl::StrAppendFormat(&text, "%-22s %10s %10s %10s %10s %10s\n", "ms", "p50", "p90", "p99", "max",
                        "mean");
  absl::StrAppend(&text, Row("time to first token", stats.ttft), Row("between messages", stats.itl),
                  Row("longest of a stream", stats.gap), Row("per token", stats.tpot),
                  Row("whole request", stats.e2el));
  if (stats.refused > 0) absl::StrAppend(&text, Row("until refused", stats.refusal));
  if (IsOpen(options)) absl::StrAppend(&text, Row("sent late by", stats.send_lag));
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
  const Outcomes& normal = stats.normal();
  const Arrivals& arrivals = options.arrivals;
  const auto per_second = [&report](uint64_t count) {
    return Ratio(static_cast<double>(count), report.seconds);
  };
  const WorkloadOptions& workload = options.workload;
  OrderedJson json = {
      {"date", absl::FormatTime(absl::RFC3339_sec, absl::Now() - absl::Seconds(report.seconds),
                                absl::UTCTimeZone())},
      {"address", absl::StrJoin(options.targets, " ",
                                [](std::string* out, const ClientOptions& target) {
                                  absl::StrAppend(out, target.address);
                                })},
      {"model_id", workload.model},
      {"loop", IsOpen(options) ? "open" : "closed"},
      {"request_rate", IsOpen(options) ? OrderedJson(arrivals.rate) : OrderedJson("inf")},
      {"burstiness", arrivals.burstiness},
      {"max_concurrency", options.streams},
      {"connections", options.connections},
      {"max_tokens", MaxTokensText(workload)},
      {"prompt_bytes", PromptBytesText(workload)},
      {"prefix_bytes", workload.prefix_bytes},
      {"seed", workload.seed},
      {"num_prompts", normal.completed + normal.failed() + normal.cut},
      {"duration", report.seconds},
      {"client_cpu_seconds", report.client_cpu_seconds}};
  json.update(ToJson(normal));
  json.update({{"refused", stats.refused},
               {"retried", stats.retried},
               {"total_input_tokens", stats.prompt_tokens},
               {"total_output_tokens", stats.tokens},
               {"tokens_per_message",
                Ratio(static_cast<double>(stats.tokens), static_cast<double>(stats.messages))},
               {"request_throughput", per_second(normal.completed)},
               {"output_throughput", TokensPerSecond(report)},
               {"total_token_throughput", per_second(stats.tokens + stats.prompt_tokens)},
               {"max_output_tokens_per_s", PeakTokensPerSecond(stats)},
               {"max_concurrent_requests", report.max_running}});
  if (options.limits.any()) {
    json.update({{"goodput_limits_ms", ToJson(options.limits)},
                 {"request_goodput", per_second(stats.good)},
                 {"goodput_ratio", GoodputRatio(stats)}});
  }
  if (options.resume) {
    json.update({{"resumes", stats.resumes},
                 {"resumed_streams", stats.resumed_streams},
                 {"most_resumes", stats.most_resumes},
                 {"inexact_streams", stats.inexact_streams},
                 {"breaks", Breaks(stats)}});
  }
  if (options.verify > 0) {
    const Differences& differences = stats.differences;
    json.update({{"verify", options.verify},
                 {"lost_tokens", differences.lost},
                 {"repeated_tokens", differences.repeated},
                 {"changed_tokens", differences.changed},
                 {"changed_texts", differences.changed_texts}});
  }
  AddTimes(stats, json);
  json["early_ms_per_token"] = stats.early.SecondsPerToken() * 1e3;
  json["late_ms_per_token"] = stats.late.SecondsPerToken() * 1e3;
  for (size_t i = 1; i < kBehaviours; ++i) {
    json["others"][kBehaviourNames[i]] = ToJson(stats.outcomes[i]);
  }
  for (const auto& [address, outcomes] : stats.targets) json["targets"][address] = ToJson(outcomes);
  json["quantiles"] = Quantiles(stats);
  json["timeline"] = Timeline(stats);
  return DumpJson(json) + "\n";
}

}  // namespace aft::client
