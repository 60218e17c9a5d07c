#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/aftctl/commands.h"
#include "client/tool/exit_code.h"
#include "client/tool/output.h"

namespace aft::client {
namespace {

struct HealthFlags {
  std::string service;
  double deadline = 2;
};

int RunHealth(Client& client, const HealthFlags& flags) {
  const absl::StatusOr<HealthStatus> health = client.Health(flags.service);
  if (!health.ok()) return ReportError(health.status());
  Output output;
  output.Write(
      absl::StrCat(grpc::health::v1::HealthCheckResponse::ServingStatus_Name(*health), "\n"));
  if (const int code = OutputCode("aftctl", output); code != kExitOk) return code;
  return *health == grpc::health::v1::HealthCheckResponse::SERVING ? kExitOk : kExitFailed;
}

}  // namespace

Command AddHealth(CLI::App& app, const CommonFlags& common) {
  auto flags = std::make_shared<HealthFlags>();
  app.add_option("--service", flags->service,
                 "Service to ask for, e.g. aft.v1.InferenceService; empty: the whole server");
  AddDeadline(app, flags->deadline);
  return [&common, flags] {
    return RunUnary(common, flags->deadline,
                    [&](Client& client) { return RunHealth(client, *flags); });
  };
}

}  // namespace aft::client
