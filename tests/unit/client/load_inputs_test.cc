// Tests what aftload sends and when: distributions, schedule, workload.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "client/aftload/distribution.h"
#include "client/aftload/http_events.h"
#include "client/aftload/schedule.h"
#include "client/aftload/workload.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::client {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

struct Moments {
  double mean = 0;
  double deviation = 0;
};

Moments MomentsOf(const std::vector<double>& values) {
  Moments moments;
  for (const double value : values) moments.mean += value / static_cast<double>(values.size());
  for (const double value : values) {
    moments.deviation += std::pow(value - moments.mean, 2) / static_cast<double>(values.size());
  }
  moments.deviation = std::sqrt(moments.deviation);
  return moments;
}

std::vector<double> Draw(const std::string& text, int count) {
  const Distribution distribution = *Distribution::Parse(text, 1'000'000);
  EXPECT_EQ(distribution.text(), text);
  std::mt19937_64 random(5);
  std::vector<double> values;
  for (int i = 0; i < count; ++i) values.push_back(distribution.Draw(random));
  return values;
}

TEST(DistributionTest, ANumberIsAlwaysDrawn) {
  EXPECT_THAT(Draw("17", 10), Each(17));
  std::mt19937_64 random;
  EXPECT_EQ(Distribution::Always(3).Draw(random), 3u);
}

TEST(DistributionTest, UniformReachesBothEndsAndNothingElse) {
  const std::vector<double> values = Draw("uniform:10:20", 5000);
  EXPECT_EQ(std::set<double>(values.begin(), values.end()).size(), 11u);
  EXPECT_THAT(values, Each(AllOf(Ge(10), Le(20))));
  EXPECT_NEAR(MomentsOf(values).mean, 15, 0.2);
  EXPECT_NEAR(MomentsOf(values).deviation, std::sqrt(10), 0.1);
}

TEST(DistributionTest, LognormalHasItsMedianAndSigma) {
  std::vector<double> values = Draw("lognormal:2000:0.5:1000000", 20'000);
  for (double& value : values) value = std::log(value);
  const Moments moments = MomentsOf(values);
  EXPECT_NEAR(moments.mean, std::log(2000), 0.02);
  EXPECT_NEAR(moments.deviation, 0.5, 0.01);
}

TEST(DistributionTest, LognormalEndsAtItsLargestLength) {
  const auto [low, high] = [] {
    const std::vector<double> values = Draw("lognormal:10:3:500", 5000);
    return std::pair(*std::min_element(values.begin(), values.end()),
                     *std::max_element(values.begin(), values.end()));
  }();
  EXPECT_EQ(low, 1);
  EXPECT_EQ(high, 500);
  const std::vector<double> values = Draw("lognormal:10:3", 5000);
  EXPECT_EQ(*std::max_element(values.begin(), values.end()), 200);  // 20 medians
}

TEST(DistributionTest, ALineOfAFileIsDrawnAsOftenAsItOccurs) {
  const TempFolder folder;
  std::ofstream(folder.File("lengths")) << "5\n\n 7 \n7\n7\n";
  const std::vector<double> values = Draw("file:" + folder.File("lengths"), 4000);
  EXPECT_NEAR(static_cast<double>(std::count(values.begin(), values.end(), 7)), 3000, 120);
  EXPECT_NEAR(static_cast<double>(std::count(values.begin(), values.end(), 5)), 1000, 120);
}

TEST(DistributionTest, SaysWhatIsWrong) {
  for (const char* text : {"",
                           "0",
                           "101",
                           "-1",
                           "x",
                           "uniform:5",
                           "uniform:6:5",
                           "uniform:0:5",
                           "uniform:5:101",
                           "uniform:1:2:3",
                           "lognormal:10",
                           "lognormal:0.5:1",
                           "lognormal:101:1",
                           "lognormal:10:-1",
                           "lognormal:10:11",
                           "lognormal:10:1:101",
                           "lognormal:10:1:0",
                           "lognormal:10:1:20:5",
                           "normal:10:1",
                           "file"}) {
    EXPECT_THAT(Distribution::Parse(text, 100),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("uniform:LOW:HIGH")))
        << text;
  }
  const TempFolder folder;
  EXPECT_THAT(Distribution::Parse("file:" + folder.File("none"), 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("none cannot be read")));
  std::ofstream(folder.File("bad")) << "5\n101\n";
  EXPECT_THAT(Distribution::Parse("file:" + folder.File("bad"), 100),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("\"101\" is no length")));
}

