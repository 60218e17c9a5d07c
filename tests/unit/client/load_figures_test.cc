// Tests what aftload measures and reports: histogram, stream recorder, reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/aftload/histogram.h"
#include "client/aftload/load_options.h"
#include "client/aftload/reference.h"
#include "client/aftload/report.h"
#include "client/aftload/stream_recorder.h"

namespace aft::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST(HistogramTest, QuantilesAreRightToTwoPercentOverTheWholeRange) {
  for (const int64_t unit : {1L, 63L, 64L, 100L, 1'000'003L, 3'600'000'000'000L}) {
    Histogram histogram;
    for (int64_t i = 1; i <= 1000; ++i) histogram.Add(nanoseconds(i * unit));
    for (const double q : {0.001, 0.5, 0.9, 0.99, 1.0}) {
      const double exact = q * 1000 * static_cast<double>(unit) / 1e9;
      EXPECT_NEAR(histogram.Quantile(q), exact, exact * 0.02) << unit << " " << q;
    }
    EXPECT_NEAR(histogram.Mean(), 500.5 * static_cast<double>(unit) / 1e9,
                1e-9 * static_cast<double>(unit));
  }
}

TEST(HistogramTest, AcceptsTheSmallestAndTheLargestValue) {
  Histogram histogram;
  EXPECT_EQ(histogram.Quantile(0.5), 0);
  histogram.Add(nanoseconds(-5));
  EXPECT_EQ(histogram.Quantile(1), 0);
  histogram.Add(nanoseconds::max());
  EXPECT_NEAR(histogram.Quantile(1), 9.22e9, 0.2e9);
}

TEST(HistogramTest, Merges) {
  Histogram a, b, both;
  for (int i = 0; i < 3; ++i) a.Add(milliseconds(1));
  b.Add(milliseconds(9));
  both.Merge(a);
  both.Merge(b);
  EXPECT_EQ(both.count(), 4u);
  EXPECT_NEAR(both.Mean(), 0.003, 1e-9);
  EXPECT_NEAR(both.Quantile(0.75), 0.001, 0.00002);
  EXPECT_NEAR(both.Quantile(1), 0.009, 0.0002);
  EXPECT_NEAR(both.StandardDeviation(), 0.003464, 1e-6);  // the values are 1, 1, 1 and 9 ms
  EXPECT_EQ(both.Max(), 0.009);
}

// Records a request with a token at each time in `token_ms`, and its end 1 ms after the last token.
void RecordStream(LoadStats& stats, const std::vector<int>& token_ms, uint64_t expected,
                  Behaviour behaviour = Behaviour::kNormal, const Limits& limits = {}) {
  StreamRecorder recorder(expected, stats.start, behaviour, limits, "a:1");
  recorder.OnSent(stats, stats.start + milliseconds(2));
  for (const int ms : token_ms) recorder.OnTokens(stats, 1, stats.start + milliseconds(ms));
  recorder.OnCompleted(stats, stats.start + milliseconds(token_ms.back() + 1));
}

TEST(StreamRecorderTest, MeasuresFromTheScheduledTime) {
  LoadStats stats(Clock::time_point(hours(1)));
  StreamRecorder recorder(5, stats.start, Behaviour::kNormal, {}, "a:1");
  recorder.OnSent(stats, stats.start + milliseconds(4));
  recorder.OnTokens(stats, 0, stats.start + milliseconds(5));
  recorder.OnTokens(stats, 1, stats.start + milliseconds(10));
  recorder.OnTokens(stats, 4, stats.start + milliseconds(18));
  recorder.OnCompleted(stats, stats.start + milliseconds(20));
  EXPECT_EQ(stats.tokens, 5u);
  EXPECT_EQ(stats.messages, 2u);
  EXPECT_EQ(stats.normal().completed, 1u);
  EXPECT_EQ(stats.itl.count(), 1u);
  EXPECT_NEAR(stats.send_lag.Mean(), 0.004, 1e-9);
  EXPECT_NEAR(stats.ttft.Mean(), 0.010, 1e-9);
  EXPECT_NEAR(stats.itl.Mean(), 0.008, 1e-9);
  EXPECT_NEAR(stats.tpot.Mean(), 0.002, 1e-9);
  EXPECT_NEAR(stats.e2el.Mean(), 0.020, 1e-9);
}

