// The server's health, as its models' states decide it.
#include "server/registry/readiness.h"

#include <chrono>
#include <vector>

#include "gtest/gtest.h"
#include "server/config/config.h"
#include "server/registry/model_table.h"
#include "server/scheduling/time.h"

namespace aft::server {
namespace {

// Models in these states. `loaded`: they were loaded before, as those that fail while they serve.
std::vector<ModelStatus> Models(const std::vector<ModelState>& states, bool loaded) {
  std::vector<ModelStatus> models;
  for (const ModelState state : states) {
    models.emplace_back().state = state;
    if (loaded) models.back().info = ModelInfo();
  }
  return models;
}

TEST(ReadinessTest, AllModelsOrAnyMakeAServerReady) {
  using S = ModelState;
  const struct {
    std::vector<S> states;
    bool all;
    bool any;
  } cases[] = {
      {{S::kReady, S::kReady}, true, true},       {{S::kReady, S::kLoading}, false, true},
      {{S::kFailed, S::kReady}, false, true},     {{S::kFailed, S::kFailed}, false, false},
      {{S::kLoading, S::kLoading}, false, false}, {{S::kDraining, S::kReady}, true, true},
  };
  for (const auto& c : cases) {
    HealthConfig config;
    config.readiness = "all";
    Readiness all(config);
    config.readiness = "any";
    Readiness any(config);
    all.Update(Models(c.states, true), TimePoint());
    any.Update(Models(c.states, true), TimePoint());
    EXPECT_EQ(all.ready(), c.all) << (&c - cases);
    EXPECT_EQ(any.ready(), c.any) << (&c - cases);
  }
}

TEST(ReadinessTest, LivenessEndsAGraceAfterAFailureThatLeavesTheServerNotReady) {
  using std::chrono::seconds;
  const TimePoint start(std::chrono::hours(1));
  HealthConfig config;
  config.readiness = "any";
  config.liveness_grace = seconds(10);
  Readiness readiness(config);
  const auto alive = [&](const std::vector<ModelState>& states, int second, bool loaded = true) {
    readiness.Update(Models(states, loaded), start + seconds(second));
    return readiness.alive();
  };
  EXPECT_TRUE(readiness.alive());
  EXPECT_TRUE(alive({ModelState::kLoading, ModelState::kLoading}, 0));
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kReady}, 50));  // one serves
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kFailed}, 100));
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kFailed}, 109));
  EXPECT_FALSE(alive({ModelState::kFailed, ModelState::kFailed}, 110));
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kReady}, 111));  // one serves again
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kFailed}, 112));
  EXPECT_FALSE(alive({ModelState::kFailed, ModelState::kFailed}, 122));
  // A model that could not be loaded would not load after a restart either.
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kFailed}, 200, /*loaded=*/false));
  EXPECT_TRUE(alive({ModelState::kFailed, ModelState::kFailed}, 300, /*loaded=*/false));
}

TEST(ReadinessTest, AModelThatLoadsLeavesAServerAsItWas) {
  using S = ModelState;
  HealthConfig config;
  config.readiness = "all";
  Readiness readiness(config);
  const auto ready = [&](const std::vector<S>& states) {
    readiness.Update(Models(states, /*loaded=*/false), TimePoint());
    return readiness.ready();
  };
  EXPECT_FALSE(ready({S::kLoading, S::kLoading}));  // the start
  EXPECT_FALSE(ready({S::kReady, S::kLoading}));
  EXPECT_TRUE(ready({S::kReady, S::kReady}));
  EXPECT_TRUE(ready({S::kReady, S::kUnloaded}));
  EXPECT_TRUE(ready({S::kReady, S::kLoading}));
  EXPECT_TRUE(ready({S::kReady, S::kReady, S::kLoading}));  // one more
  EXPECT_FALSE(ready({S::kReady, S::kReady, S::kFailed}));
  EXPECT_FALSE(ready({S::kReady, S::kReady, S::kLoading}));
  EXPECT_TRUE(ready({S::kReady, S::kReady, S::kReady}));
}

}  // namespace
}  // namespace aft::server
