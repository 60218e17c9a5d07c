#pragma once

#include "aft/v1/states.grpc.pb.h"
#include "server/rpc/call_environment.h"
#include "server/rpc/state_access.h"

namespace aft::server {

// Tells clients of their states, and deletes them.
class StateService final
    : public v1::StateService::WithRawCallbackMethod_Get<
          v1::StateService::WithRawCallbackMethod_List<
              v1::StateService::WithRawCallbackMethod_Delete<v1::StateService::Service>>> {
 public:
  // Both must outlive the service.
  StateService(const CallEnvironment& environment, StateAccess& states)
      : environment_(environment), states_(states) {}

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;

 private:
  template <typename Request, typename Response>
  using Action = absl::Status (StateAccess::*)(const Client&, const Request&, Response&);

  // `name`: of the method, in the access log.
  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Answer(const char* name, Action<Request, Response> action,
                                   grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& bytes, grpc::ByteBuffer& response);

  const CallEnvironment environment_;
  StateAccess& states_;
};

}  // namespace aft::server
