#include "server/rpc/grpc_log.h"

#include <string>

#include "google/protobuf/stubs/logging.h"
#include "grpc/support/log.h"
#include "server/observability/log.h"

namespace aft::server {

void RouteLibraryLogs() {
  gpr_set_log_function([](gpr_log_func_args* args) {
    log::Debug("grpc.log", {{"file", args->file}, {"line", args->line}, {"text", args->message}});
  });
  google::protobuf::SetLogHandler([](google::protobuf::LogLevel /*level*/, const char* file,
                                     int line, const std::string& message) {
    log::Debug("protobuf.log", {{"file", file}, {"line", line}, {"text", message}});
  });
}

}  // namespace aft::server
