#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/tokenizer.h"
#include "server/registry/loader_thread.h"
#include "server/registry/model_registry.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_loader.h"
#include "tests/support/no_more_threads.h"
#include "tests/support/recording_sink.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A registry of models in folders of the same names. Its loader does what each test says.
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
    MakeFrom(config, [this](const LoadOptions& options) -> absl::StatusOr<LoadedModel> {
      LoadedModel model = fakes_.Load(options);
      model.initial_states = initial_states_;
      loaded_ = options;
      if (options.checkpoint_dir == broken_) return absl::DataLossError("file: tensor: reason");
      return model;
    });
  }
  void MakeFrom(const ServerConfig& config, const ModelLoader& loader) {
    registry_ = std::make_unique<ModelRegistry>(config, loader, prometheus_, [this] {
      MutexLock lock(mutex_);
      ++changes_;
      changed_.NotifyAll();
    });
  }

  void AllowLoads() { fakes_.loads->Resume(); }

  // Loads all models. REQUIRES: at least one of them can be loaded.
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

  FakeModels fakes_;
  std::vector<InitialState> initial_states_;
  std::string broken_;
  LoadOptions loaded_;  // those of the last load; read them after WaitLoaded

  Mutex mutex_;
  CondVar changed_;
  int changes_ = 0;
  prometheus::Registry prometheus_;
  std::unique_ptr<ModelRegistry> registry_;  // last: its thread uses all of the above
};

TEST_F(ModelRegistryTest, AModelIsUnavailableWhileItLoadsAndThenServed) {
  Make({"a"});
  registry_->StartLoading();
  EXPECT_EQ(registry_->Acquire(*AnonymousClient(), "a").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->state, ModelState::kLoading);
  EXPECT_FALSE(registry_->Get(*AnonymousClient(), "a")->info.has_value());
  EXPECT_FALSE(registry_->load_result().has_value());
  AllowLoads();
  EXPECT_TRUE(WaitLoaded().ok());
  const auto model = registry_->Acquire(*AnonymousClient(), "a");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->config.name, "a");
  EXPECT_EQ((*model)->config.version, "1");
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->state, ModelState::kReady);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->info->architecture, "fake");
}

TEST_F(ModelRegistryTest, AModelThatExceedsTheMemoryLeftByOthersIsNotLoaded) {
  fakes_.options.state_bytes = 64;
  ServerConfig config = Config({"a", "b"});
  config.models[1].parking_bytes = int64_t{1} << 60;
  MakeFrom(config);
  Load();
  EXPECT_TRUE(registry_->Acquire(*AnonymousClient(), "a").ok());
  const ModelStatus b = *registry_->Get(*AnonymousClient(), "b");
  EXPECT_EQ(b.state, ModelState::kFailed);
  EXPECT_THAT(b.error,
              AllOf(HasSubstr("states.max_bytes"), HasSubstr("parking_bytes of model \"a\""),
                    HasSubstr("parking_bytes of model \"b\"")));
  std::vector<std::string> uses;
  for (const MemoryPart& part : registry_->Memory()) {
    uses.push_back(kMemoryUses[static_cast<size_t>(part.use)]);
  }
  EXPECT_THAT(uses,
              ElementsAre("program", "clients", "grpc", "states", "prefix_caches", "parking"));
}

TEST_F(ModelRegistryTest, TunedStatesAreServedByNameAndCountAsMemoryOfTheModel) {
  initial_states_ = {{"a", std::string(1000, 'a'), 7}, {"b", std::string(500, 'b'), 8}};
  Make({"m"});
  Load();
  const ModelStatus status = *registry_->Get(*AnonymousClient(), "m");
  EXPECT_THAT(status.initial_states, ElementsAre("a", "b"));
  EXPECT_EQ(status.info->memory_bytes, 1500);
  const auto model = registry_->Acquire(*AnonymousClient(), "m");
  ASSERT_TRUE(model.ok());
  const SequenceState& a = *(*model)->initial_states.at("a");
  const SequenceState& b = *(*model)->initial_states.at("b");
  EXPECT_EQ(a.snapshot, std::string(1000, 'a'));
  EXPECT_EQ(a.model, status.info->fingerprint);
  EXPECT_EQ(a.consumed(), 1);
  EXPECT_EQ(a.history, 7);
  EXPECT_NE(a.initial, 0);
  EXPECT_NE(a.initial, b.initial);
}

