// New versions of models that come while others serve.
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/registry/readiness.h"
#include "tests/support/captured_log.h"
#include "tests/support/status_matchers.h"
#include "tests/unit/registry/versions_fixture.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(VersionsTest, TheNewestVersionsThatThePolicyWantsServe) {
  for (const char* path : {"m/1", "m/9", "m/10"}) Add(path);
  config_.repository.latest_versions = 2;
  Serve();
  EXPECT_THAT(Versions(), ElementsAre("10 ready", "9 ready"));
  EXPECT_EQ(Serving(), "10");
  EXPECT_EQ((*registry_->Acquire(*AnonymousClient(), "m", "9"))->config.version, "9");
  EXPECT_THAT(registry_->Acquire(*AnonymousClient(), "m", "1").status(),
              StatusIs(absl::StatusCode::kNotFound,
                       "model_version: model \"m\" has version \"10\", \"9\", not \"1\""));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->version, "10");
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "9")->version, "9");
  EXPECT_FALSE(registry_->Get(*AnonymousClient(), "m", "1").ok());
  // AcquireOnly does not choose among several versions.
  EXPECT_EQ(registry_->AcquireOnly(*AnonymousClient(), "m").status().code(),
            absl::StatusCode::kNotFound);
  Add("n/1");
  ASSERT_EQ(Load("n"), absl::OkStatus());
  EXPECT_EQ((*registry_->AcquireOnly(*AnonymousClient(), "n"))->config.version, "1");
  EXPECT_EQ(Gauge("aft_model_versions"), 2);
}

TEST_F(VersionsTest, AnEmptyRepositoryIsReadyAndAMissingOneIsNot) {
  Serve();
  EXPECT_TRUE(registry_->List().empty());
  EXPECT_THAT(registry_->Acquire(*AnonymousClient(), "").status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no model is served yet")));
  registry_.reset();
  config_.repository.folder = folder_.File("other");
  Start();
  EXPECT_THAT(WaitLoaded(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr(config_.repository.folder)));
}

TEST_F(VersionsTest, ARepositoryInWhichNoModelCanBeReadIsNotReady) {
  Add("m");  // a folder without a version
  Start();
  EXPECT_THAT(WaitLoaded(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                     AllOf(HasSubstr("no model could be loaded: \"m\": "),
                                           HasSubstr("has no folder of a version"))));
  registry_.reset();
  Add("n/1");
  Start();
  EXPECT_EQ(WaitLoaded(), absl::OkStatus());
}

TEST_F(VersionsTest, AVersionThatDoesNotLoadTakesNothingAway) {
  Add("m/1");
  Serve();
  const ModelHold old = *registry_->Acquire(*AnonymousClient(), "m");
  Add("m/2", "bad");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kDataLoss,
                               "model \"m\", version \"2\": weights: are bad"));
  EXPECT_EQ(*registry_->Acquire(*AnonymousClient(), "m"), old);
  EXPECT_THAT(Versions(), ElementsAre("2 failed", "1 ready"));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->state, ModelState::kReady);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "2")->error, "weights: are bad");
  EXPECT_THAT(registry_->Acquire(*AnonymousClient(), "m", "2").status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("failed to load")));
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "m")->loads(true).Value(), 1);
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "m")->loads(false).Value(), 1);
  EXPECT_GT(registry_->FindMetrics(*AnonymousClient(), "m")->load_seconds.Value(), 0);
  Add("m/2", "2");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_THAT(Versions(), ElementsAre("2 ready"));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "2")->error, "");
}

TEST_F(VersionsTest, NewVersionsThatLoadServeThoughAnotherDoesNotLoad) {
  Add("m/1");
  config_.repository.latest_versions = 2;
  Serve();
  Add("m/2");
  Add("m/3", "bad");
  EXPECT_THAT(Load().message(), HasSubstr("version \"3\""));
  EXPECT_THAT(Versions(), ElementsAre("3 failed", "2 ready", "1 ready"));
  EXPECT_EQ(Serving(), "2");
}

