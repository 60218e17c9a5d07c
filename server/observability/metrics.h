#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/observability/batch_counts.h"
#include "server/observability/methods.h"
#include "server/observability/metric_maker.h"
#include "server/scheduling/service_class.h"

// Every metric of the server, except those that are made at each scrape (metrics_page.h).
// docs/metrics.md says what each means. The structs are made over one prometheus::Registry, which
// must outlive them, and are passed by reference: there are no globals. Labels are bounded (model,
// method, code, reason, state); none is a request id or another text of a client. Durations are in
// seconds.
//
// Thread-safety: every metric may be changed from any thread.
namespace aft::server {

// Calls of some of the methods: how they ended, and how long they took.
class CallMetrics {
 public:
  // Counts the first `methods`, and times those in [first_timed, methods).
  CallMetrics(const MetricMaker& make, size_t methods, size_t first_timed);

  // A call has ended. Codes outside the canonical range cannot come from our own code; they are
  // counted as UNKNOWN.
  void Count(Method method, absl::StatusCode code);
  // A call that was not refused took this time. REQUIRES: the method is timed.
  void Observe(Method method, std::chrono::duration<double> time);

 private:
  static constexpr size_t kCodes = 17;  // OK .. UNAUTHENTICATED
  std::vector<std::array<prometheus::Counter*, kCodes>> counters_;
  const size_t first_timed_;
  std::vector<prometheus::Histogram*> seconds_;
};

// The number of requests of one version of a model: all of them as a part of the gauge of that
// name, and those of each priority as a part of a gauge of the family with the suffix _by_priority.
class RequestGauge {
 public:
  using Counts = std::array<int, kServiceClasses>;  // by ServiceClass

  RequestGauge(const MetricMaker& make, const std::string& name, const std::string& help);

  void Set(const Counts& counts);
  void Add(ServiceClass service_class, int change);
  double Value() const { return all_.Value(); }

 private:
  GaugePart all_;
  std::array<GaugePart, kServiceClasses> by_priority_;
};

// Why a request was refused: the label `reason` of aft_rejected_total.
enum class Rejection {
  kQueuedRequests,
  kQueuedTokens,
  kClientQueue,
  kDeadline,  // the deadline cannot be met
  kDraining,
  kInvalid,
  kFailed,   // the model has failed
  kNotReady  // the model is loading, or unloaded
};
inline constexpr std::array<const char*, 8> kRejections = {
    "queued_requests", "queued_tokens", "client_queue", "deadline",
    "draining",        "invalid",       "failed",       "not_ready"};

// How an accepted request ended: the label `reason` of aft_request_finished_total. The first values
// are those of FinishReason.
enum class Ending {
  kEos,
  kStop,
  kLength,
  kDone,
  kCancelled,
  kDeadline,
  kShutdown,
  kSlowClient,
  kQueueTimeout,
  kError,
  kFailed  // the model has failed
};
inline constexpr std::array<const char*, 11> kEndings = {
    "eos",      "stop",        "length",        "done",  "cancelled", "deadline",
    "shutdown", "slow_client", "queue_timeout", "error", "failed"};

// Faults of an engine: the label `reason` of aft_engine_failures_total.
enum class EngineFailure {
  kStep,       // a step of the model ended in an error
  kNotFinite,  // the output of a sequence is not finite
  kStateLost,  // the state of a sequence, when it was taken, restored or forked
  kModel       // the model has failed for good
};
inline constexpr std::array<const char*, 4> kEngineFailures = {"step", "not_finite", "state_lost",
                                                               "model"};

// Why a prompt found no state in the prefix cache: the label `reason` of
// aft_prefix_cache_misses_total.
enum class PrefixMiss { kCold, kTooShort, kDiverged, kEvicted };
inline constexpr std::array<const char*, 4> kPrefixMisses = {"cold", "too_short", "diverged",
                                                             "evicted"};

// The metrics of one served model, or of one version of it. The versions of a model share its
// metrics, so that the number of metrics does not grow with the versions.
struct ModelMetrics : private MetricMaker {
  enum class State { kLoading, kReady, kDraining, kFailed, kUnloaded };

  ModelMetrics(prometheus::Registry& registry, const std::string& model);

  // Changed by calls. The times are of calls that an engine has accepted, or that need no engine.
  CallMetrics calls{*this, kModelMethods, 0};
  prometheus::Counter& streams_resumed(bool exact, bool from_state) {
    return *resumed_[exact ? 1 : 0][from_state ? 1 : 0];
  }

