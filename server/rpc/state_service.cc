#include "server/rpc/state_service.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/message_bytes.h"

namespace aft::server {
template <typename Request, typename Response>
grpc::ServerUnaryReactor* StateService::Answer(const char* name, Action<Request, Response> action,
                                               grpc::CallbackServerContext& context,
                                               const grpc::ByteBuffer& bytes,
                                               grpc::ByteBuffer& response) {
  const auto arrival = std::chrono::steady_clock::now();
  const absl::StatusOr<std::string> own_id = TakeRequestId(context);
  const std::string id = own_id.ok() ? *own_id : NewRequestId();
  std::shared_ptr<const Client> client;
  const auto answer = [&]() -> absl::Status {
    AFT_RETURN_IF_ERROR(own_id.status());
    AFT_ASSIGN_OR_RETURN(client, environment_.identity.Find(context));
    AFT_RETURN_IF_ERROR(StateAccess::CheckRequestBytes(bytes.Length()));
    Request request;
    AFT_RETURN_IF_ERROR(ParseMessage(bytes, request));
    Response message;
    absl::Status status = std::mem_fn(action)(environment_.states, *client, request, message);
    if (status.ok()) SerializeMessage(message, response);
    return status;
  };
  const absl::Status status = answer();
  LogStateCall(context, id, client.get(), name, arrival, status);
  if (status.ok()) {
    context.AddInitialMetadata(kRequestIdKey, id);
  } else {
    context.AddTrailingMetadata(kRequestIdKey, id);
  }
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  reactor->Finish(ToGrpcStatus(status, id));
  return reactor;
}

grpc::ServerUnaryReactor* StateService::Get(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  return Answer("GetState", &StateAccess::Get, *context, *request, *response);
}

grpc::ServerUnaryReactor* StateService::List(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  return Answer("ListStates", &StateAccess::List, *context, *request, *response);
}

grpc::ServerUnaryReactor* StateService::Delete(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return Answer("DeleteState", &StateAccess::Delete, *context, *request, *response);
}

}  // namespace aft::server
