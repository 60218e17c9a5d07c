// The config and the entry of a client decide who gets a slot, and in which order.

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;

constexpr int32_t kUnlimited = 1'000'000;

class EngineSlotsTest : public EngineTest {
 protected:
  GenerationRequest Of(std::shared_ptr<const Client> client, std::vector<TokenId> prompt,
                       int32_t max_tokens, ServiceClass service_class = ServiceClass::kNormal) {
    GenerationRequest request = Request(std::move(prompt), max_tokens);
    request.client = std::move(client);
    request.service_class = service_class;
    return request;
  }

  // The first tokens of the prompts, in the order in which the model began to read them.
  std::vector<TokenId> Beginnings() const {
    std::vector<TokenId> tokens;
    for (const StepInput& step : control->steps()) {
      for (const StepRow& row : step.rows) {
        if (row.first_position == 0) tokens.push_back(row.tokens.front());
      }
    }
    return tokens;
  }
};

TEST_F(EngineSlotsTest, ABatchRequestThatHasWaitedGoesBeforeALaterUrgentOne) {
  model.slots = 1;
  options.scheduling.age = seconds(1);
  StartHeld();
  Submit(Request({1}, 10));
  control->WaitUntilBlocked();
  const Sink batch = Submit(Of(client_b, {200}, 3, ServiceClass::kBatch)).sink;
  control->RunSteps(1);  // the engine knows of the batch request
  clock.Advance(seconds(2));
  const Sink urgent = Submit(Of(AnonymousClient(), {201}, 1, ServiceClass::kInteractive)).sink;
  control->Resume();
  EXPECT_EQ(batch->Wait().status, absl::OkStatus());
  EXPECT_EQ(urgent->Wait().status, absl::OkStatus());
  EXPECT_THAT(Beginnings(), ElementsAre(1, 200, 201));
}

TEST_F(EngineSlotsTest, OneOfSixteenSlotsIsReservedUnlessTheConfigReservesNone) {
  model.slots = 16;
  for (const int32_t reserved : {0, -1}) {
    options.scheduling.reserved_slots = reserved;
    StartHeld();
    for (int i = 0; i < 16; ++i) {
      Submit(Of(i % 2 == 0 ? AnonymousClient() : client_b, {1}, kUnlimited));
    }
    control->RunSteps(3);
    const double before = metrics.parks.Value();
    const Sink urgent = Submit(Of(NamedClient("c"), {9}, 5, ServiceClass::kInteractive)).sink;
    control->RunSteps(40);
    EXPECT_EQ(urgent->finished(), reserved == 0);
    EXPECT_EQ(metrics.parks.Value() - before, reserved == 0 ? 1 : 0);
    control->Resume();
    engine.reset();
  }
}

TEST_F(EngineSlotsTest, AClientsOwnQuotaOfSlotsCounts) {
  model.slots = 4;  // the quota of other clients is two of them
  StartHeld();
  Client generous;
  generous.name = "generous";
  generous.max_slots = 4;
  const auto client = std::make_shared<const Client>(generous);
  for (int i = 0; i < 4; ++i) Submit(Of(client, {1}, kUnlimited));
  control->RunSteps(3);
  const Sink other = Submit(Of(client_b, {5}, 3)).sink;
  control->RunSteps(40);
  EXPECT_FALSE(other->finished());
  EXPECT_EQ(metrics.parks.Value(), 0);
}

// A request costs four tokens. Divided by the weight this is 4 for one client and 1.6 for the
// other.
TEST_F(EngineSlotsTest, ClientsHaveTurnsByTheirWeights) {
  model.slots = 1;
  StartHeld();
  Client heavy;
  heavy.name = "heavy";
  heavy.weight = 2.5;
  const auto client = std::make_shared<const Client>(heavy);
  Submit(Of(client_b, {1}, 1));
  control->WaitUntilBlocked();
  std::vector<Sink> sinks;
  for (TokenId i = 0; i < 4; ++i) {
    sinks.push_back(Submit(Request({10 + i}, 4)).sink);
    sinks.push_back(Submit(Of(client, {20 + i}, 4)).sink);
  }
  control->Resume();
  for (const Sink& sink : sinks) EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_THAT(Beginnings(), ElementsAre(1, 10, 20, 21, 22, 11, 23, 12, 13));
}

}  // namespace
}  // namespace aft::server
