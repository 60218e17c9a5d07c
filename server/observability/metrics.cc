#include "server/observability/metrics.h"

#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace aft::server {
namespace {

using prometheus::Registry;

// These names are in the order of their enums.
constexpr std::array<const char*, kServiceClasses> kPriorities = {"interactive", "normal", "batch"};
constexpr std::array<const char*, 5> kStates = {"loading", "ready", "draining", "failed",
                                                "unloaded"};

GaugePart PriorityPart(const MetricMaker& make, const std::string& name,
                       ServiceClass service_class) {
  return make.AddPart(absl::StrCat(name, "_by_priority").c_str(),
                      "Requests by the priority that they asked for.",
                      {{"priority", kPriorities[static_cast<size_t>(service_class)]}});
}

}  // namespace

RequestGauge::RequestGauge(const MetricMaker& make, const std::string& name,
                           const std::string& help)
    : all_(make.AddGauge(name.c_str(), help.c_str())),
      by_priority_{PriorityPart(make, name, ServiceClass::kInteractive),
                   PriorityPart(make, name, ServiceClass::kNormal),
                   PriorityPart(make, name, ServiceClass::kBatch)} {}

void RequestGauge::Set(const Counts& counts) {
  all_.Set(std::accumulate(counts.begin(), counts.end(), 0));
  for (size_t i = 0; i < counts.size(); ++i) by_priority_[i].Set(counts[i]);
}

void RequestGauge::Add(ServiceClass service_class, int change) {
  all_.Add(change);
  by_priority_[static_cast<size_t>(service_class)].Add(change);
}

CallMetrics::CallMetrics(const MetricMaker& make, size_t methods, size_t first_timed)
    : counters_(methods), first_timed_(first_timed) {
  for (size_t i = 0; i < methods; ++i) {
    const char* const method = kMethodNames[i];
    for (size_t code = 0; code < kCodes; ++code) {
      counters_[i][code] = &make.AddCounter(
          "aft_requests_total", "Ended calls by method and gRPC status.",
          {{"method", method},
           {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
    }
    if (i < first_timed) continue;
    seconds_.push_back(&make.AddSeconds("aft_e2e_seconds",
                                        "Arrival of a call to its end, if it was not refused.",
                                        {{"method", method}}));
  }
}

void CallMetrics::Count(Method method, absl::StatusCode code) {
  const auto& by_code = counters_[static_cast<size_t>(method)];
  const auto index = static_cast<size_t>(code);
  by_code[index < kCodes ? index : static_cast<size_t>(absl::StatusCode::kUnknown)]->Increment();
}

void CallMetrics::Observe(Method method, std::chrono::duration<double> time) {
  const auto index = static_cast<size_t>(method);
  AFT_CHECK(index >= first_timed_);
  seconds_[index - first_timed_]->Observe(time.count());
}

ModelMetrics::ModelMetrics(Registry& registry, const std::string& model)
    : MetricMaker(registry, {{"model", model}}) {
  for (const char* const priority : kPriorities) {
    queue_seconds_.push_back(AddSecondsByMethod(
        "aft_queue_seconds", "Arrival of a request to its first step, or to its end without one.",
        kEngineMethods, {{"priority", priority}}));
  }
  for (const bool exact : {false, true}) {
    for (const bool from_state : {false, true}) {
      resumed_[exact ? 1 : 0][from_state ? 1 : 0] = &AddCounter(
          "aft_streams_resumed_total",
          "Streams resumed here, by whether with exactly the same tokens, and from what.",
          {{"exact", exact ? "yes" : "no"}, {"from", from_state ? "state" : "text"}});
    }
  }
  for (size_t i = 0; i < kStates.size(); ++i) {
    state_[i] = &AddGauge("aft_model_state", "1 for the state that the model is in.",
                          {{"state", kStates[i]}});
  }
  for (const bool ok : {false, true}) {
    loads_[ok ? 1 : 0] = &AddCounter("aft_model_loads_total", "Loads of versions, by result.",
                                     {{"result", ok ? "ok" : "failed"}});
  }
}

void ModelMetrics::SetState(State state) {
  for (size_t i = 0; i < state_.size(); ++i) {
    state_[i]->Set(i == static_cast<size_t>(state) ? 1.0 : 0.0);
  }
}

ServerMetrics::ServerMetrics(Registry& registry, const BuildInfo& build)
    : MetricMaker(registry, {}),
      version(build.version),
      calls(MetricMaker(registry, {{"model", ""}}), kMethods, kModelMethods),
      watches(registry, "watches"),
      infer_streams(registry, "infer_streams"),
      states(registry) {
  AddGauge("aft_build_info", "Constant 1; the labels say what runs.",
           {{"version", build.version},
            {"revision", build.revision},
            {"build_type", build.type},
            {"torch", build.torch}})
      .Set(1);
}

void ServerMetrics::SetPlannedMemory(const char* use, int64_t bytes) const {
  AddGauge("aft_memory_planned_bytes", "Most memory that the server may take, by use.",
           {{"use", use}})
      .Set(static_cast<double>(bytes));
}

void ServerMetrics::SetFilesRejected(const char* file, bool rejected) const {
  AddGauge("aft_files_rejected",
           "1 while the newest files cannot be used and the server continues with older ones.",
           {{"file", file}})
      .Set(rejected ? 1 : 0);
}

ClientMetrics::ClientMetrics(Registry& registry, const std::vector<std::string>& names) {
  const auto add = [&](const std::string& name) {
    const MetricMaker make(registry, {{"client", name}});
    const auto requests = [&make](const char* result) {
      return &make.AddCounter("aft_client_requests_total", "Ended calls by client.",
                              {{"result", result}});
    };
    clients_[name] = {requests("ok"), requests("failed"),
                      &make.AddCounter("aft_client_tokens_total",
                                       "Tokens read, generated and scored by client.")};
  };
  for (const std::string& name : names) add(name);
  add("other");
}

void ClientMetrics::Count(const std::string& client, absl::StatusCode code, uint64_t tokens) {
  auto found = clients_.find(client);
  if (found == clients_.end()) found = clients_.find("other");
  const Counters& counters = found->second;
  (code == absl::StatusCode::kOk ? counters.ok : counters.failed)->Increment();
  counters.tokens->Increment(static_cast<double>(tokens));
}

}  // namespace aft::server
