#include "client/lib/aft_client.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aft/v1/inference.grpc.pb.h"
#include "aft/v1/models.grpc.pb.h"
#include "base/status_macros.h"
#include "client/lib/address.h"
#include "client/lib/rpc_error.h"
#include "client/lib/stream_checker.h"
#include "grpc/health/v1/health.grpc.pb.h"

namespace aft::client {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// gRPC aborts the process on metadata that HTTP/2 cannot carry.
absl::Status CheckRequestId(absl::string_view id) {
  const bool printable =
      std::all_of(id.begin(), id.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (printable && id.size() <= 128) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the request id must be at most 128 printable ASCII characters without spaces");
}

grpc::ChannelArguments MakeChannelArgs(const ClientOptions& options) {
  grpc::ChannelArguments args = options.channel_args;
  const auto set_default = [&args](const char* key, int value) {
    const grpc_channel_args given = args.c_channel_args();
    const bool is_set =
        std::any_of(given.args, given.args + given.num_args,
                    [key](const grpc_arg& arg) { return absl::string_view(arg.key) == key; });
    if (!is_set) args.SetInt(key, value);
  };
  // Despite its name this bounds one connection attempt.
  set_default(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              static_cast<int>(std::clamp<int64_t>(options.connect_timeout.count(), 100, 600'000)));
  set_default(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  set_default(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5000);
  // A proxy from the environment cannot reach this machine's own loopback.
  if (IsLoopback(options.address)) set_default(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return args;
}

// Adds an event to what has come so far.
void Append(const v1::GenerateResponse& event, Clock::time_point start, GenerateResult& result) {
  if (event.has_started()) result.started = event.started();
  if (event.has_finished()) result.finished = event.finished();
  if (!event.has_delta()) return;
  const v1::Delta& delta = event.delta();
  if (result.token_ids.empty() && !delta.token_ids().empty()) {
    result.time_to_first_token = Clock::now() - start;
  }
  result.text += delta.text();
  result.token_ids.insert(result.token_ids.end(), delta.token_ids().begin(),
                          delta.token_ids().end());
}

void Append(const v1::ScoreResponse& event, Clock::time_point /*start*/, ScoreResult& result) {
  if (event.has_started()) result.started = event.started();
  if (event.has_finished()) result.finished = event.finished();
  const v1::ScoreChunk& chunk = event.chunk();
  result.token_ids.insert(result.token_ids.end(), chunk.token_ids().begin(),
                          chunk.token_ids().end());
  result.logprobs.insert(result.logprobs.end(), chunk.logprobs().begin(), chunk.logprobs().end());
}

void Append(const v1::EncodeResponse& event, Clock::time_point /*start*/, EncodeResult& result) {
  if (event.has_started()) result.started = event.started();
  if (event.has_finished()) result.finished = event.finished();
  const auto& values = event.vectors().values();
  result.values.insert(result.values.end(), values.begin(), values.end());
}

class GrpcClient final : public Client {
 public:
  explicit GrpcClient(ClientOptions options)
      : options_(std::move(options)),
        channel_(grpc::CreateCustomChannel(options_.address, grpc::InsecureChannelCredentials(),
                                           MakeChannelArgs(options_))),
        inference_(v1::InferenceService::NewStub(channel_)),
        models_(v1::ModelService::NewStub(channel_)),
        health_(grpc::health::v1::Health::NewStub(channel_)) {}

  absl::StatusOr<GenerateResult> Generate(const v1::GenerateRequest& request,
                                          const EventCallback& on_event,
                                          const CallOptions& call) override {
    return Stream<GenerateResult, v1::GenerateResponse>(
        call, on_event,
        [&](grpc::ClientContext* context) { return inference_->Generate(context, request); });
  }

  absl::StatusOr<ScoreResult> Score(const v1::ScoreRequest& request, const ScoreCallback& on_event,
                                    const CallOptions& call) override {
    return Stream<ScoreResult, v1::ScoreResponse>(
        call, on_event,
        [&](grpc::ClientContext* context) { return inference_->Score(context, request); });
  }

  absl::StatusOr<EncodeResult> Encode(const v1::EncodeRequest& request,
                                      const EncodeCallback& on_event,
                                      const CallOptions& call) override {
    return Stream<EncodeResult, v1::EncodeResponse>(
        call, on_event,
        [&](grpc::ClientContext* context) { return inference_->Encode(context, request); });
  }

  absl::StatusOr<v1::ListResponse> ListModels(const CallOptions& call) override {
    return Unary<v1::ListResponse>(call, [this](grpc::ClientContext* context, auto* response) {
      return models_->List(context, v1::ListRequest(), response);
    });
  }

  absl::StatusOr<v1::Model> GetModel(absl::string_view name, const CallOptions& call) override {
    v1::GetRequest request;
    request.set_name(std::string(name));
    AFT_ASSIGN_OR_RETURN(v1::GetResponse response,
                         Unary<v1::GetResponse>(call, [&](grpc::ClientContext* context, auto* out) {
                           return models_->Get(context, request, out);
                         }));
    return std::move(*response.mutable_model());
  }

  absl::StatusOr<HealthStatus> Health(absl::string_view service, const CallOptions& call) override {
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(std::string(service));
    AFT_ASSIGN_OR_RETURN(const auto response,
                         Unary<grpc::health::v1::HealthCheckResponse>(
                             call, [&](grpc::ClientContext* context, auto* out) {
                               return health_->Check(context, request, out);
                             }));
    return response.status();
  }

 private:
  absl::Status Prepare(const CallOptions& call, grpc::ClientContext& context,
                       CallFacts& facts) const {
    AFT_RETURN_IF_ERROR(CheckRequestId(call.request_id));
    if (!call.request_id.empty()) context.AddMetadata("x-request-id", call.request_id);
    facts.address = options_.address;
    facts.deadline = call.deadline.value_or(options_.deadline);
    if (facts.deadline.count() > 0) {
      context.set_deadline(std::chrono::system_clock::now() + facts.deadline);
    }
    return absl::OkStatus();
  }

  template <typename Result, typename Response, typename Rpc>
  absl::StatusOr<Result> Stream(const CallOptions& call,
                                const std::function<void(const Response&)>& on_event,
                                const Rpc& rpc) const {
    grpc::ClientContext context;
    CallFacts facts;
    AFT_RETURN_IF_ERROR(Prepare(call, context, facts));
    const CancelScope cancel_scope(call.cancel, context);
    const auto cancelled = [&call] { return call.cancel != nullptr && call.cancel->cancelled(); };

    const auto start = Clock::now();
    const auto reader = rpc(&context);
    Result result;
    StreamChecker checker;
    std::string broken;
    Response event;
    while (broken.empty() && reader->Read(&event)) {
      // What was on its way when the caller cancelled is not delivered any more.
      if (cancelled()) continue;
      broken = checker.Take(event);
      if (!broken.empty()) {
        context.TryCancel();
        break;
      }
      Append(event, start, result);
      if (on_event) on_event(event);
    }
    const grpc::Status status = reader->Finish();

    facts.cancelled = cancelled();
    facts.started = checker.started();
    facts.received_tokens = checker.received();
    if (!broken.empty()) return ProtocolError(broken, context, facts);
    if (!status.ok()) return RpcError(status, context, facts);
    if (!checker.finished()) {
      if (facts.cancelled) return RpcError({grpc::CANCELLED, ""}, context, facts);
      return ProtocolError("the stream ended without Finished", context, facts);
    }
    result.request_id = RequestId(context);
    result.duration = Clock::now() - start;
    return result;
  }

  template <typename Response, typename Rpc>
  absl::StatusOr<Response> Unary(const CallOptions& call, const Rpc& rpc) const {
    grpc::ClientContext context;
    CallFacts facts;
    AFT_RETURN_IF_ERROR(Prepare(call, context, facts));
    const CancelScope cancel_scope(call.cancel, context);
    Response response;
    const grpc::Status status = rpc(&context, &response);
    if (status.ok()) return response;
    facts.cancelled = call.cancel != nullptr && call.cancel->cancelled();
    return RpcError(status, context, facts);
  }

  const ClientOptions options_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::InferenceService::Stub> inference_;
  const std::unique_ptr<v1::ModelService::Stub> models_;
  const std::unique_ptr<grpc::health::v1::Health::Stub> health_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Client>> Client::Create(ClientOptions options) {
  AFT_RETURN_IF_ERROR(CheckAddress(options.address));
  return std::make_unique<GrpcClient>(std::move(options));
}

}  // namespace aft::client
