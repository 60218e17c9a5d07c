// The end of old versions of models: with their last requests, or when their time is over.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/engine/resume_point.h"
#include "server/observability/metrics.h"
#include "server/registry/model_keeper.h"
#include "tests/support/captured_log.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/registry/versions_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

TEST_F(VersionsTest, ASwapLeavesTheOldVersionItsStreams) {
  Add("m/1");
  Serve();
  control("m/1").Hold();
  ModelHold old = *registry_->Acquire(*AnonymousClient(), "m");
  const auto running = std::make_shared<RecordingSink>();
  ASSERT_TRUE(old->generate->Generate(Tokens(5), running).ok());
  control("m/1").WaitUntilBlocked();
  Add("m/2");
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_THAT(Versions(), ElementsAre("2 ready"));
  EXPECT_EQ(Serving(), "2");
  EXPECT_EQ(Gauge("aft_model_versions"), 2);
  EXPECT_EQ(Gauge("aft_slots"), 128);

  // A request that got the old version before the swap may still begin.
  const auto late = std::make_shared<RecordingSink>();
  ASSERT_TRUE(old->generate->Generate(Tokens(5), late).ok());
  control("m/1").Resume();
  EXPECT_EQ(running->Wait().status, absl::OkStatus());
  EXPECT_EQ(late->Wait().status, absl::OkStatus());
  EXPECT_EQ(destroyed(), 0U);
  old.reset();
  WaitDestroyed(1);
  while (Gauge("aft_model_versions") != 1) std::this_thread::yield();
  while (Gauge("aft_slots") != 64) std::this_thread::yield();
  EXPECT_EQ(Serving(), "2");
}

TEST_F(VersionsTest, TheLastRequestMayReleaseItsModelOnTheThreadOfItsEngine) {
  Add("m/1");
  Serve();
  control("m/1").Hold();
  ModelHold model = *registry_->Acquire(*AnonymousClient(), "m");
  const auto sink = std::make_shared<HoldingSink>(model);
  ASSERT_TRUE(model->generate->Generate(Tokens(2), sink).ok());
  model.reset();
  Ordered unload;
  registry_->Unload("m", unload.Done());
  control("m/1").WaitUntilBlocked();
  // Orders are done one after the other. So the unload is under way after this load.
  EXPECT_EQ(Load("nobody").code(), absl::StatusCode::kNotFound);  // lint: allow
  control("m/1").Resume();
  EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_THAT(sink->last_thread(), StartsWith("aft-engine"));
  EXPECT_EQ(unload.Wait(), absl::OkStatus());
  WaitDestroyed(1);
}

