#include "server/api/oip/oip_service.h"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/api/oip/model_tensors.h"
#include "server/config/checks.h"
#include "server/observability/log.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server::oip {
namespace {

using grpc::health::v1::HealthCheckResponse;

constexpr char kServerName[] = "aft-serve";

// The limit of a request without tensors: names, and fields of newer clients.
constexpr size_t kMaxRequestBytes = 1024;

absl::Status NoRepositoryNames() {
  return absl::UnimplementedError("repository_name: repositories have no names");
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
    case ModelState::kUnloaded:
      break;
  }
  return "UNAVAILABLE";
}

constexpr char kFileParameter[] = "file:";  // what tritonclient writes before the path of an upload

// Checks RepositoryModelLoad and RepositoryModelUnload.
template <typename Request>
absl::Status CheckOrder(const Request& request) {
  if (!request.repository_name().empty()) return NoRepositoryNames();
  AFT_RETURN_IF_ERROR(CheckName("model_name", request.model_name()));
  constexpr bool kLoads = std::is_same_v<Request, inference::RepositoryModelLoadRequest>;
  for (const auto& [name, value] : request.parameters()) {
    const std::string path =
        absl::StrCat("parameters[\"", name.substr(0, kMaxModelNameBytes), "\"]");
    if (kLoads && (name == "config" || absl::StartsWith(name, kFileParameter))) {
      return BadField(path,
                      "models are loaded from the server's own folders, by its own config: "
                      "nothing can be uploaded");
    }
    if (kLoads || name != "unload_dependents") return BadField(path, "is not known");
  }
  return absl::OkStatus();
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* OipService::Answer(
    Method method, Context& context, const Bytes& request, Bytes& response,
    absl::FunctionRef<absl::Status(const Client&, const Request&, Response&)> answer) {
  const auto call = UnaryCall::Start(transport_, MethodName(method), context, request, response);
  absl::Status status = call->Admit();
  if (status.ok()) status = CheckLength("request", request.Length(), kMaxRequestBytes);
  Request parsed;
  if (status.ok()) status = ParseMessage(request, parsed);
  Response message;
  if (status.ok()) {
    status = answer(*call->client(), parsed, message);
    status = WithPath(WithPath(status, "model", "name"), "model_version", "version");
  }
  if (status.ok()) status = call->Answer(message);
  call->End(method, status);
  return call.get();
}

absl::StatusOr<std::shared_ptr<const ServedModel>> OipService::Find(
    const Client& client, const std::string& name, const std::string& version) const {
  AFT_RETURN_IF_ERROR(CheckNames(name, version));
  return registry_.Look(client, name, version);
}

grpc::ServerUnaryReactor* OipService::ServerLive(Context* context, const Bytes* request,
                                                 Bytes* response) {
  inference::ServerLiveResponse message;
  message.set_live(health_.Find("liveness") == HealthCheckResponse::SERVING);
  return Tell(Method::kServerLive, *context, *request, *response, message);
}

grpc::ServerUnaryReactor* OipService::ServerReady(Context* context, const Bytes* request,
                                                  Bytes* response) {
  inference::ServerReadyResponse message;
  message.set_ready(health_.Find("") == HealthCheckResponse::SERVING);
  return Tell(Method::kServerReady, *context, *request, *response, message);
}

grpc::ServerUnaryReactor* OipService::Tell(Method method, Context& context, const Bytes& request,
                                           Bytes& response,
                                           const google::protobuf::MessageLite& message) {
  const auto call = UnaryCall::Start(transport_, MethodName(method), context, request, response);
  call->End(method, call->Answer(message));
  return call.get();
}

// A model that is missing, or that this client may not use, is not ready.
grpc::ServerUnaryReactor* OipService::ModelReady(Context* context, const Bytes* request,
                                                 Bytes* response) {
  return Answer<inference::ModelReadyRequest, inference::ModelReadyResponse>(
      Method::kModelReady, *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_RETURN_IF_ERROR(CheckNames(asked.name(), asked.version()));
        const auto model = registry_.Get(client, asked.name(), asked.version());
        message.set_ready(model.ok() && model->state == ModelState::kReady);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OipService::ServerMetadata(Context* context, const Bytes* request,
                                                     Bytes* response) {
  return Answer<inference::ServerMetadataRequest, inference::ServerMetadataResponse>(
      Method::kServerMetadata, *context, *request, *response,
      [this](const Client&, const auto&, auto& message) {
        message.set_name(kServerName);
        message.set_version(transport_.metrics.version);
        for (const char* const extension :
             {"classification", "model_configuration", "model_repository", "parameters",
              "schedule_policy", "statistics"}) {
          message.add_extensions(extension);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OipService::ModelMetadata(Context* context, const Bytes* request,
                                                    Bytes* response) {
  return Answer<inference::ModelMetadataRequest, inference::ModelMetadataResponse>(
      Method::kModelMetadata, *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_ASSIGN_OR_RETURN(const auto model, Find(client, asked.name(), asked.version()));
        message = DescribeModel(*model);
        message.clear_versions();
        AFT_ASSIGN_OR_RETURN(const ModelStatus status, registry_.Get(client, asked.name()));
        for (const VersionStatus& version : status.versions) {
          if (version.state == ModelState::kReady) message.add_versions(version.version);
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OipService::ModelConfig(Context* context, const Bytes* request,
                                                  Bytes* response) {
  return Answer<inference::ModelConfigRequest, inference::ModelConfigResponse>(
      Method::kModelConfig, *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_ASSIGN_OR_RETURN(const auto model, Find(client, asked.name(), asked.version()));
        *message.mutable_config() = ConfigOf(*model);
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OipService::ModelStatistics(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Answer<inference::ModelStatisticsRequest, inference::ModelStatisticsResponse>(
      Method::kModelStatistics, *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        AFT_RETURN_IF_ERROR(CheckNames(asked.name(), asked.version()));
        std::vector<ModelStatus> models;
        if (asked.name().empty()) {  // all
          models = registry_.List(client);
        } else {
          AFT_ASSIGN_OR_RETURN(const ModelStatus model,
                               registry_.Get(client, asked.name(), asked.version()));
          models.push_back(model);
        }
        for (const ModelStatus& model : models) {
          for (const VersionStatus& version : model.versions) {
            if (!asked.version().empty() && version.version != asked.version()) continue;
            statistics_.Describe(model.name, version, *message.add_model_stats());
          }
        }
        return absl::OkStatus();
      });
}

grpc::ServerUnaryReactor* OipService::RepositoryIndex(Context* context, const Bytes* request,
                                                      Bytes* response) {
  return Answer<inference::RepositoryIndexRequest, inference::RepositoryIndexResponse>(
      Method::kRepositoryIndex, *context, *request, *response,
      [this](const Client& client, const auto& asked, auto& message) -> absl::Status {
        if (!asked.repository_name().empty()) return NoRepositoryNames();
        for (const ModelStatus& model : registry_.List(client)) {
          for (const VersionStatus& version : model.versions) {
            if (asked.ready() && version.state != ModelState::kReady) continue;
            auto& index = *message.add_models();
            index.set_name(model.name);
            index.set_version(version.version);
            index.set_state(StateName(version.state));
            const bool unloaded = version.state == ModelState::kUnloaded;
            index.set_reason(unloaded ? "unloaded" : version.error);
          }
        }
        return absl::OkStatus();
      });
}

absl::Status OipService::CheckControl(const Client& client) const {
  const std::string control = registry_.control();
  if (control == "anyone" || (control == "admin" && client.admin)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      control == "admin"
          ? absl::StrCat("client \"", client.name, "\" is no admin in security.clients_file")
          : "models are loaded and unloaded when the server starts or gets SIGHUP: its "
            "repository.control is \"none\"");
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* OipService::Order(Method method, Context& context, const Bytes& bytes,
                                            Bytes& response, Action action, const char* event) {
  const auto call = UnaryCall::Start(transport_, MethodName(method), context, bytes, response);
  absl::Status status = call->Admit();
  Request request;
  // A message that may be long is parsed only for clients that may load and unload models.
  if (status.ok()) status = CheckControl(*call->client());
  if (status.ok()) status = ParseMessage(bytes, request);
  if (status.ok()) status = CheckOrder(request);
  if (status.ok()) {
    status = call->Require([this, name = request.model_name()](const Client& client) {
      AFT_RETURN_IF_ERROR(CheckControl(client));
      return ModelTable::CheckMayUse(client, name);
    });
  }
  // A name that no model can have is not written to the log.
  const bool named = CheckName("model_name", request.model_name()).ok();
  const auto whose = call->client() != nullptr ? call->client() : AnonymousClient();
  const auto end = [=, this, model = named ? request.model_name() : ""](absl::Status outcome) {
    const TraceContext& trace = call->ids().trace;
    if (outcome.ok()) outcome = call->Answer(Response());
    if (status.ok() || transport_.LogsRefusal()) {
      log::Info(event, {{"peer", call->context().peer()},
                        {"client", whose->name},
                        {"model", model},
                        {"code", absl::StatusCodeToString(outcome.code())},
                        {"reason", outcome.message()},
                        {"trace_id", trace.trace_id},
                        {"span_id", trace.span_id},
                        {"parent_id", trace.parent_id}});
    }
    transport_.Report(method, call->arrival(), outcome.code());
    SendTrace(call->context(), trace, outcome.ok() ? Metadata::kInitial : Metadata::kTrailing);
    const std::string told = registry_.ToldTo(*whose, outcome.message());
    call->Close(ToOperatorStatus(absl::Status(outcome.code(), told)));  // as the index has it
  };
  if (!status.ok()) {
    end(status);
  } else if (call->Wait(end)) {
    (registry_.*action)(
        request.model_name(),
        [call](const absl::Status& outcome) {
          if (const UnaryCall::Ending finish = call->TakeEnd()) finish(outcome);
        },
        [call] {
          // From here on, the error is that of the load. A client that repeated the call because of
          // it would make the server read the weights again and again.
          call->NeverRetry();
          return call->waiting();
        });
  }
  return call.get();
}

grpc::ServerUnaryReactor* OipService::RepositoryModelLoad(Context* context, const Bytes* request,
                                                          Bytes* response) {
  return Order<inference::RepositoryModelLoadRequest, inference::RepositoryModelLoadResponse>(
      Method::kRepositoryModelLoad, *context, *request, *response, &ModelRegistry::Load,
      "repository.load");
}

grpc::ServerUnaryReactor* OipService::RepositoryModelUnload(Context* context, const Bytes* request,
                                                            Bytes* response) {
  return Order<inference::RepositoryModelUnloadRequest, inference::RepositoryModelUnloadResponse>(
      Method::kRepositoryModelUnload, *context, *request, *response, &ModelRegistry::Unload,
      "repository.unload");
}

}  // namespace aft::server::oip