  // Changed by server/engine. A request is a sequence here: each answer of `n`, each text of a
  // call.
  const CounterByReason<Rejection, kRejections.size()> rejected{
      *this, "aft_rejected_total",
      "Requests refused because there was no room, or no model that serves.", kRejections};
  const CounterByReason<Ending, kEndings.size()> finished{
      *this, "aft_request_finished_total", "Accepted requests by how they ended.", kEndings};
  const CounterByReason<EngineFailure, kEngineFailures.size()> failures{
      *this, "aft_engine_failures_total", "What went wrong in the engine.", kEngineFailures};
  RequestGauge requests_running{*this, "aft_requests_running", "Requests that own a slot."};
  RequestGauge requests_waiting{*this, "aft_requests_waiting",
                                "Accepted requests that wait for a slot."};
  GaugePart waiting_tokens =
      AddPart("aft_waiting_tokens", "Tokens of the texts of requests that wait for a slot.");
  GaugePart requests_parked =
      AddPart("aft_requests_parked", "Requests whose state waits in host memory for a slot.");
  prometheus::Counter& parks = AddCounter(
      "aft_parks_total", "Batch sequences whose slot was given to a more urgent request.");
  prometheus::Counter& resumes =
      AddCounter("aft_resumes_total", "Parked sequences that got a slot again.");
  GaugePart slots_used = AddPart("aft_slots_used", "Slots that hold a sequence.");
  GaugePart slots_total = AddPart("aft_slots", "Sequences that can be live at once.");
  prometheus::Histogram& queue_seconds(Method method, ServiceClass service_class) const {
    return queue_seconds_[static_cast<size_t>(service_class)][method];
  }
  const HistogramByMethod ttft_seconds = AddSecondsByMethod(
      "aft_ttft_seconds", "Arrival of a request to its first token.", kGeneratingMethods);
  const HistogramByMethod ttft_missed_seconds =
      AddSecondsByMethod("aft_ttft_missed_seconds",
                         "Arrival to the end of a request whose time was over before its first "
                         "token.",
                         kGeneratingMethods);
  const HistogramByMethod inter_token_seconds = AddSecondsByMethod(
      "aft_inter_token_seconds", "Time between two tokens of one stream.", kGeneratingMethods);
  const HistogramByMethod time_per_output_token_seconds = AddSecondsByMethod(
      "aft_time_per_output_token_seconds",
      "Mean time between the tokens of a sequence with at least two of them.", kGeneratingMethods);
  prometheus::Histogram& step_seconds = AddSeconds("aft_step_seconds", "Model time of one step.");
  std::atomic<uint64_t> steps{0};  // the steps of this version alone
  BatchCounts batches;  // the batches of this version alone, if it encodes; for ModelStatistics
  prometheus::Histogram& step_rows = AddSizes("aft_step_rows", "Sequences in one step.");
  prometheus::Histogram& step_tokens = AddSizes("aft_step_tokens", "Tokens computed in one step.");
  const CounterByMethod prompt_tokens =
      AddCounters("aft_prompt_tokens_total",
                  "Prefill: tokens of prompts and of texts to score computed.", kEngineMethods);
  const CounterByMethod generated_tokens =
      AddCounters("aft_generated_tokens_total", "Decode: tokens generated.", kGeneratingMethods);
  const CounterByMethod scored_tokens = AddCounters(
      "aft_scored_tokens_total", "Tokens whose log-probability was reported.", kEngineMethods);
  const CounterByMethod encoded_tokens =
      AddCounters("aft_encoded_tokens_total", "Tokens turned into vectors.", kEngineMethods);

  // Changed by server/engine, for the prefix cache; 0 without one.
  prometheus::Counter& prefix_hits = AddCounter(
      "aft_prefix_cache_hits_total", "Prompts that continued from a state in the prefix cache.");
  prometheus::Counter& prefix_hit_tokens = AddCounter(
      "aft_prefix_cache_hit_tokens_total",
      "Tokens of prompts that were not computed, because the state behind them was kept.");
  const CounterByReason<PrefixMiss, kPrefixMisses.size()> prefix_misses{
      *this, "aft_prefix_cache_misses_total", "Prompts that found no state in the prefix cache.",
      kPrefixMisses};
  prometheus::Counter& prefix_joins =
      AddCounter("aft_prefix_cache_joins_total",
                 "Prompts that waited for a state which another one was about to leave.");
  prometheus::Counter& prefix_evictions = AddCounter(
      "aft_prefix_cache_evictions_total", "States of the prefix cache that had to make room.");
  prometheus::Counter& prefix_failures =
      AddCounter("aft_prefix_cache_failures_total",
                 "States that the prefix cache could not keep, because the device had no memory.");
  GaugePart prefix_states = AddPart("aft_prefix_cache_states", "States in the prefix cache.");
  GaugePart prefix_bytes =
      AddPart("aft_prefix_cache_bytes", "What the prefix cache takes: states and texts.");
  GaugePart prefix_limit =
      AddPart("aft_prefix_cache_limit_bytes", "The most that the prefix cache may take.");

