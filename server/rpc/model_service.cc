#include "server/rpc/model_service.h"

#include "server/rpc/call_metadata.h"

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
  }
  return v1::MODEL_STATE_UNSPECIFIED;
}

}  // namespace

v1::Model EncodeModel(const ModelStatus& status) {
  v1::Model model;
  model.set_name(status.name);
  model.set_version(status.version);
  model.set_state(EncodeState(status.state));
  model.set_error(status.error);
  model.set_slots(static_cast<uint32_t>(status.slots));
  if (status.info.has_value()) {
    model.set_architecture(status.info->architecture);
    model.set_parameters(static_cast<uint64_t>(status.info->parameters));
    model.set_vocab_size(static_cast<uint32_t>(status.info->vocab_size));
    model.set_max_seq_len(static_cast<uint64_t>(status.info->max_seq_len));
    model.set_state_bytes(static_cast<uint64_t>(status.info->state_bytes));
    model.set_weight_bytes(static_cast<uint64_t>(status.info->weight_bytes));
    model.set_weight_format(status.info->weight_format);
    model.set_device(status.info->device);
  }
  return model;
}

grpc::ServerUnaryReactor* ModelService::List(grpc::CallbackServerContext* context,
                                             const v1::ListRequest* /*request*/,
                                             v1::ListResponse* response) {
  for (const ModelStatus& status : registry_.List()) {
    *response->add_models() = EncodeModel(status);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* ModelService::Get(grpc::CallbackServerContext* context,
                                            const v1::GetRequest* request,
                                            v1::GetResponse* response) {
  const absl::StatusOr<ModelStatus> status = registry_.Get(request->name());
  if (status.ok()) *response->mutable_model() = EncodeModel(*status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status.status()));
  return reactor;
}

}  // namespace aft::server
