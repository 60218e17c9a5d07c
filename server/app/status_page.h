#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "server/config/memory_plan.h"
#include "server/http/http_message.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// What metrics do not say of a server.
struct StatusReport {
  std::string version;
  std::string state;   // "starting", "ready", "draining", "stopped"
  bool ready = false;  // as gRPC's health service "" has it
  bool alive = true;   // as "liveness"
  std::chrono::system_clock::time_point started;
  std::string address;
  std::vector<MemoryPart> memory;  // that it may take
  int64_t memory_limit = 0;        // that there is
  std::string config;              // in force, as text-proto; files of secrets are names in it
  std::vector<ModelStatus> models;
};

// /status.json: the report, its models as aft.v1.ModelService has them.
HttpPage StatusJson(const StatusReport& report);

// /readyz: 200 if it is ready; else 503, and why not.
HttpPage ReadyPage(const StatusReport& report);

// /healthz: 200 if it is alive; 503 asks for a restart.
HttpPage AlivePage(const StatusReport& report);

// /status: server/app/status.html, for people, which draws /status.json and /metrics.
HttpPage StatusPage();

}  // namespace aft::server