TEST_F(VersionsTest, FilesThatHaveChangedAreLoadedAgainAndOthersAreNot) {
  Add("m/1");
  Serve();
  ModelHold first = *registry_->Acquire(*AnonymousClient(), "m");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(*registry_->Acquire(*AnonymousClient(), "m"), first);
  EXPECT_THAT(loaded(), ElementsAre("m/1"));
  Add("m/1", "worse");
  EXPECT_EQ(Load().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(*registry_->Acquire(*AnonymousClient(), "m"), first);
  EXPECT_THAT(Versions(), ElementsAre("1 ready"));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "1")->error, "weights: are bad");
  Add("m/1", "22");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ((*registry_->Acquire(*AnonymousClient(), "m"))->info.fingerprint, 22U);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "1")->error, "");
  first.reset();
  WaitDestroyed(1);
}

TEST_F(VersionsTest, FilesThatChangeDuringALoadAreLoadedAgain) {
  Add("m/1");
  loads_.Hold();
  Start();
  loads_.WaitUntilBlocked();
  Add("m/1", "22");
  loads_.Resume();
  ASSERT_EQ(WaitLoaded(), absl::OkStatus());
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_THAT(loaded(), ElementsAre("m/1", "m/1"));
}

TEST_F(VersionsTest, SettingsThatHaveChangedLoadAgain) {
  Add("m/1");
  Serve();
  config_.repository.settings.slots = 7;
  Rescan();
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->slots, 7);
}

TEST_F(VersionsTest, OrdersForOneModelFollowEachOther) {
  Add("m/1");
  Serve();
  loads_.Hold();
  Add("m/2");
  std::vector<Ordered> orders(8);
  for (Ordered& order : orders) registry_->Load("m", order.Done());
  loads_.WaitUntilBlocked();
  EXPECT_EQ(Serving(), "1");
  loads_.Resume();
  for (Ordered& order : orders) EXPECT_EQ(order.Wait(), absl::OkStatus());
  EXPECT_THAT(loaded(), ElementsAre("m/1", "m/2"));
}

TEST_F(VersionsTest, AVersionThatFailsWhileItServesLeavesItToTheOthers) {
  for (const char* path : {"m/1", "m/2"}) Add(path);
  config_.repository.latest_versions = 2;
  config_.health.max_failed_steps = 1;
  Serve();
  FailStep(*registry_->Acquire(*AnonymousClient(), "m", "2"), "m/2");
  EXPECT_THAT(Versions(), ElementsAre("2 failed", "1 ready"));
  EXPECT_EQ(Serving(), "1");
  EXPECT_THAT(registry_->Acquire(*AnonymousClient(), "m", "2").status().message(),
              HasSubstr("has failed"));
  // A load repairs it.
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(Serving(), "2");
  // A retired version that fails does not change the state of the model.
  const ModelHold old = *registry_->Acquire(*AnonymousClient(), "m", "1");
  Add("m/3");
  ASSERT_EQ(Load(), absl::OkStatus());
  FailStep(old, "m/1");
  EXPECT_THAT(Versions(), ElementsAre("3 ready", "2 ready"));
}

TEST_F(VersionsTest, AVersionThatDoesNotLoadDoesNotHideThatTheOneBeforeHasFailed) {
  Add("m/1");
  config_.health.max_failed_steps = 1;
  config_.health.liveness_grace = std::chrono::milliseconds(0);
  Serve();
  Add("m/2", "bad");
  EXPECT_FALSE(Load().ok());
  FailStep(*registry_->Acquire(*AnonymousClient(), "m"), "m/1");
  EXPECT_THAT(Versions(), ElementsAre("2 failed", "1 failed"));
  EXPECT_EQ(Serving(), "model \"m\" has failed");
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->version, "1");
  Readiness readiness(config_.health);
  readiness.Update(registry_->List(), std::chrono::steady_clock::now());
  EXPECT_FALSE(readiness.alive());
}

TEST_F(VersionsTest, AVersionHasNoErrorWhenTheFilesThatDidNotLoadAreTakenBack) {
  Add("m/1");
  Serve();
  WriteBytes(folder_.File("m/1/SHA256SUMS"), std::string(64, '0') + "  weights\n");
  EXPECT_EQ(Load().code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(registry_->Get(*AnonymousClient(), "m")->error, "");
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 1);
  Remove("m/1/SHA256SUMS");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->error, "");
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 0);
  EXPECT_THAT(loaded(), ElementsAre("m/1"));
}

