#include "server/rpc/kserve/kserve_service.h"

#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/kserve/model_tensors.h"
#include "server/rpc/message_bytes.h"

namespace aft::server::kserve {
namespace {

using grpc::health::v1::HealthCheckResponse;

constexpr char kServerName[] = "aft-serve";

// Of a request without tensors: names, and fields of newer clients.
constexpr size_t kMaxRequestBytes = 1024;

template <typename Message>
grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext& context, const absl::Status& status,
                                 const Message& message, grpc::ByteBuffer& response) {
  if (status.ok()) SerializeMessage(message, response);
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

absl::Status CheckNames(const std::string& name, const std::string& version) {
  AFT_RETURN_IF_ERROR(CheckLength("name", name.size(), kMaxModelNameBytes));
  return CheckLength("version", version.size(), kMaxModelNameBytes);
}

const char* StateName(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return "LOADING";
    case ModelState::kReady:
      return "READY";
    case ModelState::kDraining:
    case ModelState::kFailed:
      break;
  }
  return "UNAVAILABLE";
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* KserveService::Answer(
    Context& context, const Bytes& request, Bytes& response,
    absl::FunctionRef<absl::Status(const Client&, const Request&, Response&)> answer) {
  Response message;
  const auto client = environment_.identity.Find(context);
  absl::Status status = client.status();
  if (status.ok()) status = CheckLength("request", request.Length(), kMaxRequestBytes);
  Request parsed;
  if (status.ok()) status = ParseMessage(request, parsed);
  if (status.ok()) status = answer(**client, parsed, message);
  return Finish(context, status, message, response);
}

absl::StatusOr<std::shared_ptr<const ServedModel>> KserveService::Find(
    const Client& client, const std::string& name, const std::string& version) const {
  AFT_RETURN_IF_ERROR(CheckNames(name, version));
  AFT_ASSIGN_OR_RETURN(auto model, environment_.registry.Acquire(name));
  AFT_RETURN_IF_ERROR(ClientIdentity::CheckModel(client, model->config.name));
  AFT_RETURN_IF_ERROR(CheckVersion(version, model->config.name, model->config.version));
  return model;
}

grpc::ServerUnaryReactor* KserveService::ServerLive(Context* context, const Bytes* /*request*/,
                                                    Bytes* response) {
  inference::ServerLiveResponse message;
  message.set_live(health_.Find("liveness") == HealthCheckResponse::SERVING);
  return Finish(*context, absl::OkStatus(), message, *response);
}

grpc::ServerUnaryReactor* KserveService::ServerReady(Context* context, const Bytes* /*request*/,
                                                     Bytes* response) {
  inference::ServerReadyResponse message;
  message.set_ready(health_.Find("") == HealthCheckResponse::SERVING);
  return Finish(*context, absl::OkStatus(), message, *response);
}

// A model that is not there, or not for this client, is not ready.
grpc::ServerUnaryReactor* KserveService::ModelReady(Context* context, const Bytes* request,
                                                    Bytes* response) {
  return Answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_RETURN_IF_ERROR(CheckNames(asked.name(), asked.version()));
        message.set_ready(Find(client, asked.name(), asked.version()).ok());
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::ServerMetadata(Context* context, const Bytes* request,
                                                        Bytes* response) {
  return Answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      *context, *request, *response, [this](const Client&, const auto&, auto& message) {
        message.set_name(kServerName);
        message.set_version(environment_.metrics.version);
        for (const char* const extension :
             {"model_configuration", "parameters", "schedule_policy", "statistics"}) {
          message.add_extensions(extension);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::ModelMetadata(Context* context, const Bytes* request,
                                                       Bytes* response) {
  return Answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
      *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_ASSIGN_OR_RETURN(const auto model, Find(client, asked.name(), asked.version()));
        message = DescribeModel(*model);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::ModelConfig(Context* context, const Bytes* request,
                                                     Bytes* response) {
  return Answer<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_ASSIGN_OR_RETURN(const auto model, Find(client, asked.name(), asked.version()));
        *message.mutable_config() = ConfigOf(*model);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::ModelStatistics(Context* context, const Bytes* request,
                                                         Bytes* response) {
  return Answer<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
      *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_RETURN_IF_ERROR(CheckNames(asked.name(), asked.version()));
        std::vector<ModelStatus> models;
        if (asked.name().empty()) {  // all
          models = environment_.registry.List();
        } else {
          AFT_ASSIGN_OR_RETURN(const ModelStatus model, environment_.registry.Get(asked.name()));
          AFT_RETURN_IF_ERROR(ClientIdentity::CheckModel(client, model.name));
          AFT_RETURN_IF_ERROR(CheckVersion(asked.version(), model.name, model.version));
          models.push_back(model);
        }
        for (const ModelStatus& model : models) {
          if (!ClientIdentity::CheckModel(client, model.name).ok()) continue;
          inference::ModelStatistics& statistics = *message.add_model_stats();
          statistics_.Describe(model.name, statistics);
          statistics.set_version(model.version);
          DescribeExecutions(*environment_.registry.FindMetrics(model.name), model.vector_width > 0,
                             statistics);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::RepositoryIndex(Context* context, const Bytes* request,
                                                         Bytes* response) {
  return Answer<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
      *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        if (!asked.repository_name().empty()) {
          return absl::UnimplementedError("repository_name: repositories have no names");
        }
        for (const ModelStatus& model : environment_.registry.List()) {
          if (asked.ready() && model.state != ModelState::kReady) continue;
          if (!ClientIdentity::CheckModel(client, model.name).ok()) continue;
          auto& index = *message.add_models();
          index.set_name(model.name);
          index.set_version(model.version);
          index.set_state(StateName(model.state));
          index.set_reason(model.error);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* KserveService::RefuseRepository(Context& context) {
  const auto client = environment_.identity.Find(context);
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(
      client.ok() ? absl::UnimplementedError(
                        "models are those of the server's config, loaded when it starts")
                  : client.status()));
  return reactor;
}

grpc::ServerUnaryReactor* KserveService::RepositoryModelLoad(Context* context,
                                                             const Bytes* /*request*/,
                                                             Bytes* /*response*/) {
  return RefuseRepository(*context);
}

grpc::ServerUnaryReactor* KserveService::RepositoryModelUnload(Context* context,
                                                               const Bytes* /*request*/,
                                                               Bytes* /*response*/) {
  return RefuseRepository(*context);
}

}  // namespace aft::server::kserve