TEST(StreamRecorderTest, AGoodRequestIsAtOrBelowEveryLimit) {
  const auto good = [](const Limits& limits) {
    LoadStats stats(Clock::time_point(hours(1)));
    RecordStream(stats, {10, 20, 40}, 3, Behaviour::kNormal, limits);  // ttft 10, tpot 15, e2el 41
    return stats.good;
  };
  EXPECT_EQ(good({}), 1u);
  EXPECT_EQ(good({.ttft_ms = 10, .tpot_ms = 15, .e2el_ms = 41}), 1u);
  EXPECT_EQ(good({.ttft_ms = 9.9, .tpot_ms = 15, .e2el_ms = 41}), 0u);
  EXPECT_EQ(good({.ttft_ms = 10, .tpot_ms = 14.9, .e2el_ms = 41}), 0u);
  EXPECT_EQ(good({.ttft_ms = 10, .tpot_ms = 15, .e2el_ms = 40.9}), 0u);
  EXPECT_EQ(good({.e2el_ms = 41}), 1u);

  const Limits limits = {.tpot_ms = 1};
  LoadStats stats(Clock::time_point(hours(1)));
  StreamRecorder empty(3, stats.start, Behaviour::kNormal, limits, "a:1");
  empty.OnCompleted(stats, stats.start);
  EXPECT_EQ(stats.good, 0u);  // no token came
  RecordStream(stats, {5}, 1, Behaviour::kNormal, limits);
  EXPECT_EQ(stats.good, 1u);  // one token has no time per token
}

TEST(StreamRecorderTest, OnlyNormalRequestsAreTimed) {
  LoadStats stats(Clock::time_point(hours(1)));
  for (const Behaviour behaviour : {Behaviour::kCancels, Behaviour::kSlow, Behaviour::kDeadline}) {
    RecordStream(stats, {10, 20}, 2, behaviour);
    EXPECT_EQ(stats.outcomes[static_cast<size_t>(behaviour)].completed, 1u);
  }
  EXPECT_EQ(stats.normal().completed, 0u);
  EXPECT_EQ(stats.ttft.count() + stats.itl.count() + stats.tpot.count() + stats.e2el.count() +
                stats.send_lag.count() + stats.good + stats.early.tokens,
            0u);
  EXPECT_EQ(stats.tokens, 6u);
  EXPECT_EQ(stats.targets["a:1"].completed, 3u);
}

TEST(StreamRecorderTest, CountsEveryEndBySecondBehaviourAndTarget) {
  LoadStats stats(Clock::time_point(hours(1))), other(stats.start);
  RecordStream(stats, {500, 1500, 2500}, 3);
  StreamRecorder failed(3, stats.start, Behaviour::kNormal, {}, "b:1");
  failed.OnFailed(other, "INTERNAL", stats.start + milliseconds(3000));
  StreamRecorder(3, stats.start, Behaviour::kDeadline, {}, "b:1")
      .OnOther(other, &Outcomes::expired);
  stats.Merge(other);
  EXPECT_EQ(stats.normal().failed(), 1u);
  EXPECT_EQ(stats.normal().errors.at("INTERNAL"), 1u);
  EXPECT_EQ(stats.outcomes[static_cast<size_t>(Behaviour::kDeadline)].expired, 1u);
  EXPECT_EQ(stats.targets["a:1"].completed, 1u);
  EXPECT_EQ(stats.targets["b:1"].failed(), 1u);
  EXPECT_EQ(stats.targets["b:1"].expired, 1u);
  ASSERT_EQ(stats.seconds.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(stats.seconds[i].output_tokens, i < 3 ? 1u : 0u) << i;
    EXPECT_EQ(stats.seconds[i].completed, i == 2 ? 1u : 0u) << i;
    EXPECT_EQ(stats.seconds[i].failed, i == 3 ? 1u : 0u) << i;
  }
}

TEST(StreamRecorderTest, ComparesTheFirstAndTheLastTenth) {
  LoadStats stats(Clock::time_point(hours(1)));
  std::vector<int> token_ms(100);
  for (int i = 0; i < 100; ++i) token_ms[i] = i < 50 ? i + 1 : 50 + 3 * (i - 49);
  RecordStream(stats, token_ms, 100);
  EXPECT_NEAR(stats.early.SecondsPerToken(), 0.001, 1e-9);
  EXPECT_NEAR(stats.late.SecondsPerToken(), 0.003, 1e-9);
  EXPECT_EQ(stats.early.tokens, 9u);  // the gaps after the first message
  EXPECT_EQ(stats.late.tokens, 10u);
}