TEST_F(VersionsTest, AFingerprintFindsItsVersion) {
  Add("m/1", "11");
  Add("m/2", "22");
  Add("other/1", "33");
  config_.repository.latest_versions = 2;
  Serve();
  const ModelHold newest = *registry_->Acquire(*AnonymousClient(), "m");
  const ModelHold oldest = *registry_->Acquire(*AnonymousClient(), "m", "1");
  EXPECT_EQ(registry_->Matching(newest, 22), newest);
  EXPECT_EQ(registry_->Matching(newest, 11), oldest);
  EXPECT_EQ(registry_->Matching(oldest, 22), newest);
  EXPECT_EQ(registry_->Matching(newest, 33), newest);  // the fingerprint of another model
  Add("m/3", "44");
  ASSERT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(registry_->Matching(newest, 11), newest);  // it is retired
}

TEST_F(VersionsTest, AVersionWithTheFingerprintIsNotExchangedForANewerOneWithIt) {
  Add("m/1", "11");
  Add("m/2", "11");
  config_.repository.latest_versions = 2;
  Serve();
  const ModelHold oldest = *registry_->Acquire(*AnonymousClient(), "m", "1");
  EXPECT_EQ(registry_->Matching(oldest, 11), oldest);
}

TEST_F(VersionsTest, TheFolderIsReadAgain) {
  for (const char* path : {"m/1", "gone/1", "off/1"}) Add(path);
  config_.models.push_back(config_.repository.settings);
  config_.models.back().name = "fixed";
  config_.models.back().checkpoint_dir = folder_.File("m/1");
  Serve();
  ASSERT_EQ(Unload("off"), absl::OkStatus());
  Remove("gone");
  Add("m/2");
  Add("new/1");
  Add("empty");
  Add("fixed/7");
  config_.repository.versions = {1, 2};
  CapturedLog log;
  Rescan();
  EXPECT_THAT(log.Text(), AllOf(HasSubstr("event=repository.skipped model=fixed"),
                                HasSubstr("`models` has a model of this name")));
  EXPECT_THAT(Versions(), ElementsAre("2 ready", "1 ready"));
  EXPECT_EQ(Serving("new"), "1");
  EXPECT_EQ(Serving("gone"), "model \"gone\" is not loaded");
  EXPECT_EQ(Serving("off"), "model \"off\" is not loaded");  // it was unloaded on request
  EXPECT_FALSE(registry_->Get(*AnonymousClient(), "empty").ok());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "fixed")->version, "1");  // the config's model
  Add("gone/2");
  ASSERT_EQ(Load("off"), absl::OkStatus());
  Rescan();
  EXPECT_EQ(Serving("gone"), "2");
  EXPECT_EQ(Serving("off"), "1");
}

TEST_F(VersionsTest, AModelOfTheConfigIsLoadedAgainToo) {
  Add("m/1");
  ModelConfig model;
  model.name = "fixed";
  model.version = "v9";
  model.checkpoint_dir = folder_.File("m/1");
  config_.models = {model};
  config_.repository = RepositoryConfig();
  Serve();
  EXPECT_EQ(Serving("fixed"), "v9");
  Add("m/1", "22");
  EXPECT_EQ(Load("fixed"), absl::OkStatus());
  EXPECT_EQ((*registry_->Acquire(*AnonymousClient(), "fixed"))->info.fingerprint, 22U);
  EXPECT_EQ(Unload("fixed"), absl::OkStatus());
  EXPECT_EQ(Serving("fixed"), "model \"fixed\" is not loaded");
  EXPECT_EQ(Load("m").code(), absl::StatusCode::kNotFound);  // there is no repository
}

TEST_F(VersionsTest, AFolderThatGoesAwayBeforeItsLoadFails) {
  Add("a/1");
  Add("m/1");
  loads_.Hold();
  Start();
  loads_.WaitUntilBlocked();  // "a" loads
  Remove("m");
  loads_.Resume();
  EXPECT_EQ(WaitLoaded(), absl::OkStatus());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->state, ModelState::kFailed);
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "m")->error, HasSubstr("cannot read"));
  EXPECT_EQ(Load().code(), absl::StatusCode::kNotFound);
}