TEST_F(ModelRegistryTest, AModelIsLoadedAsItsConfigSays) {
  ServerConfig config = Config({"a"});
  config.models[0].device = "cuda:3";
  config.models[0].weight_format = "fp16";
  config.models[0].slots = 5;
  config.models[0].max_step_tokens = 6;
  config.models[0].intra_op_threads = 7;
  config.models[0].cpus = "1,0";
  MakeFrom(config);
  Load();
  EXPECT_EQ(loaded_.checkpoint_dir, "a");
  EXPECT_EQ(loaded_.device, "cuda:3");
  EXPECT_EQ(loaded_.weight_format, "fp16");
  EXPECT_EQ(loaded_.slots, 5);
  EXPECT_EQ(loaded_.max_step_tokens, 6);
  EXPECT_EQ(loaded_.intra_op_threads, 7);
  EXPECT_EQ(loaded_.cpus, "1,0");
}

TEST_F(ModelRegistryTest, LoadsWithAProgressThatTheLogShows) {
  Make({"a"});
  Load();
  EXPECT_NE(loaded_.progress, nullptr);

  const CapturedLog log;
  ModelConfig config;
  config.name = "a";
  config.version = "7";
  Progress::Clock::time_point now{std::chrono::hours(1)};
  Progress progress = LoadProgress(config, [&now] { return now; });
  progress.Begin(1000);
  progress.Add(100);
  now += std::chrono::seconds(5);
  progress.Add(323);
  progress.End();
  const std::vector<LogLine> lines = log.Lines("model.loading");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0]["model"], "a");
  EXPECT_EQ(lines[0]["version"], "7");
  EXPECT_EQ(lines[0]["percent"], "42");
}

TEST_F(ModelRegistryTest, UnknownNamesAreNotFoundAndTheAnswerNamesTheModels) {
  Make({"a", "b"});
  for (const absl::Status& status : {registry_->Acquire(*AnonymousClient(), "c").status(),
                                     registry_->Get(*AnonymousClient(), "c").status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("\"a\", \"b\"")));
  }
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "c"), nullptr);
  EXPECT_NE(registry_->FindMetrics(*AnonymousClient(), "b"), nullptr);
}

TEST_F(ModelRegistryTest, AClientLearnsOnlyOfTheModelsThatItMayUse) {
  Make({"a", "b"});
  Client client{.name = "c", .models = {"b", "missing"}};
  for (const char* const name : {"a", "nothing"}) {
    for (const absl::Status& status :
         {registry_->Acquire(client, name).status(), registry_->AcquireOnly(client, name).status(),
          registry_->Get(client, name, "9").status()}) {
      EXPECT_EQ(status, absl::PermissionDeniedError(
                            absl::StrCat("client \"c\" may not use model \"", name, "\"")));
    }
  }
  EXPECT_EQ(registry_->Acquire(client, "missing").status(),
            absl::NotFoundError("no model is called \"missing\"; there is \"b\""));
  // Its calls count for that model while it loads too.
  EXPECT_EQ(registry_->FindMetrics(client, ""), registry_->FindMetrics(client, "b"));
  Load();
  EXPECT_EQ((*registry_->Acquire(client, ""))->config.name, "b");
  client.models = {"missing"};
  EXPECT_EQ(registry_->Acquire(client, "").status(),
            absl::PermissionDeniedError("client \"c\" may use none of the models that are served"));
}

TEST_F(ModelRegistryTest, AnEmptyNameMeansTheOnlyModel) {
  Make({"a", "b"});
  EXPECT_EQ(registry_->Acquire(*AnonymousClient(), "").status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), ""), nullptr);
  Make({"a"});
  Load();
  EXPECT_TRUE(registry_->Acquire(*AnonymousClient(), "").ok());
  EXPECT_NE(registry_->FindMetrics(*AnonymousClient(), ""), nullptr);
}

TEST_F(ModelRegistryTest, AModelWhoseThreadCannotStartFailsAndTheOthersServe) {
  std::optional<NoMoreThreads> no_more_threads;
  MakeFrom(Config({"a", "encoder", "b"}),
           [&](const LoadOptions& options) -> absl::StatusOr<LoadedModel> {
             no_more_threads.reset();
             if (options.checkpoint_dir != "b") no_more_threads.emplace();
             return fakes_.Load(options);
           });
  Load();
  for (const char* const name : {"a", "encoder"}) {
    EXPECT_EQ(registry_->Get(*AnonymousClient(), name)->state, ModelState::kFailed);
    EXPECT_THAT(registry_->Get(*AnonymousClient(), name)->error,
                HasSubstr("cannot start a thread"));
  }
  EXPECT_TRUE(registry_->Acquire(*AnonymousClient(), "b").ok());
}