TEST_F(VersionsTest, ConcurrentLoadsAndUnloadsEndInTheStateOfTheLastOne) {
  Add("m/1");
  Serve();
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([this, i] {
      for (int j = 0; j < 10; ++j) {
        EXPECT_EQ(i % 2 == 0 ? Load() : Unload(), absl::OkStatus());
        const auto model = registry_->Acquire(*AnonymousClient(), "m");
        if (!model.ok()) continue;
        const auto sink = std::make_shared<HoldingSink>(*model);
        ASSERT_TRUE((*model)->generate->Generate(Tokens(2), sink).ok());
        EXPECT_EQ(sink->Wait().status, absl::OkStatus());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(Unload(), absl::OkStatus());
  EXPECT_EQ(Gauge("aft_model_versions"), 0);
  EXPECT_EQ(Gauge("aft_slots"), 0);
  EXPECT_EQ(destroyed(), loaded().size());
}

TEST_F(VersionsTest, ALimitedNumberOfOrdersMayWait) {
  Add("m/1");
  loads_.Hold();
  Start();
  loads_.WaitUntilBlocked();
  std::vector<Ordered> orders(65);
  for (Ordered& order : orders) registry_->Load("m", order.Done());
  EXPECT_FALSE(orders[63].done());
  EXPECT_EQ(orders[64].Wait().code(), absl::StatusCode::kResourceExhausted);
  registry_->BeginDrain();
  EXPECT_THAT(orders[0].Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
  EXPECT_THAT(orders[63].Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("draining")));
}

TEST_F(VersionsTest, AnUnloadForWhichMemoryLacksIsNoSuccess) {
  Add("m/1");
  Serve();
  ASSERT_EQ(Load(), absl::OkStatus());  // the loader has made its last report of the start
  {
    MutexLock lock(mutex_);
    no_memory_ = true;
  }
  EXPECT_EQ(Unload().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(VersionsTest, TheMetricShowsADrainOnlyWhenAllHaveBeenTold) {
  Add("m/1");
  Serve();
  Add("m/2");
  loads_.Hold();
  Ordered load;
  registry_->Load("m", load.Done());
  loads_.WaitUntilBlocked();
  double when_told = -1;
  registry_->Load("m", [&](const absl::Status&) {  // it waits for the other one
    when_told = Gauge("aft_model_state", "draining");
  });
  registry_->BeginDrain();
  EXPECT_EQ(when_told, 0);
  EXPECT_EQ(Gauge("aft_model_state", "draining"), 1);
  loads_.Resume();
  EXPECT_EQ(load.Wait().code(), absl::StatusCode::kUnavailable);
}

TEST_F(VersionsTest, NewRulesHoldAtOnceAndTheFolderIsReadHoweverManyOrdersWait) {
  Add("m/1");
  loads_.Hold();
  Start();
  loads_.WaitUntilBlocked();
  std::vector<Ordered> orders(64);
  for (Ordered& order : orders) registry_->Load("m", order.Done());
  Add("n/1");
  config_.repository.control = "anyone";
  registry_->Rescan(config_.repository);
  EXPECT_EQ(registry_->control(), "anyone");
  loads_.Resume();
  for (Ordered& order : orders) EXPECT_EQ(order.Wait(), absl::OkStatus());
  EXPECT_EQ(Load("nobody").code(), absl::StatusCode::kNotFound);  // lint: allow
  EXPECT_EQ(Serving("n"), "1");
}

TEST_F(VersionsTest, ADrainDuringALoadDropsTheNewVersion) {
  Add("m/1");
  Serve();
  Add("m/2");
  loads_.Hold();
  Ordered load;
  registry_->Load("m", load.Done());
  loads_.WaitUntilBlocked();
  registry_->BeginDrain();
  EXPECT_EQ(Load("m").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Unload("m").code(), absl::StatusCode::kUnavailable);
  loads_.Resume();
  EXPECT_TRUE(registry_->Shutdown(TimePoint::max()));
  EXPECT_EQ(load.Wait().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Versions(), ElementsAre("2 draining", "1 draining"));
  WaitDestroyed(1);
}

TEST_F(VersionsTest, AnUnloadIsOverWhenTheLastRequestIs) {
  Add("m/1");
  Serve();
  ModelHold model = *registry_->Acquire(*AnonymousClient(), "m");
  Ordered unload;
  registry_->Unload("m", unload.Done());
  while (registry_->Acquire(*AnonymousClient(), "m").ok()) std::this_thread::yield();
  EXPECT_EQ(Serving(), "model \"m\" is not loaded");
  EXPECT_THAT(Versions(), ElementsAre("1 unloaded"));
  // Other orders need not wait for the unload.
  EXPECT_EQ(Load("nobody").code(), absl::StatusCode::kNotFound);  // lint: allow
  EXPECT_FALSE(unload.done());
  model.reset();
  EXPECT_EQ(unload.Wait(), absl::OkStatus());
  EXPECT_EQ(destroyed(), 1U);  // its memory is free
  EXPECT_EQ(Gauge("aft_model_versions"), 0);
  EXPECT_EQ(Unload(), absl::OkStatus());  // again is harmless
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(Serving(), "1");
}

TEST_F(VersionsTest, AShutdownAnswersAnUnloadThatWaits) {
  Add("m/1");
  Serve();
  ModelHold model = *registry_->Acquire(*AnonymousClient(), "m");
  Ordered unload;
  registry_->Unload("m", unload.Done());
  while (registry_->Acquire(*AnonymousClient(), "m").ok()) std::this_thread::yield();
  EXPECT_TRUE(registry_->Shutdown(TimePoint::max()));
  EXPECT_EQ(unload.Wait(), absl::OkStatus());
  EXPECT_EQ(destroyed(), 0U);
}

TEST_F(VersionsTest, WhenItsTimeIsOverAnOldVersionEndsOnlyTheRequestsThatWait) {
  Add("m/1");
  config_.repository.drain = std::chrono::milliseconds(0);
  config_.drain.grace = std::chrono::hours(1);
  config_.repository.settings.slots = 2;
  config_.repository.settings.max_step_tokens = 3;
  Serve();
  control("m/1").Hold();
  ModelHold old = *registry_->Acquire(*AnonymousClient(), "m");
  const auto send = [&](bool resumable) {
    GenerationRequest request = Tokens(20);
    request.survival.resumable = resumable;
    const auto sink = std::make_shared<RecordingSink>();
    EXPECT_TRUE(old->generate->Generate(request, sink).ok());
    return sink;
  };
  const auto plain = send(false);
  const auto resumable = send(true);
  control("m/1").RunSteps(3);  // both requests have slots
  const auto queued = send(false);
  Add("m/2");
  ASSERT_EQ(Load(), absl::OkStatus());
  // The old version drains at once, and accepts nothing any more.
  while (old->generate->Reserve(Client()).ok()) std::this_thread::yield();
  control("m/1").Resume();
  EXPECT_THAT(queued->Wait().status,
              StatusIs(absl::StatusCode::kUnavailable, StartsWith("this version of the model")));
  EXPECT_THAT(old->generate->Reserve(Client()).status(),
              StatusIs(absl::StatusCode::kUnavailable, StartsWith("this version of the model")));
  EXPECT_EQ(resumable->Wait().status, absl::OkStatus());
  EXPECT_EQ(plain->Wait().status, absl::OkStatus());
  old.reset();
  WaitDestroyed(1);
}

class AnyPoints final : public ResumePointSink {
  bool Ready() override { return true; }
  void OnResumePoint(ResumePoint /*point*/) override {}
};

TEST_F(VersionsTest, AfterItsGraceAnOldVersionEndsItsRequests) {
  Add("m/1");
  max_steps_in_flight_ = 2;  // the stream must wait for its last step before it is handed over
  config_.repository.drain = config_.drain.grace = std::chrono::milliseconds(0);
  Serve();
  ModelHold old = *registry_->Acquire(*AnonymousClient(), "m");
  const auto endless = std::make_shared<RecordingSink>();
  ASSERT_TRUE(old->generate->Generate(Tokens(1 << 30), endless).ok());
  GenerationRequest request = Tokens(1 << 30);
  request.survival.resumable = true;
  request.survival.sink = std::make_shared<AnyPoints>();
  const auto resumable = std::make_shared<RecordingSink>();
  ASSERT_TRUE(old->generate->Generate(request, resumable).ok());
  endless->WaitForParts(1);
  resumable->WaitForParts(1);
  Add("m/2");
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_THAT(endless->Wait().status,
              StatusIs(absl::StatusCode::kUnavailable, StartsWith("this version of the model")));
  EXPECT_THAT(resumable->Wait().status,
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(StartsWith("this version of the model"), HasSubstr("resume"))));
  EXPECT_NE(resumable->Wait().hand_over, nullptr);
  EXPECT_EQ(Serving(), "2");
  EXPECT_EQ(destroyed(), 0U);  // the test still holds it
}

TEST_F(VersionsTest, TheKeeperDoesNotWaitForALongStepOfAnOldVersion) {
  Add("m/1");
  Add("n/1");
  config_.repository.drain = config_.drain.grace = std::chrono::milliseconds(0);
  Serve();
  control("m/1").Hold();
  ModelHold old = *registry_->Acquire(*AnonymousClient(), "m");
  const auto running = std::make_shared<RecordingSink>();
  ASSERT_TRUE(old->generate->Generate(Tokens(1), running).ok());
  control("m/1").WaitUntilBlocked();
  Add("m/2");
  ASSERT_EQ(Load(), absl::OkStatus());
  while (old->generate->Reserve(Client()).ok()) std::this_thread::yield();
  // The keeper's one thread destroys this model, after it has told the old version to end.
  EXPECT_EQ(Unload("n"), absl::OkStatus());
  EXPECT_EQ(destroyed(), 1U);
  EXPECT_FALSE(running->finished());
  EXPECT_EQ(
      registry_->FindMetrics(*AnonymousClient(), "m")->failures(EngineFailure::kModel).Value(), 0);
  control("m/1").Resume();
  EXPECT_EQ(running->Wait().status, absl::OkStatus());
  old.reset();
  WaitDestroyed(2);
}

TEST_F(VersionsTest, AnEmptyFolderDoesNotUnloadTheModels) {
  Add("m/1");
  Serve();
  Remove("m");
  CapturedLog log;
  Rescan();
  EXPECT_EQ(Serving(), "1");
  EXPECT_EQ(log.Lines("repository.unreadable").size(), 1U);
}

TEST_F(VersionsTest, TheOnlyModelOfTheRepositoryMayBeRemovedIfItDoesNotServe) {
  Add("m/1", "broken");
  Add("n/1");
  Serve();
  ASSERT_EQ(Unload("n"), absl::OkStatus());
  Remove("m");
  Remove("n");
  CapturedLog log;
  Rescan();
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->state, ModelState::kUnloaded);
  EXPECT_TRUE(log.Lines("repository.unreadable").empty());
}

TEST_F(VersionsTest, ARequestWithoutANameDoesNotMeanAModelWhoseFolderIsGone) {
  Add("old/1");
  Serve();
  EXPECT_EQ(Serving(""), "1");
  Remove("old");
  Add("new/2");
  Rescan();
  EXPECT_EQ(Serving(""), "2");
  EXPECT_EQ(Serving("other"), "no model is called \"other\"; there is \"new\"");
  // A model that an order unloaded is expected back.
  Add("off/3");
  Rescan();
  EXPECT_EQ(Unload("off"), absl::OkStatus());
  EXPECT_EQ(Serving(""), "model: must be set to one of \"new\", \"off\"");
  Remove("off");
  EXPECT_EQ(Load("off").code(), absl::StatusCode::kNotFound);  // this does not count as an order
  EXPECT_EQ(Serving(""), "model: must be set to one of \"new\", \"off\"");
  EXPECT_EQ(Unload("new"), absl::OkStatus());
  EXPECT_EQ(Unload("old"), absl::OkStatus());
  EXPECT_EQ(Serving(""), "model: must be set to one of \"new\", \"off\"");
}

TEST_F(VersionsTest, AModelWhoseFolderIsGoneIsInNoListUntilItIsBack) {
  for (const char* path : {"a/1", "m/1", "off/1"}) Add(path);
  Serve();
  ASSERT_EQ(Unload("off"), absl::OkStatus());
  const auto listed = [this] {
    std::vector<std::string> names;
    std::vector<std::string> told;
    for (const ModelStatus& model : registry_->List()) names.push_back(model.name);
    for (const ModelStatus& model : registry_->List(*AnonymousClient())) told.push_back(model.name);
    EXPECT_EQ(names, told);
    return names;
  };
  Remove("m");
  Remove("off");
  Rescan();
  EXPECT_THAT(listed(), ElementsAre("a"));
  EXPECT_EQ(registry_->Ages().count("m"), 1U);  // its metrics stay
  EXPECT_EQ(Gauge("aft_model_state", "unloaded"), 1);
  const int before = changes();
  Rescan();
  EXPECT_EQ(changes(), before);  // it is not unloaded again
  EXPECT_EQ(Unload("off"), absl::OkStatus());
  EXPECT_THAT(listed(), ElementsAre("a"));  // an order does not bring the folder back
  Add("m/2");
  Add("off/2");
  Rescan();
  EXPECT_THAT(listed(), UnorderedElementsAre("a", "m", "off"));
  EXPECT_EQ(Serving(), "2");
  EXPECT_EQ(Serving("off"), "model \"off\" is not loaded");  // the order still holds
}

class StuckUnloadTest : public VersionsTest {
 protected:
  // Serves m/1, and orders its unload while a step of its only request does not end.
  std::shared_ptr<RecordingSink> UnloadWhileStuck(Ordered& unload) {
    Add("m/1");
    Serve();
    control("m/1").Hold();
    auto sink = std::make_shared<RecordingSink>();
    {
      const ModelHold model = *registry_->Acquire(*AnonymousClient(), "m");
      EXPECT_TRUE(model->generate->Generate(Tokens(1), sink).ok());
      control("m/1").WaitUntilBlocked();
    }
    registry_->Unload("m", unload.Done());
    return sink;
  }
};

TEST_F(StuckUnloadTest, AnOldVersionWhoseThreadIsStuckIsReportedAndNotWaitedFor) {
  config_.health.step_timeout = std::chrono::milliseconds(1);
  Ordered unload;
  const auto sink = UnloadWhileStuck(unload);
  while (!sink->finished()) registry_->CheckProgress();
  EXPECT_EQ(Load(), absl::OkStatus());  // other orders are still done
  const std::vector<MemoryPart> memory = registry_->Memory();
  EXPECT_EQ(std::count_if(memory.begin(), memory.end(),
                          [](const MemoryPart& part) { return part.use == MemoryUse::kParking; }),
            2);  // the plan counts the model that is stuck
  EXPECT_FALSE(registry_->Shutdown(TimePoint::min()));
  EXPECT_EQ(unload.Wait(), absl::OkStatus());
  EXPECT_EQ(destroyed(), 0U);
}

TEST_F(StuckUnloadTest, AThreadThatWasStuckBeforeTheShutdownIsTriedAgain) {
  Ordered unload;
  const auto sink = UnloadWhileStuck(unload);
  // The keeper gives up, which ends the request.
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  control("m/1").Resume();
  EXPECT_TRUE(registry_->Shutdown(TimePoint::max()));
  EXPECT_EQ(unload.Wait(), absl::OkStatus());
  EXPECT_EQ(destroyed(), 1U);
}

TEST_F(VersionsTest, AnUnloadAfterTheShutdownIsAnsweredThoughARequestHasTheModel) {
  bool answered = false;
  ModelKeeper keeper;
  EXPECT_TRUE(keeper.Shutdown(TimePoint::max()));
  auto served = std::make_unique<ServedModel>();
  served->metrics = std::make_unique<ModelMetrics>(prometheus_, "m");
  LoadedModel fake = FakeModels().Load(served->config);
  served->generate = *GenerateEngine::Create(EngineOptions(), std::move(fake.runner),
                                             std::move(fake.tokenizer), *served->metrics);
  const ModelHold request = keeper.Keep(std::move(served));
  keeper.Retire(request, TimePoint::max(), TimePoint::max(),
                std::shared_ptr<void>(nullptr, [&](void* /*nothing*/) { answered = true; }));
  EXPECT_TRUE(answered);
}

TEST_F(VersionsTest, AnUnloadedModelHasNoMemoryOfADevice) {
  device_stats_.memory_total = 1000;
  device_stats_.memory_used = 600;
  Add("m/1");
  Serve();
  const auto sink = std::make_shared<RecordingSink>();
  ASSERT_TRUE(
      (*registry_->Acquire(*AnonymousClient(), "m"))->generate->Generate(Tokens(1), sink).ok());
  EXPECT_EQ(sink->Wait().status, absl::OkStatus());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->device_memory_total, 1000);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->device_memory_used, 600);
  EXPECT_EQ(Unload(), absl::OkStatus());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->device_memory_total, 0);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->device_memory_used, 0);
}

}  // namespace
}  // namespace aft::server