Arrivals OpenLoop(double rate, double burstiness, uint64_t requests, milliseconds duration) {
  return {.rate = rate,
          .burstiness = burstiness,
          .requests = requests,
          .duration = duration,
          .seed = 3};
}

TEST(ScheduleTest, AnOpenLoopKeepsItsRateAndBurstinessAndIsReproducible) {
  for (const double burstiness : {0.25, 1.0, 4.0}) {
    const Arrivals arrivals = OpenLoop(100, burstiness, 10'000, hours(1));
    Schedule first(arrivals, {}), second(arrivals, {});
    std::vector<double> gaps;
    Clock::time_point last;
    for (uint64_t i = 0; i < arrivals.requests; ++i) {
      const auto slot = first.Next({});
      ASSERT_TRUE(slot.has_value());
      EXPECT_EQ(slot->index, i);
      ASSERT_GE(slot->time, last);
      EXPECT_EQ(slot->time, second.Next({})->time);
      gaps.push_back(std::chrono::duration<double>(slot->time - last).count());
      last = slot->time;
    }
    EXPECT_FALSE(first.Next({}).has_value());
    const Moments moments = MomentsOf(gaps);
    EXPECT_NEAR(moments.mean, 0.01, 0.001) << burstiness;
    EXPECT_NEAR(moments.deviation / moments.mean, 1 / std::sqrt(burstiness), 0.1) << burstiness;
  }
}

TEST(ScheduleTest, NothingIsScheduledAfterTheEnd) {
  Schedule open(OpenLoop(1000, 1, 1'000'000, milliseconds(500)), {});
  uint64_t count = 0;
  while (const auto slot = open.Next({})) {
    EXPECT_LT(slot->time, Clock::time_point(milliseconds(500)));
    ++count;
  }
  EXPECT_GT(count, 300u);
  EXPECT_LT(count, 700u);

  const Clock::time_point start(hours(1));
  Schedule closed({.requests = 3, .duration = milliseconds(500)}, start);
  EXPECT_EQ(closed.Next(start + milliseconds(499))->time, start + milliseconds(499));
  EXPECT_FALSE(closed.Next(start + milliseconds(500)).has_value());
  EXPECT_EQ(closed.Next(start)->index, 1u);
  EXPECT_TRUE(closed.Next(start).has_value());
  EXPECT_FALSE(closed.Next(start).has_value());  // the fourth
}

TEST(WorkloadTest, TheSameSeedAndIndexMakeTheSameRequest) {
  WorkloadOptions options;
  options.model = "austen";
  options.max_tokens = *Distribution::Parse("uniform:1:1000", 1000);
  options.prompt_bytes = *Distribution::Parse("uniform:1:1000", 1000);
  options.cancel_share = 0.5;
  const Workload workload(options);
  WorkloadOptions later = options;
  later.seed = options.seed + 1;
  std::set<std::string> texts;
  for (uint64_t i = 0; i < 20; ++i) {
    const PlannedRequest request = workload.Make(i);
    EXPECT_EQ(request.request.SerializeAsString(),
              Workload(options).Make(i).request.SerializeAsString());
    EXPECT_EQ(request.request.model(), "austen");
    EXPECT_TRUE(request.request.stop().ignore_eos());
    EXPECT_EQ(request.request.sampling().seed(), options.seed + i);
    texts.insert(request.request.text());
    texts.insert(Workload(later).Make(i).request.text());
  }
  EXPECT_EQ(texts.size(), 40u);  // loads with neighbouring seeds have no prompt in common
}

TEST(WorkloadTest, SharesAreKeptAndCancellationsComeBeforeTheEnd) {
  WorkloadOptions options;
  options.max_tokens = Distribution::Always(10);
  options.cancel_share = 0.1;
  options.slow_share = 0.2;
  options.deadline_share = 0.3;
  const Workload workload(options);
  std::map<Behaviour, int> counts;
  std::set<uint32_t> cancelled_after;
  for (uint64_t i = 0; i < 10'000; ++i) {
    const PlannedRequest planned = workload.Make(i);
    ++counts[planned.behaviour];
    if (planned.behaviour == Behaviour::kCancels) cancelled_after.insert(planned.cancel_after);
  }
  EXPECT_NEAR(counts[Behaviour::kCancels], 1000, 100);
  EXPECT_NEAR(counts[Behaviour::kSlow], 2000, 150);
  EXPECT_NEAR(counts[Behaviour::kDeadline], 3000, 150);
  EXPECT_NEAR(counts[Behaviour::kNormal], 4000, 150);
  EXPECT_THAT(cancelled_after, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 9, 10));
}

