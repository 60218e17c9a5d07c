#include "tests/integration/server_fixture.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/substitute.h"
#include "base/check.h"
#include "server/observability/metrics_page.h"
#include "tests/support/fake_tokenizer.h"
#include "tests/support/tcp.h"

namespace aft::server {
ServerConfig TestConfig() {
  ServerConfig config;
  config.listen_address = "127.0.0.1:0";
  config.metrics_address = "";
  config.drain.lame_duck = std::chrono::milliseconds(0);
  ModelConfig model;
  model.name = "fake";
  model.checkpoint_dir = "nowhere";
  model.slots = 4;
  model.max_step_tokens = 64;
  config.models.push_back(model);
  return config;
}

ServerConfig TestConfigWithMetrics() {
  ServerConfig config = TestConfig();
  config.metrics_address = "127.0.0.1:0";
  return config;
}

ServerConfig TestConfigWithEncoder() {
  ServerConfig config = TestConfigWithMetrics();
  ModelConfig model;
  model.name = "encoder";
  model.checkpoint_dir = "encoder";
  model.max_batch_delay = std::chrono::microseconds(0);
  model.max_batch_rows = 4;
  model.max_batch_tokens = 64;
  config.models.push_back(model);
  return config;
}

void UseStateKey(const TempFolder& folder, ServerConfig& config) {
  WriteBytes(folder.File("key"), std::string(32, 'k'));
  config.states.key_files = {folder.File("key")};
}

void UseStateFolder(const TempFolder& folder, ServerConfig& config) {
  UseStateKey(folder, config);
  config.states.folder = folder.File("states");
  std::filesystem::create_directory(config.states.folder);
}

ModelLoader FakeLoader(FakeModels models) {
  return [models = std::move(models)](const LoadOptions& load) {
    return absl::StatusOr<LoadedModel>(models.Load(load));
  };
}

TestServer::TestServer(ServerConfig config, FakeModelRunner::Options options,
                       FakeEncoderRunner::Options encoder_options)
    : TestServer(std::move(config),
                 FakeModels{.options = std::move(options), .encoder_options = encoder_options}) {}

TestServer::TestServer(ServerConfig config, const FakeModels& fakes)
    : TestServer(std::move(config), FakeLoader(fakes), fakes) {
  fakes_.control->DropInputs();
  AFT_CHECK(server_->WaitReady().ok());
}

TestServer::TestServer(ServerConfig config, ModelLoader loader, const FakeModels& fakes)
    : fakes_(fakes) {
  auto server = Server::Create(std::move(config), std::move(loader), {.version = "test"});
  AFT_CHECK(server.ok());
  server_ = *std::move(server);
  Start();
}

void TestServer::Start() {
  const absl::Status status = server_->Start();
  EXPECT_TRUE(status.ok()) << status;
  const auto channel = Connect(server_->address());
  inference_ = v1::InferenceService::NewStub(channel);
  states_ = v1::StateService::NewStub(channel);
  models_ = v1::ModelService::NewStub(channel);
  health_ = grpc::health::v1::Health::NewStub(channel);
}

TestServer::~TestServer() {
  fakes_.control->Resume();  // an engine that the test still holds could not stop
  fakes_.encoder_control->Resume();
  server_.reset();
  for (const std::string& violation : fakes_.control->violations()) ADD_FAILURE() << violation;
}

std::shared_ptr<grpc::Channel> TestServer::Connect(const std::string& address,
                                                   grpc::ChannelArguments arguments) {
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

std::shared_ptr<grpc::Channel> TestServer::ConnectWithASmallWindow(
    const std::string& address, grpc::ChannelArguments arguments) {
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  return Connect(address, std::move(arguments));
}

std::unique_ptr<v1::InferenceService::Stub> TestServer::StubWithASmallWindow() const {
  return v1::InferenceService::NewStub(ConnectWithASmallWindow(server_->address()));
}

grpc::health::v1::HealthCheckResponse::ServingStatus TestServer::Health(const std::string& service,
                                                                        const Prepare& prepare) {
  grpc::ClientContext context;
  if (prepare) prepare(context);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const grpc::Status status = health_->Check(&context, request, &response);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) {
    EXPECT_EQ(status.error_message(), "no service is called \"" + service + "\"");
    return grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN;
  }
  EXPECT_TRUE(status.ok()) << service << ": " << status.error_message();
  // Check reports an unknown service as an error; only Watch answers with this value.
  EXPECT_NE(response.status(), grpc::health::v1::HealthCheckResponse::SERVICE_UNKNOWN) << service;
  return response.status();
}

std::string TestServer::Metrics() { return HttpGet(server_->metrics_address(), "/metrics"); }

double TestServer::Metric(const std::string& name) {
  const auto parts = [](absl::string_view sample) {  // a sample's name and its labels as written
    std::vector<absl::string_view> found = absl::StrSplit(sample, absl::ByAnyChar("{}"));
    std::vector<absl::string_view> labels;
    if (found.size() > 1) labels = absl::StrSplit(found[1], ',');
    return std::pair(found.front(), std::move(labels));
  };
  const auto [wanted, labels] = parts(name);
  double sum = 0;
  MetricFamilies families = server_->Metrics();
  std::erase_if(families,
                [&](const auto& family) { return !absl::StartsWith(wanted, family.name); });
  for (const absl::string_view line : absl::StrSplit(MetricsText(families), '\n')) {
    if (!absl::StartsWith(line, wanted)) continue;
    const size_t space = line.rfind(' ');
    const auto [found, has] = parts(line.substr(0, space));
    const bool matches =
        found == wanted && std::all_of(labels.begin(), labels.end(), [&has](const auto& label) {
          return std::find(has.begin(), has.end(), label) != has.end();
        });
    double value = 0;
    if (matches && absl::SimpleAtod(line.substr(space), &value)) sum += value;
  }
  return sum;
}

void TestServer::WaitForMetric(const std::string& name, double value) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  for (double now; (now = Metric(name)) != value; std::this_thread::yield()) {
    if (std::chrono::steady_clock::now() < limit) continue;
    ADD_FAILURE() << name << " is " << now << " and not " << value;
    return;
  }
}

