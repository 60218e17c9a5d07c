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
#include "tests/support/temp_files.h"

namespace aft::server {

// The bytes that a call is charged in addition to its messages and its work.
inline constexpr int kCall = 16 << 10;
inline constexpr char kMemoryUsed[] = "aft_memory_used_bytes";
// A number of tokens that a request does not reach, because something else ends it.
inline constexpr uint32_t kEndless = 1'000'000;

// One model "fake" with 4 slots, on a port that the kernel chooses, without a metrics page.
ServerConfig TestConfig();
// TestConfig with a metrics page.
ServerConfig TestConfigWithMetrics();

// TestConfigWithMetrics and an encoder "encoder", whose batches have at most 4 texts and 64 tokens.
// A batch starts as soon as the encoder is idle. A test that needs a full batch holds the one
// before it.
ServerConfig TestConfigWithEncoder();

// Gives a server's states the key of this folder, which is the same for all servers.
void UseStateKey(const TempFolder& folder, ServerConfig& config);
// Also lets the server keep its states in a folder within `folder`.
void UseStateFolder(const TempFolder& folder, ServerConfig& config);

ModelLoader FakeLoader(FakeModels models = {});

// A running server with a fake model, and stubs to it.
class TestServer {
 public:
  using Prepare = std::function<void(grpc::ClientContext&)>;

  // The server is ready on return.
  explicit TestServer(ServerConfig config = TestConfig(), FakeModelRunner::Options options = {},
                      FakeEncoderRunner::Options encoder_options = {});
  TestServer(ServerConfig config, const FakeModels& fakes);
  // Starts the server, which loads its models with `loader`, but does not wait until it is ready.
  TestServer(ServerConfig config, ModelLoader loader, const FakeModels& fakes = {});
  // Fails the test if the server broke a rule of the fake model.
  ~TestServer();

  Server& server() { return *server_; }
  FakeModelControl& control() { return *fakes_.control; }
  FakeEncoderControl& encoder_control() { return *fakes_.encoder_control; }
  v1::InferenceService::Stub& inference() { return *inference_; }
  v1::ModelService::Stub& models() { return *models_; }
  v1::StateService::Stub& states() { return *states_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // Opens a new connection.
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                                grpc::ChannelArguments arguments = {});

  // Opens a new connection with HTTP/2's small default window, so that its server soon notices when
  // the client does not read.
  static std::shared_ptr<grpc::Channel> ConnectWithASmallWindow(
      const std::string& address, grpc::ChannelArguments arguments = {});
  std::unique_ptr<v1::InferenceService::Stub> StubWithASmallWindow() const;

  // The service's status in the health service, or SERVICE_UNKNOWN if the answer is NOT_FOUND.
  grpc::health::v1::HealthCheckResponse::ServingStatus Health(const std::string& service = "",
                                                              const Prepare& prepare = {});

  // The body of the metrics page. REQUIRES: TestConfigWithMetrics, here and below.
  std::string Metrics();
  // The sum of the samples on the metrics page that have this name and at least these labels, such
  // as `aft_slots_used{model="fake"}`. It is 0 if there is no such sample.
  double Metric(const std::string& name);
  // Returns when the metric has this value. The test fails if that takes more than a minute.
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

// A call of Watch in the health service. It can be moved.
class HealthWatch {
 public:
  using Response = grpc::health::v1::HealthCheckResponse;
  // Next returns this at the end of the stream.
  static constexpr auto kEnd = Response::UNKNOWN;

  explicit HealthWatch(TestServer& server, const std::string& service = "",
                       const TestServer::Prepare& prepare = {});

  // Returns the next status.
  Response::ServingStatus Next();
  void Cancel() { context_->TryCancel(); }
  // REQUIRES: the call has ended or was cancelled.
  grpc::Status Finish() { return reader_->Finish(); }

 private:
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReader<Response>> reader_;
};

// Makes a call come from `address`, as a trusted proxy may claim.
TestServer::Prepare From(const std::string& address);

// The name and labels of a sample of aft_requests_total, for Metric and WaitForMetric.
std::string RequestsTotal(const std::string& code, const std::string& method,
                          const std::string& model = "fake");

// The trailer grpc-retry-pushback-ms of a call that has ended; "" if it has none.
std::string RetryHintOf(const grpc::ClientContext& context);

// One stream of InferenceService. It keeps all events, and the test fails if they break the
// protocol. It can be moved.
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
  EventStream(EventStream&&) noexcept = default;

  // Reads the next event. Returns false at the end of the stream.
  bool Next() {
    Response event;
    if (!reader_->Read(&event)) return false;
    EXPECT_EQ(checker_.Take(event), "");
    EXPECT_NE(event.event_case(), Response::EVENT_NOT_SET);
    events.push_back(std::move(event));
    OnEvent(events.back());
    return true;
  }
  // Reads up to the next event of this kind. Returns false if the stream ends before.
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

// All numbers that a stream of Encode has brought, in order.
std::vector<float> ValuesOf(const EncodeStream& stream);

// Collects the tokens and the text of all events.
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

// A request with a seed, so that its result can be predicted, that does not end early.
v1::GenerateRequest Request(const std::string& prompt, uint32_t max_tokens, uint64_t seed = 7);

// The tokens that the request generates when it runs alone, computed without a server.
std::vector<TokenId> Expected(const v1::GenerateRequest& request,
                              const FakeModelRunner::Options& options = {});

// Runs a request to its end, which must be OK.
GenerateStream RunToEnd(TestServer& server, const v1::GenerateRequest& request);

// Checks that the server still serves: a new request must get the right tokens.
void ExpectServes(TestServer& server);

}  // namespace aft::server