TEST_F(ModelRegistryTest, WithoutAnyReadyModelTheResultSaysWhy) {
  broken_ = "a";
  Make({"a"});
  AllowLoads();
  registry_->StartLoading();
  EXPECT_EQ(WaitLoaded().message(), "no model could be loaded: \"a\": file: tensor: reason");
}

TEST_F(ModelRegistryTest, ARepositoryThatCannotBeReadIsLoggedThoughAModelServes) {
  ServerConfig config = Config({"a"});
  config.repository.folder = "no-such-folder";
  const CapturedLog log;
  MakeFrom(config);
  const std::vector<LogLine> lines = log.Lines("repository.unreadable");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0]["error"], HasSubstr("no-such-folder"));
  Load();
}

TEST_F(ModelRegistryTest, AModelThatTheEngineRefusesFails) {
  MakeFrom(Config({"a"}), [](LoadOptions options) {
    options.max_step_tokens = 2;  // less than slots + 1
    return absl::StatusOr<LoadedModel>(FakeModels().Load(options));
  });
  registry_->StartLoading();
  EXPECT_FALSE(WaitLoaded().ok());
  EXPECT_FALSE(registry_->Acquire(*AnonymousClient(), "a").ok());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->state, ModelState::kFailed);
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "a")->error, HasSubstr("max_step_tokens"));
}

constexpr absl::string_view kMarker = "<|im_start|>";

// A tokenizer of which kMarker is a special token.
class MarkerTokenizer final : public Tokenizer {
 public:
  int32_t vocab_size() const override { return 257; }
  int32_t eos_id() const override { return -1; }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view /*text*/) const override {
    return std::vector<int32_t>();
  }
  absl::string_view SpecialTokenIn(absl::string_view text) const override {
    return absl::StrContains(text, kMarker) ? kMarker : "";
  }
  absl::string_view TokenBytes(int32_t /*id*/) const override { return ""; }
};

TEST_F(ModelRegistryTest, AChatTemplateWithASpecialTokenIsRefused) {
  ServerConfig config = Config({"a", "b", "c", "d"});
  config.models[0].chat_template = "chatml";
  config.models[3].chat_template = "custom";
  config.models[3].chat_format.answer = "A:";
  config.models[3].chat_format.stop = {std::string(kMarker)};
  config.models[1].chat_template = "custom";
  config.models[1].chat_format.answer = std::string(kMarker);
  MakeFrom(config, [this](const LoadOptions& options) -> absl::StatusOr<LoadedModel> {
    LoadedModel model = fakes_.Load(options);
    model.tokenizer = std::make_shared<MarkerTokenizer>();
    return model;
  });
  Load();
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->error,
            "chat_template: \"<|im_start|>\" is a special token of the tokenizer, which a text "
            "cannot contain");
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "b")->error, HasSubstr("chat_format: \"<|im_st"));
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "d")->error, HasSubstr("chat_format: \"<|im_st"));
  EXPECT_TRUE(registry_->Acquire(*AnonymousClient(), "c").ok());
}

TEST_F(ModelRegistryTest, ADrainBeginsNoFurtherLoad) {
  Make({"a", "b"});
  registry_->StartLoading();
  fakes_.loads->WaitUntilBlocked();
  registry_->BeginDrain();
  AllowLoads();
  EXPECT_TRUE(registry_->Shutdown(TimePoint::max()));  // joins the loader
  EXPECT_EQ(loaded_.checkpoint_dir, "a");
}

TEST_F(ModelRegistryTest, DrainingModelsAreUnavailable) {
  Make({"a"});
  Load();
  registry_->BeginDrain();
  EXPECT_EQ(registry_->Acquire(*AnonymousClient(), "a").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "a")->rejected(Rejection::kDraining).Value(),
            1);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->state, ModelState::kDraining);
  registry_->Shutdown(TimePoint::max());  // returns, because nothing runs
}