TEST(StreamRecorderTest, LeavesStreamsThatEndEarlyOutOfTheComparison) {
  LoadStats stats(Clock::time_point(hours(1)));
  std::vector<int> token_ms(95);
  for (int i = 0; i < 95; ++i) token_ms[i] = i + 1;
  RecordStream(stats, token_ms, 100);
  EXPECT_EQ(stats.early.tokens, 0u);
  EXPECT_EQ(stats.late.tokens, 0u);
}

TEST(StreamRecorderTest, CountsTheLongestGapOfEachStream) {
  LoadStats stats(Clock::time_point(hours(1))), other(stats.start);
  RecordStream(stats, {100, 110, 140, 145}, 4);
  RecordStream(other, {10, 15}, 2);
  RecordStream(other, {500}, 1);  // has no gap
  RecordStream(other, {10, 900}, 2, Behaviour::kSlow);
  stats.Merge(other);
  EXPECT_EQ(stats.gap.count(), 2u);
  EXPECT_NEAR(stats.gap.Quantile(0), 0.005, 0.0001);
  EXPECT_EQ(stats.gap.Max(), 0.030);
}

TEST(StreamRecorderTest, CountsHowOftenStreamsWereResumed) {
  LoadStats stats(Clock::time_point(hours(1))), other(stats.start);
  StreamRecorder often(3, stats.start, Behaviour::kNormal, {}, "a:1");
  often.OnResumed(stats, {.exact = true}, stats.start);
  often.OnResumed(stats, {.exact = false}, stats.start);
  often.OnResumed(stats, {.exact = false}, stats.start);
  StreamRecorder once(3, stats.start, Behaviour::kNormal, {}, "a:1");
  once.OnResumed(other, {.exact = true}, stats.start);
  stats.Merge(other);
  EXPECT_EQ(stats.resumes, 4u);
  EXPECT_EQ(stats.resumed_streams, 2u);
  EXPECT_EQ(stats.inexact_streams, 1u);
  EXPECT_EQ(stats.most_resumes, 3u);
  EXPECT_TRUE(stats.breaks.empty());  // no resume came between two tokens
}

TEST(StreamRecorderTest, ABreakSplitsTheTimeBetweenTwoTokensIntoParts) {
  LoadStats stats(Clock::time_point(hours(1))), other(stats.start);
  const auto at = [&](int ms) { return stats.start + milliseconds(ms); };
  StreamRecorder recorder(9, stats.start, Behaviour::kNormal, {}, "a:1", "broken");
  recorder.OnTokens(stats, 3, at(10));
  recorder.OnResumed(
      stats, {.tries = 2, .until_sent = milliseconds(100), .until_started = milliseconds(20)},
      at(135));
  recorder.OnTokens(stats, 1, at(142));
  recorder.OnTokens(stats, 1, at(143));
  recorder.OnResumed(stats, {}, at(150));  // no token comes after it
  StreamRecorder longer(9, stats.start, Behaviour::kNormal, {}, "a:1", "longer");
  longer.OnTokens(other, 1, at(0));
  longer.OnResumed(other, {.until_started = milliseconds(500)}, at(501));
  longer.OnTokens(other, 1, at(501));
  stats.Merge(other);
  ASSERT_EQ(stats.breaks.size(), 2u);

  LoadOptions options;
  options.resume = true;
  const auto json = nlohmann::json::parse(JsonReport(options, {.stats = stats, .seconds = 1}));
  EXPECT_EQ(json["breaks"], nlohmann::json::parse(R"([
      {"request_id": "longer", "tokens": 1, "tries": 1, "gap_ms": 501, "until_broken_ms": 1,
       "until_sent_ms": 0, "until_started_ms": 500, "until_token_ms": 0},
      {"request_id": "broken", "tokens": 3, "tries": 2, "gap_ms": 132, "until_broken_ms": 5,
       "until_sent_ms": 100, "until_started_ms": 20, "until_token_ms": 7}])"));
}

