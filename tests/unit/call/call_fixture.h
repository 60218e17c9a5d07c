#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "aft/v1/inference.pb.h"
#include "base/mutex.h"
#include "google/protobuf/message.h"
#include "gtest/gtest.h"
#include "prometheus/metric_family.h"
#include "prometheus/registry.h"
#include "server/admission/memory_ledger.h"
#include "server/call/call.h"
#include "server/call/carrier.h"
#include "server/call/decode_pool.h"
#include "server/call/exchange.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/observability/metrics.h"
#include "server/observability/rate_limit.h"
#include "server/registry/model_registry.h"
#include "server/scheduling/time.h"
#include "tests/support/fake_loader.h"
#include "tests/support/states.h"
#include "tests/support/thread_name.h"

namespace aft::server {

// A request as bytes, all of them in one string.
class StringBytes final : public RequestBytes {
 public:
  explicit StringBytes(const google::protobuf::MessageLite& message)
      : bytes_(message.SerializeAsString()) {}

  size_t size() const override { return bytes_.size(); }
  // Finds only a short string that is the first field, as in the messages of these tests.
  std::vector<std::optional<std::string>> PeekStrings(int /*last*/,
                                                      size_t /*most*/) const override {
    if (bytes_.size() < 2 || bytes_[0] != (1 << 3 | 2)) return {""};
    return {bytes_.substr(2, static_cast<size_t>(bytes_[1]))};
  }
  size_t FieldBytes(int /*field*/) const override { return 0; }
  absl::Status ParseInto(google::protobuf::Message& message) override {
    return message.ParseFromString(bytes_) ? absl::OkStatus()
                                           : absl::InvalidArgumentError("not a message");
  }

 private:
  const std::string bytes_;
};

// Takes the messages of a call on a thread of its own, like a transport whose writes end some time
// later. Keeps the serialised messages.
class ThreadCarrier final : public Carrier, public std::enable_shared_from_this<ThreadCarrier> {
 public:
  // If `reads` is false, the client reads nothing until Read is called.
  explicit ThreadCarrier(bool reads = true) : reads_(reads) {}

  void Start(const std::shared_ptr<Call>& call) {
    thread_ = std::thread([this, call] { Run(*call); });
  }
  void Wake(Call& /*call*/) override {
    MutexLock lock(mutex_);
    wakers_.push_back(ThreadName());
    woken_ = true;
    changed_.NotifyAll();
  }
  void Read() {
    MutexLock lock(mutex_);
    reads_ = true;
    changed_.NotifyAll();
  }
  // Blocks until `count` messages have been sent.
  void WaitForMessages(size_t count) {
    MutexLock lock(mutex_);
    while (messages_.size() < count) changed_.Wait(mutex_);
  }
  // Blocks until the call has ended.
  const CallEnd& Join(const Call& call) {
    thread_.join();
    return call.ending();
  }
  std::function<void()> before_close;  // set before the call begins
  // Both may be called only after Join.
  const std::vector<std::string>& messages() const { return messages_; }
  const std::vector<std::string>& wakers() const { return wakers_; }  // names of threads

 private:
  void Run(Call& call) {
    while (true) {
      {
        MutexLock lock(mutex_);
        while (!woken_ || !reads_) changed_.Wait(mutex_);
        woken_ = false;
      }
      Call::Next next = call.Take();
      for (; next == Call::Next::kMessage; next = call.Take()) {
        Keep(call);
        call.Written();
      }
      if (next == Call::Next::kEnd) break;
    }
    if (call.ending().message) Keep(call);
    if (before_close) before_close();
    call.Close();
  }
  void Keep(Call& call) {
    std::string message = call.exchange().outgoing().SerializeAsString();
    MutexLock lock(mutex_);
    messages_.push_back(std::move(message));
    changed_.NotifyAll();
  }

  std::thread thread_;
  Mutex mutex_;
  CondVar changed_;
  bool reads_;
  bool woken_ = false;
  std::vector<std::string> messages_;
  std::vector<std::string> wakers_;
};

class CallTest : public testing::Test {
 protected:
  CallTest() {
    ServerConfig config;
    ModelConfig model;
    model.name = "fake";
    model.checkpoint_dir = "nowhere";
    model.slots = 4;
    model.max_step_tokens = 64;
    config.models.push_back(model);
    model.name = model.checkpoint_dir = "encoder";
    model.max_batch_delay = std::chrono::microseconds(0);
    model.max_batch_rows = 4;
    model.max_batch_tokens = 64;
    config.models.push_back(model);
    config.limits = limits_;
    fakes_.encoder_options.width = 1000;  // so that four vectors as JSON are a large answer
    registry_ = std::make_unique<ModelRegistry>(
        config, [this](const LoadOptions& load) { return fakes_.Load(load); }, prometheus_,
        [this] {
          MutexLock lock(mutex_);
          changed_.NotifyAll();
        });
    registry_->StartLoading();
    MutexLock lock(mutex_);
    while (!registry_->load_result().has_value()) changed_.Wait(mutex_);
    EXPECT_TRUE(registry_->load_result()->ok());
    states_ = OpenStates(StatesConfig(), metrics_.states);
    environment_ = EnvironmentWith(ledger_, limits_, *states_);
  }
  ~CallTest() override {
    fakes_.control->Resume();
    fakes_.encoder_control->Resume();
    EXPECT_EQ(ledger_.used(), 0);
    EXPECT_EQ(ledger_.clients(), 0U);
    for (const std::string& violation : fakes_.control->violations()) ADD_FAILURE() << violation;
  }