std::vector<float> ValuesOf(const EncodeStream& stream) {
  std::vector<float> values;
  for (const v1::EncodeResponse& event : stream.events) {
    values.insert(values.end(), event.vectors().values().begin(), event.vectors().values().end());
  }
  return values;
}

void GenerateStream::OnEvent(const v1::GenerateResponse& event) {
  if (event.has_started()) started = event.started();
  if (event.has_finished()) finished = event.finished();
  tokens.insert(tokens.end(), event.delta().token_ids().begin(), event.delta().token_ids().end());
  text += event.delta().text();
}

HealthWatch::HealthWatch(TestServer& server, const std::string& service,
                         const TestServer::Prepare& prepare) {
  if (prepare) prepare(*context_);
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  reader_ = server.health().Watch(context_.get(), request);
}

HealthWatch::Response::ServingStatus HealthWatch::Next() {
  Response response;
  return reader_->Read(&response) ? response.status() : kEnd;
}

TestServer::Prepare From(const std::string& address) {
  return
      [address](grpc::ClientContext& context) { context.AddMetadata("x-forwarded-for", address); };
}

std::string RetryHintOf(const grpc::ClientContext& context) {
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto found = trailers.find("grpc-retry-pushback-ms");
  return found == trailers.end() ? "" : std::string(found->second.data(), found->second.size());
}

std::string RequestsTotal(const std::string& code, const std::string& method,
                          const std::string& model) {
  return absl::Substitute(R"(aft_requests_total{code="$0",method="$1",model="$2"})", code, method,
                          model);
}

v1::GenerateRequest Request(const std::string& prompt, uint32_t max_tokens, uint64_t seed) {
  v1::GenerateRequest request;
  request.set_model("fake");
  request.set_text(prompt);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_stop()->set_max_tokens(max_tokens);
  request.mutable_stop()->set_ignore_eos(true);
  return request;
}

std::vector<TokenId> Expected(const v1::GenerateRequest& request,
                              const FakeModelRunner::Options& options) {
  SamplingParams params;
  params.seed = request.sampling().seed();
  return FakeModelRunner::Generate(options, *FakeTokenizer().Encode(request.text()), params,
                                   request.stop().max_tokens());
}

GenerateStream RunToEnd(TestServer& server, const v1::GenerateRequest& request) {
  GenerateStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  return stream;
}

void ExpectServes(TestServer& server) {
  const v1::GenerateRequest request = Request("and then it serves again", 20);
  GenerateStream stream(server.inference(), request);
  const grpc::Status status = stream.Finish();
  EXPECT_TRUE(status.ok()) << status.error_code() << " " << status.error_message();
  EXPECT_EQ(stream.tokens, Expected(request));
}

}  // namespace aft::server
