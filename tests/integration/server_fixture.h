#ifndef AFT_TESTS_INTEGRATION_SERVER_FIXTURE_H_
#define AFT_TESTS_INTEGRATION_SERVER_FIXTURE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "server/app/server.h"
#include "server/config/config.h"
#include "server/registry/model_registry.h"
#include "tests/support/fake_encoder_runner.h"
#include "tests/support/fake_model_runner.h"

namespace aft::server {

// One model "fake" with 4 slots, on a port that the kernel chooses, without a metrics page: closing
// one takes civetweb 2 seconds.
ServerConfig TestConfig();
// The same with a metrics page.
ServerConfig TestConfigWithMetrics();

// TestConfig and an encoder "encoder", whose batches have at most 4 texts and 64 tokens. They run
// as soon as it is idle: a test that wants a full one holds the batch before it.
ServerConfig TestConfigWithEncoder();

// A loader of fakes under these controls: encoders for the path "encoder", else language models.
ModelLoader FakeLoader(std::shared_ptr<FakeModelControl> control,
                       FakeModelRunner::Options options = {},
                       std::shared_ptr<FakeEncoderControl> encoder_control = nullptr,
                       FakeEncoderRunner::Options encoder_options = {});

// A running server with a fake model, and stubs to it.
class TestServer {
 public:
  // Ready on return.
  explicit TestServer(ServerConfig config = TestConfig(), FakeModelRunner::Options options = {},
                      FakeEncoderRunner::Options encoder_options = {});
  // Started; loads with `loader`.
  TestServer(ServerConfig config, ModelLoader loader);
  // The fake model has seen no broken rule.
  ~TestServer();

  Server& server() { return *server_; }
  FakeModelControl& control() { return *control_; }
  FakeEncoderControl& encoder_control() { return *encoder_control_; }
  v1::InferenceService::Stub& inference() { return *inference_; }
  v1::ModelService::Stub& models() { return *models_; }
  grpc::health::v1::Health::Stub& health() { return *health_; }

  // A connection of its own.
  static std::shared_ptr<grpc::Channel> Connect(const std::string& address,
                                                grpc::ChannelArguments arguments = {});

  // Body of the metrics page. REQUIRES: TestConfigWithMetrics, here and below.
  std::string Metrics();
  // Value of one line of the metrics page, e.g. `aft_slots_used{model="fake"}`; 0 if absent.
  double Metric(const std::string& name);
  // Returns when the metric has that value. The test fails when it has not after a minute.
  void WaitForMetric(const std::string& name, double value);

 private:
  void Start();

  const std::shared_ptr<FakeModelControl> control_;
  const std::shared_ptr<FakeEncoderControl> encoder_control_;
  std::unique_ptr<Server> server_;
  std::unique_ptr<v1::InferenceService::Stub> inference_;
  std::unique_ptr<v1::ModelService::Stub> models_;
  std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

// One Generate stream.
class GenerateStream {
 public:
  GenerateStream(v1::InferenceService::Stub& stub, const v1::GenerateRequest& request,
                 const std::function<void(grpc::ClientContext&)>& prepare = {});

  // The next event; false at the end of the stream.
  bool Next();
  // Reads on until an event of that kind; false when the stream ends before.
  bool ReadUntil(v1::GenerateResponse::EventCase kind);
  // Reads to the end.
  grpc::Status Finish();

  grpc::ClientContext& context() { return context_; }
  const v1::GenerateResponse& event() const { return event_; }

  // What has been read.
  v1::Started started;
  v1::Finished finished;
  std::vector<TokenId> tokens;
  std::string text;
  int started_count = 0;
  int finished_count = 0;
  bool contiguous = true;  // no gap between deltas

  std::string InitialMetadata(const std::string& key) const;
  std::string TrailingMetadata(const std::string& key) const;

 private:
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
  v1::GenerateResponse event_;
};

// One Score or Encode stream, whose events are kept. Movable.
template <typename Response>
class EventStream {
 public:
  using Prepare = std::function<void(grpc::ClientContext&)>;

  // `rpc(context)` starts the call.
  template <typename Rpc>
  explicit EventStream(const Rpc& rpc, const Prepare& prepare = {}) {
    if (prepare) prepare(*context_);
    reader_ = rpc(context_.get());
  }

  // The next event; false at the end of the stream.
  bool Next() {
    if (!reader_->Read(&event_)) return false;
    events.push_back(event_);
    return true;
  }
  // Reads to the end.
  grpc::Status Finish() {
    while (Next()) {
    }
    return reader_->Finish();
  }

  grpc::ClientContext& context() { return *context_; }

  std::vector<Response> events;

 private:
  std::unique_ptr<grpc::ClientContext> context_ = std::make_unique<grpc::ClientContext>();
  std::unique_ptr<grpc::ClientReader<Response>> reader_;
  Response event_;
};

using ScoreStream = EventStream<v1::ScoreResponse>;
using EncodeStream = EventStream<v1::EncodeResponse>;

ScoreStream StartScore(v1::InferenceService::Stub& stub, const v1::ScoreRequest& request,
                       const ScoreStream::Prepare& prepare = {});
EncodeStream StartEncode(v1::InferenceService::Stub& stub, const v1::EncodeRequest& request,
                         const EncodeStream::Prepare& prepare = {});

// Seeded, so that results can be predicted, and without an early end.
v1::GenerateRequest Request(const std::string& prompt, uint32_t max_tokens, uint64_t seed = 7);

// What that request generates when it runs alone, computed without a server.
std::vector<TokenId> Expected(const v1::GenerateRequest& request,
                              const FakeModelRunner::Options& options = {});

// "And then it serves again": a fresh request gives the right tokens.
void ExpectServes(TestServer& server);

}  // namespace aft::server

#endif  // AFT_TESTS_INTEGRATION_SERVER_FIXTURE_H_
