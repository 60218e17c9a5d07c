#include "server/rpc/state_service.h"

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "base/status_macros.h"
#include "server/rpc/call_metadata.h"
#include "server/rpc/message_bytes.h"

namespace aft::server {
namespace {

// Of one call, until it ends.
struct Call {
  void End(const absl::Status& status) {
    ReportStateCall(environment, context, ids, client.get(), method, arrival, status);
    SendIds(context, ids, status.ok() ? Metadata::kInitial : Metadata::kTrailing);
    reactor->Finish(ToGrpcStatus(status, ids.request));
  }

  StateEnvironment& environment;
  grpc::CallbackServerContext& context;
  const Method method;
  grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
  const TimePoint arrival = std::chrono::steady_clock::now();
  CallIds ids{};
  std::shared_ptr<const Client> client{};
};

// Who calls, and with what.
template <typename Request>
absl::Status Begin(const ClientIdentity& identity, const grpc::ByteBuffer& bytes, Call& call,
                   Request& request) {
  AFT_RETURN_IF_ERROR(TakeIds(call.context, call.ids));
  AFT_ASSIGN_OR_RETURN(call.client, identity.Find(call.context));
  AFT_RETURN_IF_ERROR(StateAccess::CheckRequestBytes(bytes.Length()));
  return ParseMessage(bytes, request);
}

}  // namespace

template <typename Request, typename Response>
grpc::ServerUnaryReactor* StateService::Answer(Method method, Action<Request, Response> action,
                                               grpc::CallbackServerContext& context,
                                               const grpc::ByteBuffer& bytes,
                                               grpc::ByteBuffer& response) {
  const auto call = std::make_shared<Call>(
      Call{.environment = environment_, .context = context, .method = method});
  grpc::ServerUnaryReactor* const reactor = call->reactor;  // the call may end, and go, at once
  Request request;
  const absl::Status status = Begin(environment_.identity, bytes, *call, request);
  if (!status.ok()) {
    call->End(status);
    return reactor;
  }
  std::mem_fn(action)(
      environment_.states, *call->client, request,
      [call, &response](const absl::StatusOr<Response>& answer) {
        call->End(answer.ok() ? SerializeMessage(*answer, response) : answer.status());
      });
  return reactor;
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