TEST_F(VersionsTest, AVersionThatLeadsOutFailsAlone) {
  Add("m/1");
  config_.repository.latest_versions = 2;
  Serve();
  Add("m/2");
  std::filesystem::create_directory_symlink("/", folder_.File("m/3"));
  Rescan();
  EXPECT_THAT(Versions(), ElementsAre("3 failed", "2 ready", "1 ready"));
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "m", "3")->error, HasSubstr("3: leads out"));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m")->error, "");
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 1);
  Remove("m/3");
  Rescan();
  EXPECT_THAT(Versions(), ElementsAre("2 ready", "1 ready"));
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 0);
  EXPECT_THAT(loaded(), ElementsAre("m/1", "m/2"));
}

// A network's file system may give an error for a moment. Here the target's name is too long.
TEST_F(VersionsTest, VersionsAndModelsThatCannotBeReadForAMomentStay) {
  for (const char* path : {"m/1", "m/2", "n/1"}) Add(path);
  Serve();
  for (const char* path : {"m/2", "n"}) {
    Remove(path);
    std::filesystem::create_directory_symlink(std::string(300, 'x'), folder_.File(path));
  }
  Rescan();
  EXPECT_THAT(Versions(), ElementsAre("2 ready"));
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "m")->error, HasSubstr("too long"));
  EXPECT_EQ(Serving("n"), "1");
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "n")->error, HasSubstr("too long"));
}

TEST_F(VersionsTest, AVersionWhoseFolderIsGoneHasNoErrorOnceAnotherIsWanted) {
  Add("m/1");
  Serve();
  Remove("m");
  EXPECT_EQ(Load().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "m", "1")->error, HasSubstr("cannot read"));
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 1);
  Add("m/2", "bad");
  EXPECT_EQ(Load().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Versions(), ElementsAre("2 failed", "1 ready"));
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "m", "1")->error, "");
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 1);
}

TEST_F(VersionsTest, AVersionWithWrongChecksumsIsNotLoaded) {
  Add("m/1");
  Serve();
  Add("m/2");
  WriteBytes(folder_.File("m/2/SHA256SUMS"), std::string(64, '0') + "  weights\n");
  EXPECT_THAT(Load(), StatusIs(absl::StatusCode::kDataLoss, HasSubstr("its SHA-256 is")));
  EXPECT_THAT(loaded(), ElementsAre("m/1"));
  EXPECT_EQ(Serving(), "1");
}

TEST_F(VersionsTest, AVersionThatShouldBeServedAndIsNotIsCounted) {
  Add("m/1");
  Add("m/2", "bad");
  config_.repository.latest_versions = 2;
  Serve();
  const std::string failed = "aft_model_versions_failed";
  EXPECT_EQ(Gauge(failed), 1);
  EXPECT_EQ(Serving(), "1");
  Add("m/2", "2");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_EQ(Gauge(failed), 0);
  Add("m/2", "worse");
  EXPECT_FALSE(Load().ok());
  EXPECT_EQ(Gauge(failed), 1);  // though the version from before is served
  EXPECT_EQ(Serving(), "2");
  EXPECT_EQ(Unload(), absl::OkStatus());
  EXPECT_EQ(Gauge(failed), 0);
  Remove("m");
  const double before = registry_->FindMetrics(*AnonymousClient(), "m")->loads(false).Value();
  EXPECT_FALSE(Load().ok());
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "m")->loads(false).Value(), before + 1);
}

TEST_F(VersionsTest, AFailedVersionThatIsNotWantedAnyMoreIsForgotten) {
  Add("m/1");
  Serve();
  Add("m/2", "bad");
  EXPECT_FALSE(Load().ok());
  Remove("m/2");
  Add("m/3", "bad");
  EXPECT_FALSE(Load().ok());
  EXPECT_THAT(Versions(), ElementsAre("3 failed", "1 ready"));
  EXPECT_EQ(Gauge("aft_model_versions_failed"), 1);
}