TEST_F(ModelRegistryTest, AModelThatFailsWhileItServesKeepsItsReasonAndTheOthersServe) {
  ServerConfig config = Config({"a", "encoder"});
  config.health.max_failed_steps = 1;
  MakeFrom(config);
  Load();
  const auto served = *registry_->Acquire(*AnonymousClient(), "a");
  fakes_.control->FailNext(FakeCall::kSubmit, absl::InternalError("no luck"));
  const auto sink = std::make_shared<RecordingSink>();
  GenerationRequest request;
  request.prompt = {1};
  request.stop.max_tokens = 1;
  ASSERT_TRUE(served->generate->Generate(request, sink).ok());
  EXPECT_EQ(sink->Wait().status, absl::UnavailableError("model \"a\" has failed"));
  EXPECT_EQ(registry_->Acquire(*AnonymousClient(), "a").status(),
            absl::UnavailableError("model \"a\" has failed"));
  const ModelStatus status = *registry_->Get(*AnonymousClient(), "a");
  EXPECT_EQ(status.state, ModelState::kFailed);
  EXPECT_THAT(status.error, HasSubstr("INTERNAL: no luck"));
  EXPECT_TRUE(status.info.has_value());
  {
    MutexLock lock(mutex_);
    while (changes_ < 4) changed_.Wait(mutex_);  // two loads, their result, the failure
  }
  EXPECT_EQ(registry_->FindMetrics(*AnonymousClient(), "a")->rejected(Rejection::kFailed).Value(),
            1);

  registry_->CheckProgress();
  EXPECT_TRUE(registry_->Acquire(*AnonymousClient(), "encoder").ok());
  registry_->BeginDrain();
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "a")->state, ModelState::kFailed);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "encoder")->state, ModelState::kDraining);
  EXPECT_TRUE(registry_->Shutdown(TimePoint::max()));
  MutexLock lock(mutex_);
  EXPECT_EQ(changes_, 5);  // and the drain
}

TEST_F(ModelRegistryTest, AStuckModelFailsAndDoesNotKeepTheOthersFromEnding) {
  ServerConfig config = Config({"a", "encoder"});
  config.health.step_timeout = std::chrono::milliseconds(1);
  MakeFrom(config);
  Load();
  const auto served = *registry_->Acquire(*AnonymousClient(), "a");
  fakes_.control->Hold();
  const auto sink = std::make_shared<RecordingSink>();
  GenerationRequest request;
  request.prompt = {1};
  request.stop.max_tokens = 1;
  ASSERT_TRUE(served->generate->Generate(request, sink).ok());
  while (!sink->finished()) registry_->CheckProgress();
  EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(registry_->Get(*AnonymousClient(), "a")->error,
              HasSubstr("health.step_timeout_ms=1"));
  EXPECT_FALSE(registry_->Shutdown(TimePoint::max()));
  fakes_.control->Resume();
}

TEST_F(ModelRegistryTest, AnEncoderIsServedByAnEngineOfItsOwnKind) {
  ServerConfig config = Config({"encoder"});
  config.models[0].max_batch_rows = 3;
  config.models[0].max_batch_tokens = 50;
  MakeFrom(config);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "encoder")->vector_width, 0);  // not known yet
  Load();
  const auto model = registry_->Acquire(*AnonymousClient(), "encoder");
  ASSERT_TRUE(model.ok());
  EXPECT_EQ((*model)->generate, nullptr);
  ASSERT_NE((*model)->encode, nullptr);
  EXPECT_EQ(&(*model)->engine(), (*model)->encode.get());
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "encoder")->vector_width, 3);
  EXPECT_EQ(registry_->Get(*AnonymousClient(), "encoder")->slots, 3);
  EXPECT_EQ(loaded_.max_batch_rows, 3);
  EXPECT_EQ(loaded_.max_batch_tokens, 50);
}

TEST(LoaderThreadTest, OnlyALimitedOrderIsRefusedWhenManyWait) {
  std::promise<void> go;
  std::promise<absl::Status> limited;
  std::promise<absl::Status> unlimited;
  LoaderThread thread;
  thread.Start([&go] { go.get_future().wait(); });
  for (size_t i = 0; i < LoaderThread::kMaxTasks; ++i) {
    thread.Order([](const absl::Status& may) { EXPECT_TRUE(may.ok()); });
  }
  thread.Order([&limited](const absl::Status& may) { limited.set_value(may); });
  thread.Order([&unlimited](const absl::Status& may) { unlimited.set_value(may); },
               /*limited=*/false);
  constexpr std::chrono::seconds kNow{0};
  auto refused = limited.get_future();
  EXPECT_EQ(refused.wait_for(kNow), std::future_status::ready);
  auto done = unlimited.get_future();
  EXPECT_EQ(done.wait_for(kNow), std::future_status::timeout);
  go.set_value();
  EXPECT_EQ(refused.get().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(done.get(), absl::OkStatus());
}

TEST(LoaderThreadTest, AnOrderWithoutMemoryIsFollowedByOthers) {
  std::promise<void> next;
  LoaderThread thread;
  thread.Start([] {});
  thread.Order([](const absl::Status& /*may*/) { throw std::bad_alloc(); });
  thread.Order([&next](const absl::Status& /*may*/) { next.set_value(); });
  next.get_future().wait();
}

}  // namespace
}  // namespace aft::server