TEST(StreamRecorderTest, TokensThatOnlyTheUsageCountsAreSpreadEvenly) {
  LoadStats stats(Clock::time_point(std::chrono::hours(1)));
  const auto at = [&](int ms) { return stats.start + std::chrono::milliseconds(ms); };
  StreamRecorder recorder(12, stats.start, Behaviour::kNormal, {}, "a:1");
  recorder.OnTokens(stats, 1, at(500));
  recorder.OnTokens(stats, 1, at(2700));
  recorder.OnUsage(stats, 12, at(2800));
  recorder.OnCompleted(stats, at(2800));
  EXPECT_EQ(stats.tokens, 12u);
  EXPECT_EQ(stats.messages, 2u);
  EXPECT_EQ(stats.seconds[0].output_tokens, 4u);
  EXPECT_EQ(stats.seconds[1].output_tokens, 3u);
  EXPECT_NEAR(stats.tpot.Mean(), 0.2, 1e-6);
  EXPECT_EQ(stats.early.tokens + stats.late.tokens, 0u);
  StreamRecorder textless(2, stats.start, Behaviour::kNormal, {}, "a:1");
  textless.OnUsage(stats, 2, at(2900));
  EXPECT_EQ(stats.tokens, 14u);
  EXPECT_EQ(stats.ttft.count(), 2u);
}

TEST(StreamRecorderTest, AStreamOfOneMessageHasNoGapWhateverItsUsage) {
  LoadStats stats(Clock::time_point(std::chrono::hours(1)));
  StreamRecorder recorder(5, stats.start, Behaviour::kNormal, {}, "a:1");
  recorder.OnTokens(stats, 1, stats.start);
  recorder.OnUsage(stats, 5, stats.start);
  recorder.OnCompleted(stats, stats.start);
  EXPECT_EQ(stats.tokens, 5u);
  EXPECT_EQ(stats.gap.count(), 0u);
}

v1::Delta MakeDelta(uint32_t first, const std::vector<uint32_t>& ids, const std::string& text) {
  v1::Delta delta;
  delta.set_first_index(first);
  delta.mutable_token_ids()->Assign(ids.begin(), ids.end());
  delta.set_text(text);
  return delta;
}

TEST(StreamVerifierTest, CountsLostRepeatedAndChangedTokens) {
  const Reference reference = {.token_ids = {1, 2, 3, 4}, .text = "abcd"};
  struct Case {
    std::vector<v1::Delta> deltas;
    uint64_t lost, repeated, changed, changed_texts;
  };
  const std::vector<Case> cases = {
      {{MakeDelta(0, {1, 2}, "a"), MakeDelta(2, {3, 4}, "bc"), MakeDelta(4, {}, "d")}, 0, 0, 0, 0},
      {{MakeDelta(0, {1, 2}, "ab"), MakeDelta(2, {9, 4}, "cd")}, 0, 0, 1, 0},
      {{MakeDelta(0, {1, 2}, "ab"), MakeDelta(3, {4}, "d")}, 1, 0, 0, 1},
      {{MakeDelta(0, {1, 2}, "ab"), MakeDelta(1, {2, 3, 4}, "bcd")}, 0, 1, 0, 1},
      {{MakeDelta(0, {1, 2, 3, 4, 5}, "abcde")}, 0, 0, 1, 1},
      {{MakeDelta(0, {1, 2, 3, 4, 5}, "abcde"), MakeDelta(5, {6}, "f")}, 0, 0, 2, 1},
      {{MakeDelta(0, {1, 2, 3}, "abc")}, 1, 0, 0, 1},
      {{MakeDelta(0, {1, 2, 3, 4}, "abcx")}, 0, 0, 0, 1},
      {{}, 4, 0, 0, 1},
  };
  for (const auto& [deltas, lost, repeated, changed, changed_texts] : cases) {
    Differences differences;
    StreamVerifier verifier(&reference);
    for (const v1::Delta& delta : deltas) verifier.OnDelta(delta, differences);
    verifier.OnCompleted(differences);
    EXPECT_EQ(differences.lost, lost);
    EXPECT_EQ(differences.repeated, repeated);
    EXPECT_EQ(differences.changed, changed);
    EXPECT_EQ(differences.changed_texts, changed_texts);
    EXPECT_EQ(differences.any(), lost + repeated + changed + changed_texts > 0);
  }
  Differences differences;
  StreamVerifier blind(nullptr);
  blind.OnDelta(MakeDelta(0, {7}, "x"), differences);
  blind.OnCompleted(differences);
  EXPECT_FALSE(differences.any());
}

