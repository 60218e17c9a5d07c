#include "server/observability/metrics.h"

#include <algorithm>

#include "absl/strings/string_view.h"

namespace aft::server {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;
using prometheus::Registry;

// Registering a name again returns the family that exists: models share families.
Counter& AddCounter(Registry& registry, const char* name, const char* help, const Labels& labels) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
}

Gauge& AddGauge(Registry& registry, const char* name, const char* help, const Labels& labels) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
}

Histogram& AddHistogram(Registry& registry, const char* name, const char* help,
                        const std::string& model, const std::vector<double>& bounds) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(
      {{"model", model}}, bounds);
}

// In the order of the enums of metrics.h.
constexpr std::array<const char*, 4> kRejections = {"queued_requests", "queued_tokens", "draining",
                                                    "invalid"};
constexpr std::array<const char*, 9> kEndings = {
    "eos", "stop", "length", "done", "cancelled", "deadline", "shutdown", "slow_client", "error"};
constexpr std::array<const char*, 4> kStates = {"loading", "ready", "draining", "failed"};

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

RequestCounters::RequestCounters(Registry& registry, const std::string& model) {
  for (size_t method = 0; method < counters_.size(); ++method) {
    for (size_t code = 0; code < counters_[method].size(); ++code) {
      counters_[method][code] =
          &AddCounter(registry, "aft_requests_total", "Ended calls by method and gRPC status.",
                      {{"model", model},
                       {"method", kMethodNames[method]},
                       {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
    }
  }
}

void RequestCounters::Increment(Method method, absl::StatusCode code) {
  auto& by_code = counters_[static_cast<size_t>(method)];
  const auto index = static_cast<size_t>(code);
  // Codes outside the canonical range cannot come from our own code; count them rather than crash.
  by_code[index < by_code.size() ? index : static_cast<size_t>(absl::StatusCode::kUnknown)]
      ->Increment();
}

ModelMetrics::ModelMetrics(Registry& registry, const std::string& model)
    : requests(registry, model),
      requests_running(AddGauge(registry, "aft_requests_running", "Requests that own a slot.",
                                {{"model", model}})),
      requests_waiting(AddGauge(registry, "aft_requests_waiting",
                                "Accepted requests that wait for a slot.", {{"model", model}})),
      slots_used(
          AddGauge(registry, "aft_slots_used", "Slots that hold a sequence.", {{"model", model}})),
      slots_total(AddGauge(registry, "aft_slots", "Sequences that can be live at once.",
                           {{"model", model}})),
      ttft_seconds(AddHistogram(registry, "aft_ttft_seconds",
                                "Arrival of a request to its first token.", model,
                                LatencyBuckets())),
      inter_token_seconds(AddHistogram(registry, "aft_inter_token_seconds",
                                       "Time between two tokens of one stream.", model,
                                       LatencyBuckets())),
      queue_seconds(AddHistogram(registry, "aft_queue_seconds",
                                 "Arrival of a request to the first step that holds it.", model,
                                 LatencyBuckets())),
      e2e_seconds(AddHistogram(registry, "aft_e2e_seconds",
                               "Arrival of a request to its end, however it ended.", model,
                               LatencyBuckets())),
      step_seconds(AddHistogram(registry, "aft_step_seconds", "Model time of one step.", model,
                                LatencyBuckets())),
      step_rows(
          AddHistogram(registry, "aft_step_rows", "Sequences in one step.", model, SizeBuckets())),
      step_tokens(AddHistogram(registry, "aft_step_tokens", "Tokens computed in one step.", model,
                               SizeBuckets())),
      prompt_tokens(AddCounter(registry, "aft_prompt_tokens_total",
                               "Tokens of prompts and of texts to score computed.",
                               {{"model", model}})),
      generated_tokens(AddCounter(registry, "aft_generated_tokens_total", "Tokens generated.",
                                  {{"model", model}})),
      scored_tokens(AddCounter(registry, "aft_scored_tokens_total",
                               "Tokens whose log-probability was reported by Score.",
                               {{"model", model}})),
      encoded_tokens(AddCounter(registry, "aft_encoded_tokens_total", "Tokens turned into vectors.",
                                {{"model", model}})),
      device_memory_used(AddGauge(registry, "aft_device_memory_used_bytes",
                                  "Memory of the model's GPU in use, by all programs.",
                                  {{"model", model}})),
      device_memory_total(AddGauge(registry, "aft_device_memory_bytes",
                                   "Memory of the model's GPU.", {{"model", model}})),
      device_step_seconds(AddHistogram(registry, "aft_device_step_seconds",
                                       "Time of one step on the GPU.", model, LatencyBuckets())),
      device_graph_steps(AddCounter(registry, "aft_device_steps_total",
                                    "Steps on the GPU, by how they were launched.",
                                    {{"model", model}, {"launch", "graph"}})),
      device_eager_steps(AddCounter(registry, "aft_device_steps_total",
                                    "Steps on the GPU, by how they were launched.",
                                    {{"model", model}, {"launch", "eager"}})),
      load_seconds(AddGauge(registry, "aft_model_load_seconds",
                            "Time to load and warm up the model.", {{"model", model}})) {
  for (size_t i = 0; i < kRejections.size(); ++i) {
    rejected_[i] = &AddCounter(registry, "aft_rejected_total", "Requests refused by the engine.",
                               {{"model", model}, {"reason", kRejections[i]}});
  }
  for (size_t i = 0; i < kEndings.size(); ++i) {
    finished_[i] =
        &AddCounter(registry, "aft_request_finished_total", "Accepted requests by how they ended.",
                    {{"model", model}, {"reason", kEndings[i]}});
  }
  for (size_t i = 0; i < kStates.size(); ++i) {
    state_[i] = &AddGauge(registry, "aft_model_state", "1 for the state that the model is in.",
                          {{"model", model}, {"state", kStates[i]}});
  }
}

void ModelMetrics::SetState(State state) {
  for (size_t i = 0; i < state_.size(); ++i) {
    state_[i]->Set(i == static_cast<size_t>(state) ? 1.0 : 0.0);
  }
}

ServerMetrics::ServerMetrics(Registry& registry, const std::string& version)
    : requests_without_model(registry, ""),
      draining(AddGauge(registry, "aft_draining", "1 while the server shuts down.", {})),
      build_info_(AddGauge(registry, "aft_build_info", "Constant 1; the version is a label.",
                           {{"version", version}})) {
  build_info_.Set(1.0);
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