TEST(WorkloadTest, PrefixesAreSharedAndTheRestOfThePromptIsNot) {
  WorkloadOptions options;
  options.prompt_bytes = Distribution::Always(50);
  options.prefix_bytes = 100;
  options.prefixes = 3;
  std::set<std::string> prefixes, rest;
  const Workload workload(options);
  for (uint64_t i = 0; i < 100; ++i) {
    const std::string text = workload.Make(i).request.text();
    ASSERT_EQ(text.size(), 150u);
    prefixes.insert(text.substr(0, 100));
    rest.insert(text.substr(100));
  }
  EXPECT_EQ(prefixes.size(), 3u);
  EXPECT_EQ(rest.size(), 100u);
  options.seed = 2;
  EXPECT_EQ(prefixes.count(Workload(options).Make(0).request.text().substr(0, 100)), 0u);
}

TEST(WorkloadTest, PromptsOfAFileComeInTurnWithTheirOwnLengths) {
  const TempFolder folder;
  std::ofstream(folder.File("p.txt")) << "{one}\n\n  two\n";
  std::ofstream(folder.File("p.jsonl")) << R"({"prompt": "one\ntwo", "output_tokens": 3, "x": 1})"
                                        << "\n"
                                        << R"({"prompt": "three"})"
                                        << "\n";
  WorkloadOptions options;
  options.max_tokens = Distribution::Always(9);
  options.prompts = *ReadPrompts(folder.File("p.txt"));
  EXPECT_EQ(Workload(options).Make(4).request.text(), "{one}");
  EXPECT_EQ(Workload(options).Make(5).request.text(), "  two");
  EXPECT_EQ(Workload(options).Make(5).request.stop().max_tokens(), 9u);
  options.prompts = *ReadPrompts(folder.File("p.jsonl"));
  EXPECT_EQ(Workload(options).Make(0).request.text(), "one\ntwo");
  EXPECT_EQ(Workload(options).Make(0).request.stop().max_tokens(), 3u);
  EXPECT_EQ(Workload(options).Make(1).request.stop().max_tokens(), 9u);
}

TEST(WorkloadTest, APromptThatIsNotUtf8IsSentAsRawBytes) {
  const TempFolder folder;
  std::ofstream(folder.File("p.txt")) << "caf\xE9\ncaf\xC3\xA9\n";
  WorkloadOptions options;
  options.prompts = *ReadPrompts(folder.File("p.txt"));
  const v1::GenerateRequest latin = Workload(options).Make(0).request;
  EXPECT_EQ(latin.raw(), "caf\xE9");
  EXPECT_THAT(CompletionBody(latin), HasSubstr("\"prompt\":\"caf\xEF\xBF\xBD\""));
  const v1::GenerateRequest text = Workload(options).Make(1).request;
  EXPECT_EQ(text.text(), "caf\xC3\xA9");
  EXPECT_THAT(CompletionBody(text), HasSubstr("\"prompt\":\"caf\xC3\xA9\""));
}

TEST(WorkloadTest, SaysWhichLineOfAPromptFileIsBad) {
  const TempFolder folder;
  for (const char* line :
       {"x", "[]", "{}", R"({"prompt": 1})", R"({"prompt": "a", "output_tokens": 0})",
        R"({"prompt": "a", "output_tokens": -1})", R"({"prompt": "a", "output_tokens": 1.5})",
        R"({"prompt": "a", "output_tokens": 1000000001})"}) {
    std::ofstream(folder.File("p.jsonl")) << R"({"prompt": "fine"})"
                                          << "\n"
                                          << line << "\n";
    EXPECT_THAT(ReadPrompts(folder.File("p.jsonl")),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("p.jsonl:2 is no object")))
        << line;
  }
  EXPECT_THAT(ReadPrompts(folder.File("none")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("cannot be read")));
}

}  // namespace
}  // namespace aft::client
