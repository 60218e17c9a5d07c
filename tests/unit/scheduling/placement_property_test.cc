// The scheduler under random load: slots, parking, tokens (invariants 5 and 7 of server/README.md).

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "server/scheduling/continuous_scheduler.h"
#include "tests/property/random_inputs.h"
#include "tests/support/manual_clock.h"

namespace aft::server {
namespace {

using std::chrono::milliseconds;

// Arrivals (also of groups), cancels, ends, classes, clients, quotas and steps in flight are
// random. No slot is lost or given out twice. No more sequences are parked than allowed. A sequence
// that a step names is neither parked nor forked. A group has all of its slots or none. Every
// sequence sees its tokens in order, however often it was parked or sat out. Slots are idle only if
// they are kept for a group. All sequences end.
TEST(PlacementPropertyTest, KeepsItsPromisesUnderRandomLoad) {
  TestRandom random;
  ManualClock clock;
  int64_t parks = 0;
  int64_t forks = 0;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    ContinuousScheduler::Options options;
    options.slots = static_cast<int32_t>(1 + random.Below(6));
    options.max_step_tokens = options.slots + 1 + random.Below(10);
    options.max_in_flight = static_cast<int>(1 + random.Below(2));
    options.age = milliseconds(50);
    options.max_client_slots = static_cast<int32_t>(random.Below(4));
    options.reserved_slots = std::min(static_cast<int32_t>(random.Below(3)), options.slots - 1);
    options.strict_quotas = random.Below(4) == 0;
    options.max_parked = static_cast<int32_t>(random.Below(5));
    ContinuousScheduler scheduler(options);

    struct Live {
      std::deque<TokenId> expected;  // what the model must get next: prompt, then what it drew
      int64_t fed = 0;
      int64_t outputs_left = 0;
      bool inside = true;
      int group = 0;  // 0: not in a group, or forked
    };
    std::deque<Sequence> storage;
    std::map<const Sequence*, Live> all;
    std::map<const Sequence*, int> named;  // steps in flight
    int64_t inside = 0;
    int groups = 0;
    TokenId next_token = 100;

    const auto remove = [&](Sequence& sequence) {
      scheduler.Remove(sequence);
      all[&sequence].inside = false;
      --inside;
    };
    for (int turn = 0; turn < 3000 && (turn < 300 || inside > 0); ++turn) {
      clock.Advance(milliseconds(1));
      for (int64_t n = turn < 300 ? random.Below(2) : 0; n > 0; --n) {
        std::vector<TokenId> prompt;
        for (int64_t i = 0; i <= random.Below(30); ++i) prompt.push_back(++next_token);
        const int64_t outputs = 1 + random.Below(60);
        const Sequence::Owner owner = {.client = absl::StrCat("c", random.Below(4)),
                                       .weight = static_cast<double>(1 + random.Below(3)),
                                       .max_slots = static_cast<int32_t>(random.Below(3)),
                                       .service_class = static_cast<ServiceClass>(random.Below(3))};
        Sequence& added =
            storage.emplace_back(prompt, Sequence::Purpose::kGenerate, outputs, owner);
        all[&added] = {{prompt.begin(), prompt.end()}, 0, outputs, true};
        const int32_t most = scheduler.MaxGroup(owner.max_slots, owner.service_class);
        const int64_t others = random.Below(3) == 0 ? random.Below(std::max(most, 1)) : 0;
        const int group = others > 0 ? ++groups : 0;
        all[&added].group = group;
        std::vector<Sequence*> group_of = {&added};
        for (int64_t i = 0; i < others; ++i) {
          Sequence& follower = storage.emplace_back(
              std::vector<TokenId>{prompt.back()}, Sequence::Purpose::kGenerate, 1 + i, owner,
              SequenceTurn{.first_position = added.prompt_end() - 1});
          added.Lead(follower);
          all[&follower] = {{prompt.back()}, added.prompt_end() - 1, 1 + i, true, group};
          group_of.push_back(&follower);
        }
        for (Sequence* member : group_of) scheduler.Add(*member, clock.Now());
        inside += static_cast<int64_t>(group_of.size());
      }
      for (Sequence& sequence : storage) {
        if (all[&sequence].inside && random.Below(200) == 0) remove(sequence);
      }

      const int32_t parked_before = scheduler.parked();
      const Placement& placement = scheduler.Place(clock.Now());
      parks += static_cast<int64_t>(placement.parked.size());
      forks += static_cast<int64_t>(placement.forked.size());
      for (const auto& [leader, sequence] : placement.forked) {
        ASSERT_EQ(named[leader] + named[sequence], 0);
        ASSERT_EQ(leader->position(), sequence->position());  // the copied state is the one needed
        ASSERT_GE(leader->slot(), 0);
        ASSERT_GE(sequence->slot(), 0);
        all[leader].group = all[sequence].group = 0;
      }
      for (Sequence* sequence : placement.abandoned) {
        ASSERT_TRUE(all[sequence].inside);
        ASSERT_EQ(sequence->slot(), -1);
        remove(*sequence);
      }
      std::map<int, std::set<bool>> with_slots;
      for (const Sequence& sequence : storage) {
        const Live& live = all[&sequence];
        if (live.inside && live.group > 0) with_slots[live.group].insert(sequence.slot() >= 0);
      }
      for (const auto& [group, kinds] : with_slots) ASSERT_EQ(kinds.size(), 1U);
      for (const auto& [sequence, slot] : placement.parked) {
        ASSERT_EQ(named[sequence], 0);
      }
      // All newly kept states are in memory before any parked sequence gets a slot again.
      ASSERT_LE(parked_before + static_cast<int32_t>(placement.parked.size()), options.max_parked);
      ASSERT_LE(scheduler.parked(), options.max_parked);
      ASSERT_EQ(scheduler.live() + scheduler.waiting() + scheduler.parked(), inside);
      ASSERT_EQ(scheduler.slots().used() + scheduler.slots().free(), options.slots);
      if (!options.strict_quotas && scheduler.slots().free() > 0) {
        const bool group_waits =
            std::any_of(storage.begin(), storage.end(), [&](const Sequence& sequence) {
              return sequence.phase() == Sequence::Phase::kWaiting &&
                     sequence.group_size() > scheduler.slots().free();
            });
        ASSERT_TRUE(group_waits || scheduler.waiting() + scheduler.parked() == 0);
      }
      std::set<int32_t> slots;
      for (const Sequence& sequence : storage) {
        if (sequence.slot() >= 0) {
          ASSERT_TRUE(slots.insert(sequence.slot()).second);
        }
      }
      ASSERT_EQ(static_cast<int32_t>(slots.size()), scheduler.live());

      const StepCost cost = {.fixed = random.Uniform(0, 3), .token = random.Uniform(0, 1)};
      if (const Step* const step = scheduler.Schedule(random.Below(20), cost); step != nullptr) {
        ASSERT_LE(step->tokens, options.max_step_tokens);
        for (size_t i = 0; i < step->sequences.size(); ++i) {
          Sequence* const sequence = step->sequences[i];
          Live& live = all[sequence];
          const StepRow& row = step->input.rows[i];
          ++named[sequence];
          ASSERT_EQ(row.slot, sequence->slot());
          ASSERT_EQ(row.first_position, live.fed);
          ASSERT_EQ(row.output == RowOutput::kLast, sequence->prompt_left() == 0);
          live.fed += static_cast<int64_t>(row.tokens.size());
          for (const TokenId token : row.tokens) {
            if (token == kLastSampled) {
              ASSERT_EQ(named[sequence], 2);
              continue;  // known once the step before has retired
            }
            ASSERT_FALSE(live.expected.empty());
            ASSERT_EQ(token, live.expected.front());
            live.expected.pop_front();
          }
        }
      }
      if (scheduler.in_flight() == 0) continue;
      if (scheduler.in_flight() < options.max_in_flight && random.Below(4) != 0) continue;
      const Step& step = scheduler.Retire();
      for (size_t i = 0; i < step.sequences.size(); ++i) {
        Sequence* const sequence = step.sequences[i];
        if (sequence == nullptr) continue;
        --named[sequence];
        if (step.input.rows[i].output != RowOutput::kLast) continue;
        Live& live = all[sequence];
        scheduler.Sampled(*sequence, ++next_token);
        if (named[sequence] == 0) live.expected.push_back(next_token);  // else a step consumes it
        if (--live.outputs_left == 0 || random.Below(100) == 0) remove(*sequence);
      }
    }
    EXPECT_EQ(inside, 0);
    while (scheduler.in_flight() > 0) scheduler.Retire();
    EXPECT_EQ(scheduler.slots().free(), options.slots);
    EXPECT_EQ(scheduler.parked(), 0);
  }
  EXPECT_GT(parks, 100);  // sequences were parked
  EXPECT_GT(forks, 100);
}

}  // namespace
}  // namespace aft::server
