#include "server/observability/metrics.h"

#include <algorithm>

#include "absl/strings/string_view.h"

namespace aft::server {
namespace {

using prometheus::Labels;
using prometheus::Registry;

// In the order of the enums of metrics.h.
constexpr std::array<const char*, 7> kRejections = {
    "queued_requests", "queued_tokens", "client_queue", "deadline",
    "draining",        "invalid",       "failed"};
constexpr std::array<const char*, 11> kEndings = {
    "eos",      "stop",        "length",        "done",  "cancelled", "deadline",
    "shutdown", "slow_client", "queue_timeout", "error", "failed"};
constexpr std::array<const char*, 4> kPrefixMisses = {"cold", "too_short", "diverged", "evicted"};
constexpr std::array<const char*, 5> kStateRefusals = {"full", "unknown", "expired", "invalid",
                                                       "unwritten"};
constexpr std::array<const char*, 3> kRedisFailures = {"unsent", "broken", "refused"};
constexpr std::array<const char*, 5> kStates = {"loading", "ready", "draining", "failed",
                                                "unloaded"};

}  // namespace

const std::vector<double>& LatencyBuckets() {
  static const auto& bounds = *new std::vector<double>{
      25e-6, 50e-6, 100e-6, 150e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3,
      0.1,   0.25,  0.5,    1.0,    2.5,    5.0,    10.0, 30.0,   60.0, 120.0, 300.0};
  return bounds;
}

const std::vector<double>& SizeBuckets() {
  static const auto& bounds = *new std::vector<double>{
      1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536};
  return bounds;
}

prometheus::Counter& MetricMaker::AddCounter(const char* name, const char* help,
                                             Labels more) const {
  more.insert(labels_.begin(), labels_.end());
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry_).Add(more);
}

prometheus::Gauge& MetricMaker::AddGauge(const char* name, const char* help, Labels more) const {
  more.insert(labels_.begin(), labels_.end());
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry_).Add(more);
}

prometheus::Histogram& MetricMaker::AddSeconds(const char* name, const char* help) const {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  return family.Add(labels_, LatencyBuckets());
}

prometheus::Histogram& MetricMaker::AddSizes(const char* name, const char* help) const {
  auto& family = prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
  return family.Add(labels_, SizeBuckets());
}

ModelMetrics::ModelMetrics(Registry& registry, const std::string& model)
    : MetricMaker(registry, {{"model", model}}) {
  for (size_t i = 0; i < kRejections.size(); ++i) {
    rejected_[i] = &AddCounter("aft_rejected_total", "Requests refused by the engine.",
                               {{"reason", kRejections[i]}});
  }
  for (size_t i = 0; i < kEndings.size(); ++i) {
    finished_[i] = &AddCounter("aft_request_finished_total", "Accepted requests by how they ended.",
                               {{"reason", kEndings[i]}});
  }
  for (size_t i = 0; i < kPrefixMisses.size(); ++i) {
    prefix_misses_[i] = &AddCounter("aft_prefix_cache_misses_total",
                                    "Prompts that found no state in the prefix cache.",
                                    {{"reason", kPrefixMisses[i]}});
  }
  for (const bool exact : {false, true}) {
    for (const bool from_state : {false, true}) {
      resumed_[exact ? 1 : 0][from_state ? 1 : 0] = &AddCounter(
          "aft_streams_resumed_total",
          "Streams that went on here, by whether with the very same tokens, and from what.",
          {{"exact", exact ? "yes" : "no"}, {"from", from_state ? "state" : "text"}});
    }
  }
  for (size_t i = 0; i < kStates.size(); ++i) {
    state_[i] = &AddGauge("aft_model_state", "1 for the state that the model is in.",
                          {{"state", kStates[i]}});
  }
  for (const bool ok : {false, true}) {
    loads_[ok ? 1 : 0] = &AddCounter("aft_model_loads_total", "Versions that were loaded, or not.",
                                     {{"result", ok ? "ok" : "failed"}});
  }
}

void ModelMetrics::SetState(State state) {
  for (size_t i = 0; i < state_.size(); ++i) {
    state_[i]->Set(i == static_cast<size_t>(state) ? 1.0 : 0.0);
  }
}

ServerMetrics::ServerMetrics(Registry& registry, const std::string& server_version)
    : MetricMaker(registry, {}),
      version(server_version),
      requests_without_model(MetricMaker(registry, {{"model", ""}})),
      states(registry) {
  AddGauge("aft_build_info", "Constant 1; the version is a label.", {{"version", version}}).Set(1);
}

StateMetrics::StateMetrics(Registry& registry)
    : MetricMaker(registry, {}), calls(MetricMaker(registry, {{"model", ""}})) {
  for (size_t i = 0; i < kStateRefusals.size(); ++i) {
    refused_[i] = &AddCounter("aft_states_refused_total", "States that were not kept or not found.",
                              {{"reason", kStateRefusals[i]}});
  }
  for (size_t i = 0; i < kRedisFailures.size(); ++i) {
    redis_failed_[i] = &AddCounter("aft_states_redis_failed_total", "Calls to Redis that failed.",
                                   {{"reason", kRedisFailures[i]}});
  }
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

void HistogramBatch::Add(double value) {
  const auto bound = std::lower_bound(bounds_.begin(), bounds_.end(), value);
  counts_[static_cast<size_t>(bound - bounds_.begin())] += 1.0;
  sum_ += value;
  empty_ = false;
}

void HistogramBatch::Flush() {
  if (empty_) return;
  histogram_.ObserveMultiple(counts_, sum_);
  std::fill(counts_.begin(), counts_.end(), 0.0);
  sum_ = 0.0;
  empty_ = true;
}

}  // namespace aft::server
