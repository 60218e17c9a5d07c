#include <chrono>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_loader.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::HasSubstr;

// A registry of the models "a" and "b" (folders of the same names), whose loader does what each
// test says.
class ModelRegistryTest : public testing::Test {
 protected:
  ModelRegistryTest() { fakes_.loads->Hold(); }

  static ServerConfig Config(const std::vector<std::string>& names) {
    ServerConfig config;
    for (const std::string& name : names) {
      ModelConfig model;
      model.name = name;
      model.checkpoint_dir = name;
      config.models.push_back(model);
    }
    return config;
  }

  void Make(const std::vector<std::string>& names) { MakeFrom(Config(names)); }
  void MakeFrom(const ServerConfig& config) {
    registry_ = std::make_unique<ModelRegistry>(
        config,
        [this](const LoadOptions& options) -> absl::StatusOr<LoadedModel> {
          LoadedModel model = fakes_.Load(options);
          loaded_ = options;
          if (options.checkpoint_dir == broken_) return absl::DataLossError("file: tensor: reason");
          return model;
        },
        prometheus_,
        [this] {
          MutexLock lock(mutex_);
          changed_.NotifyAll();
        });
  }

  void AllowLoads() { fakes_.loads->Resume(); }

  // All there are, at least one of them well.
  void Load() {
    AllowLoads();
    registry_->StartLoading();
    EXPECT_EQ(WaitLoaded(), absl::OkStatus());
  }

  absl::Status WaitLoaded() {
    MutexLock lock(mutex_);
    while (!registry_->load_result().has_value()) changed_.Wait(mutex_);
    return *registry_->load_result();
  }

  const FakeModels fakes_;
  std::string broken_;
  LoadOptions loaded_;  // the last; to be read after WaitLoaded

  Mutex mutex_;
  CondVar changed_;
  prometheus::Registry prometheus_;
  std::unique_ptr<ModelRegistry> registry_;  // last: its thread uses all of the above
};

TEST_F(ModelRegistryTest, AModelIsUnavailableWhileItLoadsAndThenServed) {
  Make({"a"});
  registry_->StartLoading();
  EXPECT_EQ(registry_->Acquire("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->Get("a")->state, ModelState::kLoading);
  EXPECT_FALSE(registry_->Get("a")->info.has_value());
  EXPECT_FALSE(registry_->load_result().has_value());
  AllowLoads();
  EXPECT_TRUE(WaitLoaded().ok());
  const auto model = registry_->Acquire("a");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->config.name, "a");
  EXPECT_EQ((*model)->config.version, "1");
  EXPECT_EQ(registry_->Get("a")->state, ModelState::kReady);
  EXPECT_EQ(registry_->Get("a")->info->architecture, "fake");
}

TEST_F(ModelRegistryTest, AModelIsLoadedAsItsConfigSays) {
  ServerConfig config = Config({"a"});
  config.models[0].device = "cuda:3";
  config.models[0].weight_format = "fp16";
  config.models[0].slots = 5;
  config.models[0].max_step_tokens = 6;
  config.models[0].intra_op_threads = 7;
  MakeFrom(config);
  Load();
  EXPECT_EQ(loaded_.checkpoint_dir, "a");
  EXPECT_EQ(loaded_.device, "cuda:3");
  EXPECT_EQ(loaded_.weight_format, "fp16");
  EXPECT_EQ(loaded_.slots, 5);
  EXPECT_EQ(loaded_.max_step_tokens, 6);
  EXPECT_EQ(loaded_.intra_op_threads, 7);
}

TEST_F(ModelRegistryTest, UnknownNamesAreNotFoundAndTheAnswerNamesTheModels) {
  Make({"a", "b"});
  for (const absl::Status& status :
       {registry_->Acquire("c").status(), registry_->Get("c").status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"a\", \"b\"")));
  }
  EXPECT_EQ(registry_->FindMetrics("c"), nullptr);
  EXPECT_NE(registry_->FindMetrics("b"), nullptr);
}

TEST_F(ModelRegistryTest, AnEmptyNameMeansTheOnlyModel) {
  Make({"a", "b"});
  EXPECT_EQ(registry_->Acquire("").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_->FindMetrics(""), nullptr);
  Make({"a"});
  Load();
  EXPECT_TRUE(registry_->Acquire("").ok());
  EXPECT_NE(registry_->FindMetrics(""), nullptr);
}

TEST_F(ModelRegistryTest, AFailedModelKeepsItsReasonAndTheOthersServe) {
  broken_ = "a";
  Make({"a", "b"});
  Load();
  EXPECT_EQ(registry_->Get("a")->state, ModelState::kFailed);
  EXPECT_EQ(registry_->Get("a")->error, "file: tensor: reason");
  EXPECT_EQ(registry_->Acquire("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(registry_->Acquire("b").ok());
}

TEST_F(ModelRegistryTest, WithoutAnyReadyModelTheResultSaysWhy) {
  broken_ = "a";
  Make({"a"});
  AllowLoads();
  registry_->StartLoading();
  EXPECT_EQ(WaitLoaded().message(), "no model could be loaded: \"a\": file: tensor: reason");
}

TEST_F(ModelRegistryTest, AModelThatTheEngineRefusesFails) {
  ServerConfig config = Config({"a"});
  registry_ = std::make_unique<ModelRegistry>(
      config,
      [](LoadOptions options) {
        options.max_step_tokens = 2;  // less than slots + 1
        return absl::StatusOr<LoadedModel>(FakeModels().Load(options));
      },
      prometheus_, [] {});
  registry_->StartLoading();
  registry_->Shutdown(TimePoint::max());  // joins the loader
  EXPECT_FALSE(registry_->Acquire("a").ok());
  EXPECT_NE(registry_->Get("a")->state, ModelState::kReady);
}

TEST_F(ModelRegistryTest, DrainingModelsAreUnavailable) {
  Make({"a"});
  Load();
  registry_->BeginDrain();
  EXPECT_EQ(registry_->Acquire("a").status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->Get("a")->state, ModelState::kDraining);
  registry_->Shutdown(TimePoint::max());  // nothing runs: returns
}

TEST_F(ModelRegistryTest, DrainDuringALoadDropsTheModel) {
  Make({"a", "b"});
  registry_->StartLoading();
  registry_->BeginDrain();
  AllowLoads();
  registry_->Shutdown(TimePoint::max());
  for (const ModelStatus& model : registry_->List()) {
    EXPECT_EQ(model.state, ModelState::kDraining);
    EXPECT_FALSE(model.info.has_value());
  }
}

TEST_F(ModelRegistryTest, AnEncoderIsServedByAnEngineOfItsOwnKind) {
  ServerConfig config = Config({"encoder"});
  config.models[0].max_batch_rows = 3;
  config.models[0].max_batch_tokens = 50;
  MakeFrom(config);
  EXPECT_EQ(registry_->Get("encoder")->vector_width, 0);  // not known yet
  Load();
  const auto model = registry_->Acquire("encoder");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->generate, nullptr);
  ASSERT_NE((*model)->encode, nullptr);
  EXPECT_EQ(&(*model)->engine(), (*model)->encode.get());
  EXPECT_EQ(registry_->Get("encoder")->vector_width, 3);
  EXPECT_EQ(registry_->Get("encoder")->slots, 3);
  EXPECT_EQ(loaded_.max_batch_rows, 3);
  EXPECT_EQ(loaded_.max_batch_tokens, 50);
}

}  // namespace
}  // namespace aft::server