  std::unique_ptr<InferenceEnvironment> EnvironmentWith(MemoryLedger& ledger,
                                                        const LimitsConfig& limits,
                                                        StateAccess& states) {
    return std::unique_ptr<InferenceEnvironment>(
        new InferenceEnvironment{{metrics_, ledger, refusal_lines_, limits},
                                 *registry_,
                                 decoders_,
                                 client_metrics_,
                                 states});
  }

  // A call and its carrier.
  struct Open {
    std::shared_ptr<ThreadCarrier> carrier;
    std::shared_ptr<Call> call;

    const CallEnd& Join() { return carrier->Join(*call); }
    template <typename Message>
    std::vector<Message> Messages() const {
      std::vector<Message> messages;
      for (const std::string& bytes : carrier->messages()) {
        EXPECT_TRUE(messages.emplace_back().ParseFromString(bytes));
      }
      return messages;
    }
  };
  template <typename E>
  Open Start(const google::protobuf::MessageLite& request, bool reads = true,
             TimePoint deadline = TimePoint::max()) {
    return StartIn<E>(*environment_, request, reads, deadline);
  }
  template <typename E>
  Open StartIn(InferenceEnvironment& environment, const google::protobuf::MessageLite& request,
               bool reads = true, TimePoint deadline = TimePoint::max()) {
    Open open = Make(environment, std::make_unique<E>(), reads);
    Begin(*open.call, request, deadline);
    return open;
  }
  // A call that has not begun.
  static Open Make(InferenceEnvironment& environment, std::unique_ptr<Exchange> exchange,
                   bool reads = true) {
    Open open;
    open.carrier = std::make_shared<ThreadCarrier>(reads);
    open.call = std::make_shared<Call>(environment, std::move(exchange), open.carrier);
    open.carrier->Start(open.call);
    return open;
  }
  void Begin(Call& call, const google::protobuf::MessageLite& request,
             TimePoint deadline = TimePoint::max()) {
    Caller caller;
    caller.client = client_;
    caller.deadline = deadline;
    call.Start(std::move(caller), absl::OkStatus(), std::make_unique<StringBytes>(request));
  }

  // Waits until no decode thread works on a call that has begun. The engine can take a step of a
  // request before the call knows that the engine has it (Outbox::Accepted).
  void WaitForDecoders() {
    const auto both = std::make_shared<std::latch>(2);  // the threads of a DecodePool
    for (int i = 0; i < 2; ++i) decoders_.Add(*client_, 1, [both] { both->arrive_and_wait(); });
    both->wait();
  }

  // Returns the sum of all counters with this name.
  double Counted(const std::string& name) const {
    double sum = 0;
    for (const prometheus::MetricFamily& family : prometheus_.Collect()) {
      if (family.name != name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) sum += metric.counter.value;
    }
    return sum;
  }

  static v1::GenerateRequest Prompt(const std::string& text, uint32_t tokens, uint32_t n = 1) {
    v1::GenerateRequest request;
    request.set_model("fake");
    request.set_text(text);
    request.mutable_sampling()->set_seed(7);
    request.mutable_stop()->set_max_tokens(tokens);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_n(n);
    return request;
  }
  static std::shared_ptr<const Client> Named(const std::string& name,
                                             std::vector<std::string> models = {}) {
    auto client = std::make_shared<Client>();
    client->name = name;
    client->models = std::move(models);
    return client;
  }

  LimitsConfig limits_;
  FakeModels fakes_;
  std::shared_ptr<const Client> client_ = Named("ada");
  Mutex mutex_;
  CondVar changed_;
  prometheus::Registry prometheus_;
  ServerMetrics metrics_{prometheus_, {.version = "test"}};
  ClientMetrics client_metrics_{prometheus_, {}};
  MemoryLedger ledger_{int64_t{64} << 20, int64_t{32} << 20, metrics_};
  RateLimit refusal_lines_{1};
  std::unique_ptr<StateAccess> states_;
  std::unique_ptr<ModelRegistry> registry_;
  DecodePool decoders_;
  std::unique_ptr<InferenceEnvironment> environment_;
};

}  // namespace aft::server
