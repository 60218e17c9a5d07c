#include "server/scheduling/admission_budget.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/property/random_inputs.h"

namespace aft::server {
namespace {

using Decision = AdmissionBudget::Decision;

constexpr int32_t kNoQuota = 1000;
constexpr int32_t kAllSlots = 1000;

class AdmissionBudgetTest : public testing::Test {
 protected:
  Decision Admit(int64_t tokens, const std::string& client = "a", int32_t quota = kNoQuota,
                 ServiceClass service_class = ServiceClass::kNormal, int32_t slots = kAllSlots) {
    AdmissionBudget::Charge charge;
    Decision decision = budget_.Enter(client, quota, slots, charge);
    if (decision != Decision::kAdmitted) return decision;
    decision = budget_.AddText(tokens, service_class, charge);
    if (decision == Decision::kAdmitted) {
      charges_.push_back(charge);
    } else {
      budget_.Leave(charge);
    }
    return decision;
  }

  AdmissionBudget budget_{{.slots = 2, .max_queued_requests = 2, .max_queued_tokens = 10}};
  std::deque<AdmissionBudget::Charge> charges_;
};

TEST_F(AdmissionBudgetTest, BoundsOnlyTheRequestsThatWait) {
  // Two requests find a slot, whatever their length. Two more may wait.
  EXPECT_EQ(Admit(1000), Decision::kAdmitted);
  EXPECT_EQ(Admit(1000), Decision::kAdmitted);
  EXPECT_EQ(Admit(11), Decision::kTooManyTokens);
  EXPECT_EQ(Admit(6, "b"), Decision::kAdmitted);
  EXPECT_EQ(Admit(5), Decision::kTooManyTokens);
  EXPECT_EQ(Admit(4), Decision::kAdmitted);
  EXPECT_EQ(Admit(0), Decision::kTooManyRequests);
  EXPECT_EQ(budget_.running(), 2);
  EXPECT_EQ(budget_.waiting(), 2);
  EXPECT_EQ(budget_.queued_tokens(), 10);

  budget_.Leave(charges_[0]);       // a slot is free
  budget_.LeaveQueue(charges_[2]);  // the first waiting request takes the slot
  EXPECT_EQ(budget_.waiting(), 1);
  EXPECT_EQ(budget_.queued_tokens(), 4);
  EXPECT_EQ(Admit(6, "c"), Decision::kAdmitted);
  budget_.Leave(charges_[4]);  // cancelled in the queue
  EXPECT_EQ(budget_.queued_tokens(), 4);
  EXPECT_EQ(budget_.waiting(), 1);
  budget_.Leave(charges_[2]);  // its tokens left the queue before it
  EXPECT_EQ(budget_.queued_tokens(), 4);
  EXPECT_EQ(budget_.waiting(), 0);
}

TEST_F(AdmissionBudgetTest, AClientHasItsQuotaOfTheQueueAndAllFreeSlots) {
  EXPECT_EQ(Admit(1, "a", 1), Decision::kAdmitted);
  EXPECT_EQ(Admit(1, "a", 1), Decision::kAdmitted);
  EXPECT_EQ(Admit(1, "a", 1), Decision::kAdmitted);
  EXPECT_EQ(Admit(1, "a", 1), Decision::kTooManyOfClient);
  EXPECT_EQ(Admit(1, "b", 1), Decision::kAdmitted);
  EXPECT_EQ(Admit(1, "b", 1), Decision::kTooManyRequests);
  budget_.LeaveQueue(charges_[2]);
  budget_.LeaveQueue(charges_[2]);  // again is harmless
  budget_.Leave(charges_[0]);
  EXPECT_EQ(Admit(1, "a", 1), Decision::kAdmitted);
}

TEST_F(AdmissionBudgetTest, RequestsBeyondTheSlotsOfTheirClientWait) {
  AdmissionBudget budget({.slots = 4, .max_queued_requests = 3, .max_queued_tokens = 10});
  std::deque<AdmissionBudget::Charge> charges;
  const auto admit = [&](const std::string& client) {
    AdmissionBudget::Charge charge;
    const Decision decision = budget.Enter(client, /*client_quota=*/2, /*client_slots=*/1, charge);
    if (decision == Decision::kAdmitted) charges.push_back(charge);
    return decision;
  };
  for (int i = 0; i < 3; ++i) EXPECT_EQ(admit("a"), Decision::kAdmitted);
  EXPECT_EQ(budget.running(), 1);
  EXPECT_EQ(budget.waiting(), 2);
  EXPECT_EQ(admit("a"), Decision::kTooManyOfClient);
  // Three slots are free, so these do not wait.
  for (const char* client : {"b", "c", "d"}) EXPECT_EQ(admit(client), Decision::kAdmitted);
  EXPECT_EQ(budget.running(), 4);
  EXPECT_EQ(budget.waiting(), 2);
  EXPECT_EQ(admit("e"), Decision::kAdmitted);
  EXPECT_EQ(admit("f"), Decision::kTooManyRequests);
  budget.Leave(charges[0]);
  EXPECT_EQ(budget.running(), 4);  // the next request of "a" runs instead
  EXPECT_EQ(budget.waiting(), 2);
  budget.LeaveQueue(charges[1]);
  EXPECT_EQ(admit("a"), Decision::kAdmitted);
  EXPECT_EQ(budget.waiting(), 3);
  for (size_t i = 1; i < charges.size(); ++i) budget.Leave(charges[i]);
  EXPECT_EQ(budget.running(), 0);
  EXPECT_EQ(budget.clients(), 0U);
}

TEST_F(AdmissionBudgetTest, CountsTheRequestsOfTheClientThatGoBeforeARequest) {
  AdmissionBudget budget({.slots = 1, .max_queued_requests = 100, .max_queued_tokens = 1000});
  std::deque<AdmissionBudget::Charge> charges;
  const auto ahead = [&](const std::string& client, ServiceClass service_class) {
    AdmissionBudget::Charge& charge = charges.emplace_back();
    EXPECT_EQ(budget.Enter(client, kNoQuota, kAllSlots, charge), Decision::kAdmitted);
    EXPECT_EQ(budget.AddText(1, service_class, charge), Decision::kAdmitted);
    return charge.ahead();
  };
  EXPECT_EQ(ahead("a", ServiceClass::kNormal), 0);  // has a slot
  EXPECT_EQ(ahead("a", ServiceClass::kNormal), 0);
  EXPECT_EQ(ahead("a", ServiceClass::kBatch), 1);
  EXPECT_EQ(ahead("a", ServiceClass::kNormal), 1);
  EXPECT_EQ(ahead("a", ServiceClass::kInteractive), 0);
  EXPECT_EQ(ahead("b", ServiceClass::kBatch), 0);
  EXPECT_EQ(ahead("a", ServiceClass::kBatch), 4);
  budget.LeaveQueue(charges[1]);
  EXPECT_EQ(ahead("a", ServiceClass::kNormal), 2);
}

TEST_F(AdmissionBudgetTest, AClientHasHalfOfTheTokensThatMayWaitOrOneRequest) {
  Admit(1);
  Admit(1);
  EXPECT_EQ(Admit(7), Decision::kAdmitted);
  EXPECT_EQ(Admit(1), Decision::kTooManyOfClient);
  EXPECT_EQ(Admit(3, "b"), Decision::kAdmitted);
  budget_.Leave(charges_[2]);
  EXPECT_EQ(Admit(2, "b"), Decision::kAdmitted);
}

TEST_F(AdmissionBudgetTest, AClientMayReachItsHalfAndNotPassIt) {
  AdmissionBudget budget({.slots = 1, .max_queued_requests = 4, .max_queued_tokens = 11});
  const auto admit = [&](int64_t tokens, AdmissionBudget::Charge& charge) {
    EXPECT_EQ(budget.Enter("a", kNoQuota, kAllSlots, charge), Decision::kAdmitted);
    const Decision decision = budget.AddText(tokens, ServiceClass::kNormal, charge);
    if (decision != Decision::kAdmitted) budget.Leave(charge);
    return decision;
  };
  AdmissionBudget::Charge running;
  AdmissionBudget::Charge first;
  AdmissionBudget::Charge second;
  AdmissionBudget::Charge third;
  EXPECT_EQ(admit(100, running), Decision::kAdmitted);
  EXPECT_EQ(admit(2, first), Decision::kAdmitted);
  EXPECT_EQ(admit(4, second), Decision::kTooManyOfClient);  // 6 of 11
  EXPECT_EQ(admit(3, second), Decision::kAdmitted);         // 5
  EXPECT_EQ(admit(0, third), Decision::kAdmitted);
  EXPECT_EQ(budget.queued_tokens(), 5);
}

TEST_F(AdmissionBudgetTest, ANewNumberOfSlotsOfAClientHoldsAtOnce) {
  AdmissionBudget budget({.slots = 4, .max_queued_requests = 4, .max_queued_tokens = 10});
  std::vector<AdmissionBudget::Charge> charges(4);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(budget.Enter("a", 1, /*client_slots=*/1, charges[i]), Decision::kAdmitted);
  }
  EXPECT_EQ(budget.Enter("a", 1, /*client_slots=*/3, charges[2]), Decision::kAdmitted);
  EXPECT_EQ(budget.running(), 3);
  EXPECT_EQ(budget.waiting(), 0);
  EXPECT_EQ(budget.Enter("a", 2, /*client_slots=*/1, charges[3]), Decision::kAdmitted);
  EXPECT_EQ(budget.running(), 1);
  EXPECT_EQ(budget.waiting(), 3);
  for (AdmissionBudget::Charge& charge : charges) budget.Leave(charge);
  EXPECT_EQ(budget.running(), 0);
}

TEST_F(AdmissionBudgetTest, RefusedRequestsAndThoseThatEndedLeaveNothingBehind) {
  TestRandom random;
  for (int i = 0; i < 5000; ++i) {
    const std::string client(1, static_cast<char>('a' + random.Below(4)));
    Admit(random.Below(8), client, static_cast<int32_t>(1 + random.Below(2)), ServiceClass::kNormal,
          client == "a" ? 1 : kAllSlots);
    if (!charges_.empty() && random.Below(2) == 0) {
      budget_.LeaveQueue(
          charges_[static_cast<size_t>(random.Below(static_cast<int64_t>(charges_.size())))]);
    }
    if (!charges_.empty() && random.Below(3) == 0) {
      budget_.Leave(charges_.front());
      charges_.pop_front();
    }
    ASSERT_EQ(budget_.running() + budget_.waiting(), static_cast<int32_t>(charges_.size()));
    ASSERT_LE(budget_.waiting(), 2);
    ASSERT_GE(budget_.queued_tokens(), 0);
    ASSERT_LE(budget_.queued_tokens(), 10);
    ASSERT_LE(budget_.clients(), charges_.size());
  }
  for (AdmissionBudget::Charge& charge : charges_) budget_.Leave(charge);
  EXPECT_EQ(budget_.clients(), 0U);
  EXPECT_EQ(budget_.running(), 0);
  EXPECT_EQ(budget_.queued_tokens(), 0);
}

}  // namespace
}  // namespace aft::server
