#pragma once

#include <pthread.h>

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "model/api/model_runner.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_loader.h"
#include "tests/support/recording_sink.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {

inline std::string ThreadName() {
  char name[16] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

inline GenerationRequest Tokens(int count) {
  GenerationRequest request;
  request.prompt = {1};
  request.stop.max_tokens = count;
  request.stop.ignore_eos = true;
  return request;
}

// Like a call, it holds its model, and the engine holds it.
class HoldingSink final : public PartRecorder<TokenDelta> {
 public:
  explicit HoldingSink(ModelHold model) : model_(std::move(model)) {}
  void OnFinished(const Outcome& outcome) override {
    last_thread_ = ThreadName();
    model_.reset();
    PartRecorder<TokenDelta>::OnFinished(outcome);
  }
  std::string last_thread() const { return last_thread_; }  // after Wait

 private:
  ModelHold model_;
  std::string last_thread_;
};

// A registry over a repository whose versions have a file "weights": a number, which is the model's
// fingerprint, or something else, which does not load.
class VersionsTest : public testing::Test {
 protected:
  VersionsTest() {
    config_.repository.folder = folder_.path();
    config_.repository.drain = std::chrono::hours(1);
  }
  ~VersionsTest() override {
    for (const auto& [version, control] : controls_) control->Resume();
    loads_.Resume();
    registry_.reset();
    EXPECT_THAT(destroyed_on_, testing::Each("aft-keeper"));
  }

  void Add(const std::string& path, const std::string& weights = "1") {
    std::filesystem::create_directories(folder_.File(path));
    WriteBytes(folder_.File(path) + "/weights", weights);
  }
  void Remove(const std::string& path) { std::filesystem::remove_all(folder_.File(path)); }

  void Start() {
    registry_ = std::make_unique<ModelRegistry>(
        config_, [this](const LoadOptions& options) { return LoadFake(options); }, prometheus_,
        [this] {
          MutexLock lock(mutex_);
          ++changes_;
          changed_.NotifyAll();
          if (std::exchange(no_memory_, false)) throw std::bad_alloc();
        });
    registry_->StartLoading();
  }
  absl::Status WaitLoaded() {
    MutexLock lock(mutex_);
    while (!registry_->load_result().has_value()) changed_.Wait(mutex_);
    return *registry_->load_result();
  }
  void Serve() {
    Start();
    ASSERT_EQ(WaitLoaded(), absl::OkStatus());
  }

  // An order to load or unload, and its result.
  struct Ordered {
    absl::Status Wait() {
      MutexLock lock(mutex);
      while (count == 0) changed.Wait(mutex);
      return absl::Status(status.code(), status.message());
    }
    bool done() {
      MutexLock lock(mutex);
      return count > 0;
    }
    ModelRegistry::Done Done() {
      return [this](const absl::Status& outcome) {
        MutexLock lock(mutex);
        status = absl::Status(outcome.code(), outcome.message());
        ++count;
        EXPECT_EQ(count, 1);
        changed.NotifyAll();
      };
    }
    Mutex mutex;
    CondVar changed;
    absl::Status status;
    int count = 0;
  };
  absl::Status Load(const std::string& name = "m") {
    Ordered ordered;
    registry_->Load(name, ordered.Done());
    return ordered.Wait();
  }
  absl::Status Unload(const std::string& name = "m") {
    Ordered ordered;
    registry_->Unload(name, ordered.Done());
    return ordered.Wait();
  }
  // Rescan does not report its end. Orders are done one after the other, so this waits for the
  // next.
  void Rescan() {
    registry_->Rescan(config_.repository);
    EXPECT_EQ(Load("nobody").code(), absl::StatusCode::kNotFound);  // lint: allow
  }

  // Fails a step of the model, whose folder is `path`, and the request of that step.
  void FailStep(const ModelHold& model, const std::string& path) {
    control(path).FailNext(FakeCall::kSubmit, absl::InternalError("no luck"));
    const auto sink = std::make_shared<RecordingSink>();
    ASSERT_TRUE(model->generate->Generate(Tokens(1), sink).ok());
    EXPECT_EQ(sink->Wait().status.code(), absl::StatusCode::kUnavailable);
  }

  std::string Serving(const std::string& name = "m") const {
    const auto model = registry_->Acquire(*AnonymousClient(), name);
    return model.ok() ? (*model)->config.version : std::string(model.status().message());
  }
  // The versions of "m" and their states, as in "2 ready", the newest first.
  std::vector<std::string> Versions() const {
    std::vector<std::string> versions;
    const ModelStatus model = *registry_->Get(*AnonymousClient(), "m");
    for (const VersionStatus& version : model.versions) {
      constexpr const char* kStates[] = {"loading", "ready", "draining", "failed", "unloaded"};
      versions.push_back(version.version + " " + kStates[static_cast<size_t>(version.state)]);
    }
    return versions;
  }
  // The gauge of all versions of "m" together, as on the metrics page. `state`: its second label.
  double Gauge(const std::string& name, const std::string& state = "") {
    for (const prometheus::MetricFamily& family : prometheus_.Collect()) {
      for (const prometheus::ClientMetric& metric : family.metric) {
        if (family.name != name || metric.label.at(0).value != "m") continue;
        if (state.empty() || metric.label.at(1).value == state) return metric.gauge.value;
      }
    }
    return -1;
  }
  FakeModelControl& control(const std::string& path) {
    MutexLock lock(mutex_);
    auto& control = controls_[folder_.File(path)];
    if (control == nullptr) control = std::make_shared<FakeModelControl>();
    return *control;
  }
  int changes() {
    MutexLock lock(mutex_);
    return changes_;
  }
  std::vector<std::string> loaded() {
    MutexLock lock(mutex_);
    std::vector<std::string> paths;
    for (const std::string& path : loaded_) paths.push_back(path.substr(folder_.path().size() + 1));
    return paths;
  }
  size_t destroyed() {
    MutexLock lock(mutex_);
    return destroyed_on_.size();
  }
  // Waits until this number of models has been destroyed.
  void WaitDestroyed(size_t count) {
    MutexLock lock(mutex_);
    while (destroyed_on_.size() < count) changed_.Wait(mutex_);
  }

  const TempFolder folder_;
  ServerConfig config_;
  int max_steps_in_flight_ = 1;  // of the models
  DeviceStats device_stats_;     // likewise
  LoadGate loads_;
  Mutex mutex_;
  CondVar changed_;
  int changes_ = 0;         // the number of changes that the registry has reported
  bool no_memory_ = false;  // the next report of a change throws
  std::map<std::string, std::shared_ptr<FakeModelControl>> controls_;
  std::vector<std::string> loaded_;
  std::vector<std::string> destroyed_on_;  // the threads that destroyed a model
  prometheus::Registry prometheus_;
  std::unique_ptr<ModelRegistry> registry_;  // last: its threads use all of the above

 private:
  absl::StatusOr<LoadedModel> LoadFake(const LoadOptions& options) {
    const std::string path = options.checkpoint_dir;
    control(path.substr(folder_.path().size() + 1));
    {
      MutexLock lock(mutex_);
      loaded_.push_back(path);
    }
    loads_.Enter();
    FakeModelRunner::Options fake;
    if (!absl::SimpleAtoi(ReadBytes(path + "/weights"), &fake.fingerprint)) {
      return absl::DataLossError("weights: are bad");
    }
    fake.slots = options.slots;
    fake.max_step_tokens = options.max_step_tokens;
    fake.max_steps_in_flight = max_steps_in_flight_;
    fake.device_stats = &device_stats_;
    // Lives as long as the runner.
    const std::shared_ptr<void> witness(nullptr, [this](void* /*nothing*/) {
      MutexLock lock(mutex_);
      destroyed_on_.push_back(ThreadName());
      changed_.NotifyAll();
    });
    fake.next_token = [witness](uint64_t hash, int64_t /*count*/) {
      return static_cast<TokenId>(hash % 200);
    };
    LoadedModel model;
    model.tokenizer = std::make_shared<FakeTokenizer>();
    MutexLock lock(mutex_);
    model.runner = std::make_unique<FakeModelRunner>(std::move(fake), controls_.at(path));
    return model;
  }
};

}  // namespace aft::server
