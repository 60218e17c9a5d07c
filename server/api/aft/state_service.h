#pragma once

#include "aft/v1/states.grpc.pb.h"
#include "server/api/aft/state_transfer.h"
#include "server/states/state_access.h"
#include "server/transport/unary_call.h"

namespace aft::server {

// Lists, deletes, exports and imports the stored states of a client.
class StateService final : public v1::StateService::WithRawCallbackMethod_Get<
                               v1::StateService::WithRawCallbackMethod_List<
                                   v1::StateService::WithRawCallbackMethod_Delete<
                                       v1::StateService::WithRawCallbackMethod_Export<
                                           v1::StateService::WithRawCallbackMethod_Import<
                                               v1::StateService::Service>>>>> {
 public:
  // The objects that the environment refers to must outlive the service.
  explicit StateService(const StateEnvironment& environment) : environment_(environment) {}

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const grpc::ByteBuffer* request,
                                grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* List(grpc::CallbackServerContext* context,
                                 const grpc::ByteBuffer* request,
                                 grpc::ByteBuffer* response) override;
  grpc::ServerUnaryReactor* Delete(grpc::CallbackServerContext* context,
                                   const grpc::ByteBuffer* request,
                                   grpc::ByteBuffer* response) override;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Export(grpc::CallbackServerContext* context,
                                                     const grpc::ByteBuffer* request) override {
    return StartExport(environment_, *context, *request);
  }
  grpc::ServerReadReactor<grpc::ByteBuffer>* Import(grpc::CallbackServerContext* context,
                                                    grpc::ByteBuffer* response) override {
    return StartImport(environment_, *context, *response);
  }

 private:
  template <typename Request, typename Response>
  using Action = void (StateAccess::*)(const Client&, const Request&,
                                       const StateAccess::Answer<Response>&);

  template <typename Request, typename Response>
  grpc::ServerUnaryReactor* Answer(Method method, Action<Request, Response> action,
                                   grpc::CallbackServerContext& context,
                                   const grpc::ByteBuffer& bytes, grpc::ByteBuffer& response);

  StateEnvironment environment_;
};

}  // namespace aft::server
