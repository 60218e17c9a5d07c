#include "server/api/aft/model_service.h"

#include "base/status_macros.h"
#include "server/config/checks.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

v1::ModelState EncodeState(ModelState state) {
  switch (state) {
    case ModelState::kLoading:
      return v1::MODEL_STATE_LOADING;
    case ModelState::kReady:
      return v1::MODEL_STATE_READY;
    case ModelState::kDraining:
      return v1::MODEL_STATE_DRAINING;
    case ModelState::kFailed:
      return v1::MODEL_STATE_FAILED;
    case ModelState::kUnloaded:
      return v1::MODEL_STATE_UNLOADED;
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

void EncodeLoad(const EngineLoad& load, v1::ModelLoad& message) {
  message.set_requests_running(static_cast<uint32_t>(load.running));
  message.set_requests_waiting(static_cast<uint32_t>(load.waiting));
  if (load.slots > 0) message.set_utilization(static_cast<double>(load.running) / load.slots);
}

void EncodeChatFormat(const ChatFormat& format, v1::ChatFormat& message) {
  message.set_system_prefix(format.system_prefix);
  message.set_system_suffix(format.system_suffix);
  message.set_user_prefix(format.user_prefix);
  message.set_user_suffix(format.user_suffix);
  message.set_assistant_prefix(format.assistant_prefix);
  message.set_assistant_suffix(format.assistant_suffix);
  message.set_answer(format.answer);
  message.mutable_stop()->Add(format.stop.begin(), format.stop.end());
}

}  // namespace

v1::Model EncodeModel(const ModelStatus& status) {
  v1::Model model;
  model.set_name(status.name);
  model.set_version(status.version);
  model.set_state(EncodeState(status.state));
  model.set_error(status.error);
  model.set_slots(static_cast<uint32_t>(status.slots));
  model.set_fingerprint(status.fingerprint);
  for (const VersionStatus& version : status.versions) {
    v1::ModelVersion& added = *model.add_versions();
    added.set_version(version.version);
    added.set_state(EncodeState(version.state));
    added.set_error(version.error);
    added.set_fingerprint(version.fingerprint);
  }
  if (status.info.has_value()) {
    model.set_architecture(status.info->architecture);
    model.set_parameters(static_cast<uint64_t>(status.info->parameters));
    model.set_vocab_size(static_cast<uint32_t>(status.info->vocab_size));
    model.set_max_seq_len(static_cast<uint64_t>(status.info->max_seq_len));
    model.set_state_bytes(static_cast<uint64_t>(status.info->state_bytes));
    model.set_weight_bytes(static_cast<uint64_t>(status.info->weight_bytes));
    model.set_weight_format(status.info->weight_format);
    model.set_device(status.info->device);
    model.set_state_bytes_per_token(static_cast<uint64_t>(status.info->state_bytes_per_token));
    model.set_task(!status.encodes               ? v1::TASK_GENERATE
                   : status.info->labels.empty() ? v1::TASK_ENCODE
                                                 : v1::TASK_CLASSIFY);
    model.mutable_labels()->Add(status.info->labels.begin(), status.info->labels.end());
    model.set_vector_width(static_cast<uint32_t>(status.vector_width));
    EncodeLoad(status.load, *model.mutable_load());
    model.mutable_initial_states()->Add(status.initial_states.begin(), status.initial_states.end());
    if (status.chat.names_speakers()) EncodeChatFormat(status.chat, *model.mutable_chat_format());
  }
  return model;
}

grpc::ServerUnaryReactor* ModelService::List(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  const auto call = UnaryCall::Start(environment_, MethodName(Method::kListModels), *context,
                                     *request, *response);
  call->End(Method::kListModels, AnswerList(*call));
  return call.get();
}

grpc::ServerUnaryReactor* ModelService::Get(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  const auto call =
      UnaryCall::Start(environment_, MethodName(Method::kGetModel), *context, *request, *response);
  call->End(Method::kGetModel, AnswerGet(*call, *request));
  return call.get();
}

absl::Status ModelService::AnswerList(UnaryCall& call) const {
  AFT_RETURN_IF_ERROR(call.Admit());
  v1::ListResponse message;
  for (const ModelStatus& status : registry_.List(*call.client())) {
    *message.add_models() = EncodeModel(status);
  }
  return call.Answer(message);
}

absl::Status ModelService::AnswerGet(UnaryCall& call, const grpc::ByteBuffer& bytes) const {
  AFT_RETURN_IF_ERROR(call.Admit());
  constexpr size_t kOtherFields = 256;  // room for fields of newer clients
  AFT_RETURN_IF_ERROR(
      CheckLength("request", bytes.Length(), size_t{2} * kMaxModelNameBytes + kOtherFields));
  v1::GetRequest request;
  AFT_RETURN_IF_ERROR(ParseMessage(bytes, request));
  AFT_RETURN_IF_ERROR(CheckLength("name", request.name().size(), kMaxModelNameBytes));
  AFT_RETURN_IF_ERROR(CheckLength("version", request.version().size(), kMaxModelNameBytes));
  const auto status = registry_.Get(*call.client(), request.name(), request.version());
  if (!status.ok()) {
    return WithPath(WithPath(status.status(), "model", "name"), "model_version", "version");
  }
  v1::GetResponse message;
  *message.mutable_model() = EncodeModel(*status);
  return call.Answer(message);
}

}  // namespace aft::server