TEST(ReportTest, ReportsResumedStreamsAndDifferences) {
  LoadOptions options;
  options.resume = true;
  options.verify = 5;
  LoadReport report{.stats = LoadStats(Clock::time_point(hours(1))), .seconds = 1};
  LoadStats& stats = report.stats;
  RecordStream(stats, {10, 40}, 2);
  stats.resumes = 7;
  stats.resumed_streams = 4;
  stats.most_resumes = 3;
  stats.inexact_streams = 2;
  stats.differences = {.lost = 11, .repeated = 12, .changed = 13, .changed_texts = 14};
  const auto json = nlohmann::json::parse(JsonReport(options, report));
  const std::map<std::string, int> expected = {{"resumes", 7},          {"resumed_streams", 4},
                                               {"most_resumes", 3},     {"inexact_streams", 2},
                                               {"verify", 5},           {"lost_tokens", 11},
                                               {"repeated_tokens", 12}, {"changed_tokens", 13},
                                               {"changed_texts", 14},   {"max_longest_gap_ms", 30}};
  for (const auto& [name, value] : expected) EXPECT_EQ(json.value(name, -1.0), value) << name;
  EXPECT_THAT(TextReport(options, report),
              AllOf(HasSubstr("4 streams, 7 times, at most 3 times each, 2 of them inexact"),
                    HasSubstr("11 tokens lost, 12 repeated, 13 changed; 14 texts changed"),
                    HasSubstr("longest of a stream        30.")));
  const auto plain = nlohmann::json::parse(JsonReport({}, {.seconds = 1}));
  EXPECT_FALSE(plain.contains("resumes"));
  EXPECT_FALSE(plain.contains("lost_tokens"));
}

TEST(ReportTest, JsonHasTheNamesOfVllmsBenchmark) {
  LoadOptions options;
  options.streams = 8;
  options.arrivals.rate = 20;
  options.arrivals.burstiness = 0.5;
  options.limits = {.ttft_ms = 10};
  LoadReport report{.stats = LoadStats(Clock::time_point(hours(1)))};
  LoadStats& stats = report.stats;
  report.seconds = 4;
  report.max_running = 3;
  RecordStream(stats, {10, 20, 40}, 3, Behaviour::kNormal, options.limits);
  RecordStream(stats, {30, 40, 60}, 3, Behaviour::kNormal, options.limits);
  RecordStream(stats, {1100}, 1, Behaviour::kSlow, options.limits);
  StreamRecorder failed(3, stats.start, Behaviour::kNormal, options.limits, "b:1");
  failed.OnFailed(stats, "UNAVAILABLE", stats.start);
  StreamRecorder(3, stats.start, Behaviour::kNormal, {}, "b:1").OnOther(stats, &Outcomes::cut);
  stats.prompt_tokens = 40;
  stats.refused = 2;
  stats.refusal.Add(milliseconds(5));

  const std::string text = JsonReport(options, report);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  const auto json = nlohmann::json::parse(text);
  const std::map<std::string, double> expected = {{"request_rate", 20},
                                                  {"burstiness", 0.5},
                                                  {"max_concurrency", 8},
                                                  {"num_prompts", 4},
                                                  {"duration", 4},
                                                  {"completed", 2},
                                                  {"failed", 1},
                                                  {"cut", 1},
                                                  {"refused", 2},
                                                  {"total_input_tokens", 40},
                                                  {"total_output_tokens", 7},
                                                  {"request_throughput", 0.5},
                                                  {"output_throughput", 1.75},
                                                  {"total_token_throughput", 11.75},
                                                  {"max_output_tokens_per_s", 6},
                                                  {"max_concurrent_requests", 3},
                                                  {"request_goodput", 0.25},
                                                  {"goodput_ratio", 0.25},
                                                  {"mean_ttft_ms", 20},
                                                  {"median_ttft_ms", 10},
                                                  {"std_ttft_ms", 10},
                                                  {"max_ttft_ms", 30},
                                                  {"p90_ttft_ms", 30},
                                                  {"p99_ttft_ms", 30},
                                                  {"mean_tpot_ms", 15},
                                                  {"mean_itl_ms", 15},
                                                  {"mean_e2el_ms", 51},
                                                  {"mean_send_lag_ms", 2},
                                                  {"mean_refusal_ms", 5},
                                                  {"count_itl", 4},
                                                  {"tokens_per_message", 1}};
  for (const auto& [name, value] : expected) {
    ASSERT_TRUE(json.contains(name)) << name;
    EXPECT_NEAR(json[name].get<double>(), value, value * 0.01) << name;
  }
  ASSERT_EQ(json["quantiles"]["q"].size(), 104U);
  EXPECT_EQ(json["quantiles"]["q"][50], 0.5);
  EXPECT_EQ(json["quantiles"]["q"].back(), 1);
  for (const char* metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const char* what : {"mean_", "median_", "std_", "p90_", "p99_", "max_"}) {
      EXPECT_TRUE(json.contains(std::string(what) + metric + "_ms")) << what << metric;
    }
    const auto& values = json["quantiles"][std::string(metric) + "_ms"];
    ASSERT_EQ(values.size(), json["quantiles"]["q"].size());
    EXPECT_TRUE(std::is_sorted(values.begin(), values.end()));
  }
  EXPECT_EQ(json["loop"], "open");
  EXPECT_EQ(json["errors"], nlohmann::json({{"UNAVAILABLE", 1}}));
  EXPECT_EQ(json["goodput_limits_ms"], nlohmann::json({{"ttft", 10.0}}));
  EXPECT_EQ(json["others"]["slow"]["completed"], 1);
  EXPECT_EQ(json["targets"]["a:1"]["completed"], 3);
  EXPECT_EQ(json["targets"]["b:1"]["failed"], 1);
  EXPECT_EQ(json["timeline"]["output_tokens"], nlohmann::json({6, 1}));
  EXPECT_EQ(json["timeline"]["completed"], nlohmann::json({2, 1}));
  EXPECT_EQ(json["timeline"]["failed"], nlohmann::json({1, 0}));
  EXPECT_THAT(TextReport(options, report),
              AllOf(HasSubstr("2 completed, 1 cut at the end, 1 UNAVAILABLE"),
                    HasSubstr("0.25 requests/s, 25.0 % of all"), HasSubstr("  slow "),
                    HasSubstr("  b:1 "), HasSubstr("refused                2 times"),
                    ContainsRegex("in total, 6[5-8]\\.[0-9] in the median stream"),
                    ContainsRegex("per token  [^\n]* 15\\.000 +15\\.000\n"),
                    ContainsRegex("whole request  [^\n]* 51\\.000\n"),
                    ContainsRegex("until refused  [^\n]* 5\\.000\n"),
                    ContainsRegex("sent late by  [^\n]* 2\\.000\n")));
}