  // Changed by server/engine, for models on a GPU; 0 and empty on the CPU.
  std::atomic<int64_t> device_memory_used{0};   // of this version's GPU; for ModelReport
  std::atomic<int64_t> device_memory_total{0};  // likewise
  prometheus::Histogram& device_step_seconds =
      AddSeconds("aft_device_step_seconds", "Time of one step on the GPU.");
  prometheus::Counter& device_graph_steps = DeviceSteps("graph");  // one launch of a recorded graph
  prometheus::Counter& device_eager_steps = DeviceSteps("eager");  // queued operator by operator

  // Changed by server/registry. Exactly one state's gauge is 1.
  void SetState(State state);
  GaugePart versions =
      AddPart("aft_model_versions",
              "Versions of the model in memory, those that end their last streams too.");
  prometheus::Gauge& versions_failed =
      AddGauge("aft_model_versions_failed",
               "Versions of the model that should be served as they are now and could not be "
               "loaded, or have failed.");
  prometheus::Counter& loads(bool ok) { return *loads_[ok ? 1 : 0]; }
  prometheus::Gauge& load_seconds =
      AddGauge("aft_model_load_seconds", "Time to load and warm up the model.");

 private:
  prometheus::Counter& DeviceSteps(const char* launch) const {
    return AddCounter("aft_device_steps_total", "Steps on the GPU, by how they were launched.",
                      {{"launch", launch}});
  }

  std::vector<HistogramByMethod> queue_seconds_;  // by ServiceClass
  prometheus::Counter* resumed_[2][2];            // not exact, exact; from the text, from a state
  std::array<prometheus::Gauge*, 5> state_;
  prometheus::Counter* loads_[2];
};

// Why a state was not found or kept: the label `reason` of aft_states_refused_total.
enum class StateRefusal {
  kFull,  // the budget, or the client's part of it
  kUnknown,
  kExpired,
  kInvalid,   // bytes that no server with our keys has sealed
  kUnwritten  // states.folder or states.redis did not accept it
};
inline constexpr std::array<const char*, 5> kStateRefusals = {"full", "unknown", "expired",
                                                              "invalid", "unwritten"};

// How a call to Redis failed: the label `reason` of aft_states_redis_failed_total.
enum class RedisFailure {
  kUnsent,  // it waited too long, or Redis was known to be down
  kBroken,  // no answer in time, one not in Redis' protocol, or a broken connection
  kRefused  // Redis answered with an error
};
inline constexpr std::array<const char*, 3> kRedisFailures = {"unsent", "broken", "refused"};

// The metrics of stored states.
struct StateMetrics : private MetricMaker {
  explicit StateMetrics(prometheus::Registry& registry) : MetricMaker(registry, {}) {}

  prometheus::Gauge& states = AddGauge("aft_states", "States that are kept.");
  prometheus::Gauge& bytes =
      AddGauge("aft_states_bytes", "What states take, and what is kept for those to come.");
  prometheus::Gauge& limit = AddGauge("aft_states_limit_bytes", "Budget for states.");
  prometheus::Counter& stored = AddCounter("aft_states_stored_total", "States that were stored.");
  prometheus::Counter& expired =
      AddCounter("aft_states_expired_total", "States whose time was over.");
  prometheus::Counter& skipped = AddCounter(
      "aft_states_skipped_total", "Files of states.folder that were skipped at the start.");
  prometheus::Counter& checkpoints_written = Checkpoints("written");
  prometheus::Counter& checkpoints_skipped = Checkpoints("skipped");  // the last was slow
  prometheus::Counter& checkpoints_failed = Checkpoints("failed");
  prometheus::Counter& handed_to_store = HandOvers("store");
  prometheus::Counter& handed_to_client = HandOvers("client");
  prometheus::Counter& handed_text_only = HandOvers("none");
  const CounterByReason<StateRefusal, kStateRefusals.size()> refused{
      *this, "aft_states_refused_total", "States that were not kept or not found.", kStateRefusals};
  prometheus::Histogram& store_seconds =
      AddSeconds("aft_states_store_seconds", "Time to keep a state, where states rest.");
  prometheus::Histogram& restore_seconds =
      AddSeconds("aft_states_restore_seconds", "Time to find a state to continue from.");

