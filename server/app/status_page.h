#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "server/config/memory_plan.h"
#include "server/http/http_message.h"
#include "server/registry/model_registry.h"

namespace aft::server {

// The facts about a server that its metrics do not contain.
struct StatusReport {
  std::string version;
  std::string state;   // "starting", "ready", "draining", "stopped"
  bool ready = false;  // whether the health service "" is SERVING
  bool alive = true;   // whether the health service "liveness" is SERVING
  std::chrono::system_clock::time_point started;
  std::string address;
  std::vector<MemoryPart> memory;  // the parts of the memory that the server may take
  int64_t memory_limit = 0;        // the memory of the machine or container, in bytes
  std::string config;              // in force, as text-proto; it names the files of secrets
  std::vector<ModelStatus> models;
};

// /status.json: the report, its models as aft.v1.ModelService has them.
HttpPage StatusJson(const StatusReport& report);

// /readyz: 200 if the server is ready; otherwise 503 and the reason.
HttpPage ReadyPage(const StatusReport& report);

// /healthz: 200 if the server is alive; 503 asks for a restart.
HttpPage AlivePage(const StatusReport& report);

// /status: server/app/status.html, for people, which draws /status.json and /metrics.
HttpPage StatusPage();

}  // namespace aft::server