// A stuck engine must not seem younger because others step, and one that steps must not seem older
// because others are idle. This holds whether or not new requests get its version.
TEST_F(VersionsTest, AgesCountEveryVersionThatHasRequests) {
  Add("m/1");
  Add("m/2");
  config_.repository.latest_versions = 2;
  Serve();
  const auto age = [&] { return registry_->Ages().at("m").since_step; };
  const auto age_of = [&](const std::string& version) {
    return registry_->Get(*AnonymousClient(), "m", version)->load.since_step;
  };
  ModelHold first = *registry_->Acquire(*AnonymousClient(), "m", "1");
  const auto endless = std::make_shared<HoldingSink>(first);
  const RequestHandle handle = *first->generate->Generate(Tokens(1 << 30), endless);
  endless->WaitForParts(1);      // so its last step is younger than the other's loading
  const Duration young = age();  // first, because ages only grow
  EXPECT_LT(young, age_of("2"));

  control("m/1").Hold();
  control("m/1").WaitUntilBlocked();
  const ModelHold second = *registry_->Acquire(*AnonymousClient(), "m", "2");
  const auto other = std::make_shared<HoldingSink>(second);
  const RequestHandle other_handle = *second->generate->Generate(Tokens(1 << 30), other);
  other->WaitForParts(1);
  Duration stuck = first->engine().load().since_step;
  EXPECT_GE(age(), stuck);
  // This also holds when it serves only its last stream and the requests that wait for its slots.
  std::vector<std::shared_ptr<HoldingSink>> waiting;
  for (int i = 0; i < first->engine().load().slots; ++i) {
    waiting.push_back(std::make_shared<HoldingSink>(first));
    ASSERT_TRUE(first->generate->Generate(Tokens(1), waiting.back()).ok());
  }
  Remove("m/1");
  EXPECT_EQ(Load(), absl::OkStatus());
  EXPECT_THAT(Versions(), ElementsAre("2 ready"));
  EngineLoad load = first->engine().load();
  EXPECT_GT(load.oldest_waiting, Duration(0));
  const ModelAges ages = registry_->Ages().at("m");
  EXPECT_GE(ages.since_step, load.since_step);
  EXPECT_GE(ages.oldest_waiting, load.oldest_waiting);
  first->generate->Cancel(handle);
  second->generate->Cancel(other_handle);
  control("m/1").Resume();
  endless->Wait();
  other->Wait();
  for (const auto& sink : waiting) sink->Wait();
}

class StuckVersionTest : public VersionsTest {
 protected:
  // Serves, and fails version 1 while its thread is in a step. Two requests end with it: one was in
  // that step, and the other one waited.
  void ServeAndFail() {
    config_.repository.settings.slots = 1;
    config_.health.step_timeout = std::chrono::milliseconds(1);
    Serve();
    const ModelHold stuck = *registry_->Acquire(*AnonymousClient(), "m", "1");
    control("m/1").Hold();
    const auto running = std::make_shared<RecordingSink>();
    ASSERT_TRUE(stuck->generate->Generate(Tokens(1), running).ok());
    control("m/1").WaitUntilBlocked();
    const auto waiting = std::make_shared<RecordingSink>();
    ASSERT_TRUE(stuck->generate->Generate(Tokens(1), waiting).ok());
    while (!running->finished() || !waiting->finished()) registry_->CheckProgress();
    const EngineLoad load = stuck->engine().load();  // its thread has not seen the end
    EXPECT_EQ(load.running, 1);
    EXPECT_EQ(load.waiting, 1);
    EXPECT_GT(load.oldest_waiting, Duration(0));
  }
};

TEST_F(StuckVersionTest, AgesCountNoVersionThatHasFailed) {
  Add("m/1");
  Add("m/2");
  config_.repository.latest_versions = 2;
  ServeAndFail();
  EXPECT_EQ(registry_->Ages().at("m").oldest_waiting, Duration(0));
}

TEST_F(StuckVersionTest, AModelThatHasFailedHasNoRequests) {
  Add("m/1");
  ServeAndFail();
  EXPECT_EQ(registry_->Ages().at("m").oldest_waiting, Duration(0));
  const EngineLoad load = registry_->Get(*AnonymousClient(), "m")->load;
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.waiting, 0);
  EXPECT_EQ(load.oldest_waiting, Duration(0));
  EXPECT_EQ(load.slots, 1);
}

}  // namespace
}  // namespace aft::server
