#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "aft/v1/states.grpc.pb.h"
#include "client/lib/stream_checker.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "server/app/server.h"
#include "server/config/config.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_loader.h"

namespace aft::server {

// What a call is charged beside its messages and its work.
inline constexpr int kCall = 16 << 10;
inline constexpr char kMemoryUsed[] = "aft_memory_used_bytes";
// Tokens of a request that something else is to end.
inline constexpr uint32_t kEndless = 1'000'000;

// One model "fake" with 4 slots, on a port that the kernel chooses, without a metrics page.
ServerConfig TestConfig();
// The same with a metrics page.
ServerConfig TestConfigWithMetrics();

// TestConfigWithMetrics and an encoder "encoder", whose batches have at most 4 texts and 64 tokens.
// They run as soon as it is idle: a test that wants a full one holds the batch before it.
ServerConfig TestConfigWithEncoder();

ModelLoader FakeLoader(FakeModels models = {});

// A running server with a fake model, and stubs to it.
class TestServer {
 public:
  using Prepare = std::function<void(grpc::ClientContext&)>;

  // Ready on return.
  explicit TestServer(ServerConfig config = TestConfig(), FakeModelRunner::Options options = {},
                      FakeEncoderRunner::Options encoder_options = {});
  TestServer(ServerConfig config, const FakeModels& fakes);
  // Started; loads with `loader`.
  TestServer(ServerConfig config, ModelLoader loader, const FakeModels& fakes = {});
  // The fake model has seen no broken rule.
  ~TestServer();

  Server& server() { return *server_; }
  FakeModelControl& control() { return *fakes_.control; }
  FakeEncoderControl& encoder_control() { return *fakes_.encoder_control; }
  v1::InferenceService::Stub& inference() { return *inference_; }
  v1::ModelService::Stub& models() { return *models_; }
  v1::StateService::Stub& states() { return *states_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // A connection of its own.
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                                grpc::ChannelArguments arguments = {});

  // A connection of its own whose window is as small as HTTP/2 has it by default: its server
  // notices soon that nobody reads.
  static std::shared_ptr<grpc::Channel> ConnectWithASmallWindow(
      const std::string& address, grpc::ChannelArguments arguments = {});
  std::unique_ptr<v1::InferenceService::Stub> StubWithASmallWindow() const;

  // What health says of a service, and SERVICE_UNKNOWN where that is NOT_FOUND.
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service = "",
                                                              const Prepare& prepare = {});

  // Body of the metrics page. REQUIRES: TestConfigWithMetrics, here and below.
  std::string Metrics();
  // Sum of the samples on the metrics page that have that name and these labels, whatever others
  // they have: `aft_slots_used{model="fake"}`. 0 where there is none.
  double Metric(const std::string& name);
  // Returns when the metric has that value. The test fails when it has not after a minute.
  void WaitForMetric(const std::string& name, double value);

 private:
  void Start();

  const FakeModels fakes_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<v1::StateService::Stub> states_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// Says that a call is of that address, which a trusted proxy may say.
TestServer::Prepare From(const std::string& address);

// The name of that metric, for Metric and WaitForMetric.
std::string RequestsTotal(const std::string& code, const std::string& method,
                          const std::string& model = "fake");

// One stream of InferenceService, whose events are kept. The test fails when they break the
// protocol. Movable.
template <auto kMethod>
class EventStream;

template <typename Request, typename Response,
          std::unique_ptr<grpc::ClientReader<Response>> (v1::InferenceService::Stub::*kMethod)(
              grpc::ClientContext*, const Request&)>
class EventStream<kMethod> {
 public:
  using Prepare = std::function<void(grpc::ClientContext&)>;

  EventStream(v1::InferenceService::Stub& stub, const Request& request,
              const Prepare& prepare = {}) {
    if (prepare) prepare(*context_);
    if constexpr (requires { request.resume().token_ids(); }) {
      checker_ = client::StreamChecker(static_cast<uint32_t>(request.resume().token_ids_size()));
    } else if constexpr (requires { request.resume(); }) {
      checker_ = client::StreamChecker(request.resume().scores());
    }
    if constexpr (requires { request.context_tokens(); }) {
      checker_.ExpectContext(request.context_tokens());
    }
    if constexpr (requires { request.n(); }) {
      checker_.ExpectSequences(request.n());
    } else {
      checker_.ExpectSequences(static_cast<uint32_t>(request.texts_size()));
    }
    reader_ = (stub.*kMethod)(context_.get(), request);
  }
  virtual ~EventStream() = default;
  EventStream(EventStream&&) = default;

  // The next event; false at the end of the stream.
  bool Next() {
    Response event;
    if (!reader_->Read(&event)) return false;
    EXPECT_EQ(checker_.Take(event), "");
    EXPECT_NE(event.event_case(), Response::EVENT_NOT_SET);
    events.push_back(std::move(event));
    OnEvent(events.back());
    return true;
  }
  // Reads on until an event of that kind; false when the stream ends before.
  bool ReadUntil(typename Response::EventCase kind) {
    while (Next()) {
      if (event().event_case() == kind) return true;
    }
    return false;
  }
  // Reads to the end.
  grpc::Status Finish() {
    while (Next()) {
    }
    const grpc::Status status = reader_->Finish();
    EXPECT_TRUE(checker_.finished() || !status.ok());
    return status;
  }

  grpc::ClientContext& context() { return *context_; }
  const Response& event() const { return events.back(); }
  std::string InitialMetadata(const std::string& key) const {
    return Value(context_->GetServerInitialMetadata(), key);
  }
  std::string TrailingMetadata(const std::string& key) const {
    return Value(context_->GetServerTrailingMetadata(), key);
  }

  std::vector<Response> events;

 protected:
  virtual void OnEvent(const Response& /*event*/) {}

 private:
  static std::string Value(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata,
                           const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? "" : std::string(found->second.data(), found->second.size());
  }

  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReader<Response>> reader_;
  client::StreamChecker checker_;
};

using ScoreStream = EventStream<&v1::InferenceService::Stub::Score>;
using EncodeStream = EventStream<&v1::InferenceService::Stub::Encode>;

// Adds up what has been read.
class GenerateStream : public EventStream<&v1::InferenceService::Stub::Generate> {
 public:
  using EventStream::EventStream;

  v1::Started started;
  v1::Finished finished;
  std::vector<TokenId> tokens;
  std::string text;

 private:
  void OnEvent(const v1::GenerateResponse& event) override;
};

// Seeded, so that results can be predicted, and without an early end.
v1::GenerateRequest Request(const std::string& prompt, uint32_t max_tokens, uint64_t seed = 7);

// What that request generates when it runs alone, computed without a server.
std::vector<TokenId> Expected(const v1::GenerateRequest& request,
                              const FakeModelRunner::Options& options = {});

// "And then it serves again": a fresh request gives the right tokens.
void ExpectServes(TestServer& server);

}  // namespace aft::server
