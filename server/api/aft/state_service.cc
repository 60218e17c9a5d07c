#include "server/api/aft/state_service.h"

#include <functional>

#include "base/status_macros.h"
#include "server/call/call_ids.h"
#include "server/call/call_report.h"
#include "server/transport/call_metadata.h"
#include "server/transport/message_bytes.h"

namespace aft::server {
namespace {

// Identifies the caller and parses the request.
template <typename Request>
absl::Status Begin(const grpc::ByteBuffer& bytes, UnaryCall& call, Request& request) {
  AFT_RETURN_IF_ERROR(call.ids_status());
  AFT_RETURN_IF_ERROR(call.Admit());
  AFT_RETURN_IF_ERROR(StateAccess::CheckRequestBytes(bytes.Length()));
  return ParseMessage(bytes, request);
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* StateService::Answer(Method method, Action<Request, Response> action,
                                               grpc::CallbackServerContext& context,
                                               const grpc::ByteBuffer& bytes,
                                               grpc::ByteBuffer& response) {
  const auto call = UnaryCall::Start(environment_, MethodName(method), context, bytes, response);
  Request request;
  const absl::Status begun = Begin(bytes, *call, request);
  const auto end = [this, method, call](const absl::Status& status) {
    const CallIds& ids = call->ids();
    const Caller caller{.ids = ids, .peer = call->context().peer(), .client = call->client()};
    ReportWithoutModel(environment_, caller, method, call->arrival(), status);
    SendIds(call->context(), ids, status.ok() ? Metadata::kInitial : Metadata::kTrailing);
    call->Close(ToGrpcStatus(status, ids.request));
  };
  if (!begun.ok()) {
    end(begun);
  } else if (call->Wait(end)) {
    std::mem_fn(action)(environment_.states, *call->client(), request,
                        [call](const absl::StatusOr<Response>& answer) {
                          if (const UnaryCall::Ending finish = call->TakeEnd()) {
                            finish(answer.ok() ? call->Answer(*answer) : answer.status());
                          }
                        });
  }
  return call.get();
}

grpc::ServerUnaryReactor* StateService::Get(grpc::CallbackServerContext* context,
                                            const grpc::ByteBuffer* request,
                                            grpc::ByteBuffer* response) {
  return Answer(Method::kGetState, &StateAccess::Get, *context, *request, *response);
}

grpc::ServerUnaryReactor* StateService::List(grpc::CallbackServerContext* context,
                                             const grpc::ByteBuffer* request,
                                             grpc::ByteBuffer* response) {
  return Answer(Method::kListStates, &StateAccess::List, *context, *request, *response);
}

grpc::ServerUnaryReactor* StateService::Delete(grpc::CallbackServerContext* context,
                                               const grpc::ByteBuffer* request,
                                               grpc::ByteBuffer* response) {
  return Answer(Method::kDeleteState, &StateAccess::Delete, *context, *request, *response);
}

}  // namespace aft::server