TEST(ReportTest, TargetsAreCountedApartOnlyIfThereAreSeveral) {
  LoadReport report = {.seconds = 1};
  report.stats.targets["a:1"].completed = 3;
  EXPECT_THAT(TextReport({}, report), Not(HasSubstr("a:1")));
  report.stats.targets["b:1"].completed = 1;
  EXPECT_THAT(TextReport({}, report), AllOf(HasSubstr("\n  a:1 "), HasSubstr("\n  b:1 ")));
}

TEST(ReportTest, SaysThatAFileHasTheLengths) {
  LoadOptions options;
  options.workload.prompts = {{.text = "four", .max_tokens = std::nullopt}};
  auto json = nlohmann::json::parse(JsonReport(options, {.seconds = 1}));
  EXPECT_EQ(json["max_tokens"], "64");
  EXPECT_EQ(json["prompt_bytes"], "4");
  options.workload.prompts.push_back({.text = "", .max_tokens = 3});
  json = nlohmann::json::parse(JsonReport(options, {.seconds = 1}));
  EXPECT_EQ(json["max_tokens"], "file");
  EXPECT_EQ(json["prompt_bytes"], "file");
  EXPECT_THAT(TextReport(options, {.seconds = 1}), HasSubstr(", file tokens each, 1.00 s"));
}

TEST(ReportTest, AClosedLoopWithoutLimitsHasNoGoodput) {
  const auto json = nlohmann::json::parse(JsonReport({}, {.seconds = 1}));
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_EQ(json["loop"], "closed");
  EXPECT_FALSE(json.contains("request_goodput"));
  EXPECT_FALSE(json.contains("goodput_ratio"));
  EXPECT_THAT(TextReport({}, {.seconds = 1}), Not(HasSubstr("sent late by")));
}

}  // namespace
}  // namespace aft::client