  // These are 0 without states.redis.
  prometheus::Gauge& redis_up =
      AddGauge("aft_states_redis_up", "1 while the server has a connection to Redis.");
  prometheus::Gauge& redis_waiting =
      AddGauge("aft_states_redis_waiting", "Calls that wait for their turn with Redis.");
  prometheus::Counter& redis_connects =
      AddCounter("aft_states_redis_connects_total", "Connections made to Redis.");
  const CounterByReason<RedisFailure, kRedisFailures.size()> redis_failed{
      *this, "aft_states_redis_failed_total", "Calls to Redis that failed.", kRedisFailures};

 private:
  prometheus::Counter& Checkpoints(const char* result) const {
    return AddCounter("aft_checkpoints_total", "States that streams left behind under way.",
                      {{"result", result}});
  }
  prometheus::Counter& HandOvers(const char* to) const {
    return AddCounter("aft_streams_handed_over_total",
                      "States of streams that a drain ended, by where the states went.",
                      {{"to", to}});
  }
};

// The streams of one kind that may stay open without a request, label `kind`.
struct OpenStreamMetrics : private MetricMaker {
  OpenStreamMetrics(prometheus::Registry& registry, const char* kind)
      : MetricMaker(registry, {{"kind", kind}}) {}

  prometheus::Gauge& open =
      AddGauge("aft_open_streams", "Open streams of a kind that may be idle.");
  prometheus::Counter& gave_way = AddCounter(
      "aft_streams_gave_way_total", "Idle streams that were ended so that new ones had room.");
};

// The labels of aft_build_info, which describe the program.
struct BuildInfo {
  std::string version;
  std::string revision{};  // git's
  std::string type{};      // CMake's
  std::string torch{};
};

// The metrics of the process.
struct ServerMetrics : private MetricMaker {
  ServerMetrics(prometheus::Registry& registry, const BuildInfo& build);

  const std::string version;

  // Changed by calls of methods without a model, and by calls that named no served model. The label
  // is model="".
  CallMetrics calls;
  // Changed by server/admission.
  prometheus::Gauge& memory_limit =
      AddGauge("aft_memory_limit_bytes", "Budget for requests and answers that are not sent yet.");
  prometheus::Gauge& memory_used =
      AddGauge("aft_memory_used_bytes", "What requests and unsent answers hold of the budget.");

  // Set by server/app: the memory that the budgets of the config and the models may take, and the
  // memory of the machine.
  void SetPlannedMemory(const char* use, int64_t bytes) const;
  prometheus::Gauge& memory_there = AddGauge(
      "aft_memory_machine_bytes", "Memory of the machine or of its container, the lesser.");

  // Set by server/app. `file`: what is read again while the server runs (tls, clients, config).
  void SetFilesRejected(const char* file, bool rejected) const;
  prometheus::Gauge& certificate_expires =
      AddGauge("aft_tls_certificate_expires_seconds",
               "When the server's certificate expires, in Unix time; 0 without TLS.");

  // Changed by calls.
  prometheus::Counter& memory_refusals =
      AddCounter("aft_memory_refused_total",
                 "Calls refused, or ended while they ran, because the memory budget was full.");
  prometheus::Counter& stuck_calls =
      AddCounter("aft_stuck_calls_total",
                 "Calls cancelled because their client did not read, or did not send the rest.");

  prometheus::Gauge& undelivered_bytes =
      AddGauge("aft_undelivered_bytes", "What was computed and waits for clients to read.");

  // Changed by server/admission.
  OpenStreamMetrics watches;
  OpenStreamMetrics infer_streams;

  // Changed by server/states.
  StateMetrics states;

  prometheus::Gauge& draining = AddGauge("aft_draining", "1 while the server shuts down.");
};

// Counts the calls and tokens of each client. A bounded number of the clients in the config
// (security.max_client_labels) have labels with their names; all others are "other".
class ClientMetrics {
 public:
  // `names`: the clients that have labels of their own.
  ClientMetrics(prometheus::Registry& registry, const std::vector<std::string>& names);

  // A call of that client has ended with this code.
  void Count(const std::string& client, absl::StatusCode code, uint64_t tokens);

 private:
  struct Counters {
    prometheus::Counter* ok;
    prometheus::Counter* failed;
    prometheus::Counter* tokens;
  };

  std::map<std::string, Counters> clients_;  // and "other"
};

}  // namespace aft::server
