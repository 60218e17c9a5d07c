#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/labels.h"
#include "prometheus/registry.h"
#include "server/observability/batch_counts.h"

// Every metric of the server. Created once at start over one prometheus::Registry, which must
// outlive these structs, and passed by reference: no globals. Labels are bounded (model, code,
// reason, state); never a request id or a client. Durations are seconds.
//
// Thread-safety: every metric may be changed from any thread.
namespace aft::server {

// Upper bounds of all latency histograms, in seconds, 25 us to 5 minutes: small models decode a
// token in under 100 us.
const std::vector<double>& LatencyBuckets();

// Upper bounds of aft_step_rows and aft_step_tokens: powers of two, 1 to 65536.
const std::vector<double>& SizeBuckets();

// A gauge to which several add, such as the versions of a model: its value is the sum of what each
// has set last, and what one has set goes with it.
class GaugePart {
 public:
  explicit GaugePart(prometheus::Gauge& sum) : sum_(sum) {}
  ~GaugePart() { Set(0); }
  GaugePart(const GaugePart&) = delete;
  GaugePart& operator=(const GaugePart&) = delete;

  void Set(double value) { sum_.Increment(value - value_.exchange(value)); }
  void Add(double change) {
    value_ += change;
    sum_.Increment(change);
  }
  double Value() const { return value_; }  // the own one

 private:
  prometheus::Gauge& sum_;
  std::atomic<double> value_{0};
};

// Registers the metrics of a struct below. Registering a name again gives the family that exists:
// models share families and differ by their labels.
class MetricMaker {
 public:
  // Every metric carries `labels`.
  MetricMaker(prometheus::Registry& registry, prometheus::Labels labels)
      : registry_(registry), labels_(std::move(labels)) {}

  // `more`: labels of this one.
  prometheus::Counter& AddCounter(const char* name, const char* help,
                                  prometheus::Labels more = {}) const;
  prometheus::Gauge& AddGauge(const char* name, const char* help,
                              prometheus::Labels more = {}) const;
  GaugePart AddPart(const char* name, const char* help) const {
    return GaugePart(AddGauge(name, help));
  }
  prometheus::Histogram& AddSeconds(const char* name, const char* help) const;  // LatencyBuckets
  prometheus::Histogram& AddSizes(const char* name, const char* help) const;    // SizeBuckets

 private:
  prometheus::Registry& registry_;
  const prometheus::Labels labels_;
};

// Of aft.v1.InferenceService and inference.GRPCInferenceService, label of aft_requests_total.
enum class Method {
  kGenerate,
  kScore,
  kEncode,
  kModelInfer,
  kModelStreamInfer,
  kComplete,
  kTokenize,
  kDetokenize,
};

inline constexpr std::array<const char*, 8> kMethodNames = {
    "Generate",         "Score",    "Encode",   "ModelInfer",
    "ModelStreamInfer", "Complete", "Tokenize", "Detokenize"};
inline const char* MethodName(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

// The same of aft.v1.StateService, whose calls are of no model.
enum class StateMethod { kGet, kList, kDelete, kExport, kImport };

inline constexpr std::array<const char*, 5> kStateMethodNames = {
    "GetState", "ListStates", "DeleteState", "ExportState", "ImportState"};
inline const char* MethodName(StateMethod method) {
  return kStateMethodNames[static_cast<size_t>(method)];
}

// aft_requests_total{model,method,code}: ended calls by gRPC status, refused ones included. Of the
// methods of one service, by their enum.
template <typename AnyMethod>
class MethodCounters {
 public:
  explicit MethodCounters(const MetricMaker& make) {  // with label model
    for (auto& by_code : counters_) {
      const auto method = static_cast<AnyMethod>(&by_code - counters_.data());
      for (size_t code = 0; code < by_code.size(); ++code) {
        by_code[code] = &make.AddCounter(
            "aft_requests_total", "Ended calls by method and gRPC status.",
            {{"method", MethodName(method)},
             {"code", absl::StatusCodeToString(static_cast<absl::StatusCode>(code))}});
      }
    }
  }

  // Codes outside the canonical range cannot come from our own code; they are counted as UNKNOWN.
  void Increment(AnyMethod method, absl::StatusCode code) {
    auto& by_code = counters_[static_cast<size_t>(method)];
    const auto index = static_cast<size_t>(code);
    by_code[index < by_code.size() ? index : static_cast<size_t>(absl::StatusCode::kUnknown)]
        ->Increment();
  }

 private:
  static constexpr size_t kMethods =
      std::is_same_v<AnyMethod, Method> ? kMethodNames.size() : kStateMethodNames.size();
  static constexpr size_t kCodes = 17;  // OK .. UNAUTHENTICATED
  std::array<std::array<prometheus::Counter*, kCodes>, kMethods> counters_;
};

using RequestCounters = MethodCounters<Method>;

// Why a request was refused, label of aft_rejected_total.
enum class Rejection {
  kQueuedRequests,
  kQueuedTokens,
  kClientQueue,
  kDeadline,  // it cannot be met
  kDraining,
  kInvalid,
  kFailed  // the model has
};

// How an accepted request ended, label of aft_request_finished_total. Begins as FinishReason does.
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
  kFailed  // the model did
};

// Why a prompt found no state in the prefix cache, label of aft_prefix_cache_misses_total.
enum class PrefixMiss { kCold, kTooShort, kDiverged, kEvicted };

// One served model; or one version of it, which shares the metrics of all of its versions, so that
// there are no more of them for any number of versions.
struct ModelMetrics : private MetricMaker {
  enum class State { kLoading, kReady, kDraining, kFailed, kUnloaded };

  ModelMetrics(prometheus::Registry& registry, const std::string& model);

  // By server/rpc.
  RequestCounters requests{*this};

  // By server/engine.
  prometheus::Counter& rejected(Rejection reason) {
    return *rejected_[static_cast<size_t>(reason)];
  }
  prometheus::Counter& finished(Ending ending) { return *finished_[static_cast<size_t>(ending)]; }
  GaugePart requests_running = AddPart("aft_requests_running", "Requests that own a slot.");
  GaugePart requests_waiting =
      AddPart("aft_requests_waiting", "Accepted requests that wait for a slot.");
  GaugePart requests_parked =
      AddPart("aft_requests_parked", "Requests whose state waits in host memory for a slot.");
  prometheus::Counter& parks = AddCounter(
      "aft_parks_total", "Batch sequences whose slot was given to a more urgent request.");
  prometheus::Counter& resumes =
      AddCounter("aft_resumes_total", "Parked sequences that got a slot again.");
  // By server/rpc.
  prometheus::Counter& streams_resumed(bool exact, bool from_state) {
    return *resumed_[exact ? 1 : 0][from_state ? 1 : 0];
  }
  GaugePart slots_used = AddPart("aft_slots_used", "Slots that hold a sequence.");
  GaugePart slots_total = AddPart("aft_slots", "Sequences that can be live at once.");
  prometheus::Histogram& ttft_seconds =
      AddSeconds("aft_ttft_seconds", "Arrival of a request to its first token.");
  prometheus::Histogram& inter_token_seconds =
      AddSeconds("aft_inter_token_seconds", "Time between two tokens of one stream.");
  prometheus::Histogram& queue_seconds =
      AddSeconds("aft_queue_seconds", "Arrival of a request to the first step that holds it.");
  prometheus::Histogram& e2e_seconds =
      AddSeconds("aft_e2e_seconds", "Arrival of a request to its end, however it ended.");
  prometheus::Histogram& step_seconds = AddSeconds("aft_step_seconds", "Model time of one step.");
  std::atomic<uint64_t> steps{0};  // of this version alone
  BatchCounts batches;             // likewise; of an encoder; no metric, for ModelStatistics
  prometheus::Histogram& step_rows = AddSizes("aft_step_rows", "Sequences in one step.");
  prometheus::Histogram& step_tokens = AddSizes("aft_step_tokens", "Tokens computed in one step.");
  prometheus::Counter& prompt_tokens =
      AddCounter("aft_prompt_tokens_total", "Tokens of prompts and of texts to score computed.");
  prometheus::Counter& generated_tokens =
      AddCounter("aft_generated_tokens_total", "Tokens generated.");
  prometheus::Counter& scored_tokens =
      AddCounter("aft_scored_tokens_total", "Tokens whose log-probability was reported by Score.");
  prometheus::Counter& encoded_tokens =
      AddCounter("aft_encoded_tokens_total", "Tokens turned into vectors.");

  // By server/engine, of the prefix cache; 0 without one.
  prometheus::Counter& prefix_hits = AddCounter(
      "aft_prefix_cache_hits_total", "Prompts that went on from a state in the prefix cache.");
  prometheus::Counter& prefix_hit_tokens = AddCounter(
      "aft_prefix_cache_hit_tokens_total",
      "Tokens of prompts that were not computed, because the state behind them was kept.");
  prometheus::Counter& prefix_misses(PrefixMiss reason) {
    return *prefix_misses_[static_cast<size_t>(reason)];
  }
  prometheus::Counter& prefix_joins =
      AddCounter("aft_prefix_cache_joins_total",
                 "Prompts that waited for a state which another one was about to leave.");
  prometheus::Counter& prefix_evictions = AddCounter(
      "aft_prefix_cache_evictions_total", "States of the prefix cache that had to make room.");
  GaugePart prefix_states = AddPart("aft_prefix_cache_states", "States in the prefix cache.");
  GaugePart prefix_bytes =
      AddPart("aft_prefix_cache_bytes", "What the prefix cache takes: states and texts.");
  GaugePart prefix_limit =
      AddPart("aft_prefix_cache_limit_bytes", "The most that the prefix cache may take.");

  // By server/engine, of models on a GPU; 0 and empty on the CPU.
  prometheus::Gauge& device_memory_used = AddGauge(
      "aft_device_memory_used_bytes", "Memory of the model's GPU in use, by all programs.");
  prometheus::Gauge& device_memory_total =
      AddGauge("aft_device_memory_bytes", "Memory of the model's GPU.");
  prometheus::Histogram& device_step_seconds =
      AddSeconds("aft_device_step_seconds", "Time of one step on the GPU.");
  prometheus::Counter& device_graph_steps = DeviceSteps("graph");  // one launch of a recorded graph
  prometheus::Counter& device_eager_steps = DeviceSteps("eager");  // queued operator by operator

  // By server/registry. Exactly one state's gauge is 1.
  void SetState(State state);
  GaugePart versions =
      AddPart("aft_model_versions",
              "Versions of the model in memory, those that end their last streams too.");
  prometheus::Counter& loads(bool ok) { return *loads_[ok ? 1 : 0]; }
  prometheus::Gauge& load_seconds =
      AddGauge("aft_model_load_seconds", "Time to load and warm up the model.");

 private:
  prometheus::Counter& DeviceSteps(const char* launch) const {
    return AddCounter("aft_device_steps_total", "Steps on the GPU, by how they were launched.",
                      {{"launch", launch}});
  }

  prometheus::Counter* resumed_[2][2];  // not exact, exact; from the text, from a state
  std::array<prometheus::Counter*, 7> rejected_;
  std::array<prometheus::Counter*, 5> prefix_misses_;
  std::array<prometheus::Counter*, 11> finished_;
  std::array<prometheus::Gauge*, 5> state_;
  prometheus::Counter* loads_[2];
};

// Why a state was not found or kept, label of aft_states_refused_total.
enum class StateRefusal {
  kFull,  // the budget, or the client's
  kUnknown,
  kExpired,
  kInvalid,   // bytes that no server with our keys has sealed
  kUnwritten  // states.folder or states.redis takes it not
};

// How a call to Redis failed, label of aft_states_redis_failed_total.
enum class RedisFailure {
  kUnsent,  // it waited too long, or Redis was known to be down
  kBroken,  // no answer in time, or none that is Redis' language, or the connection broke
  kRefused  // Redis answered with an error
};

// The states that requests leave behind.
struct StateMetrics : private MetricMaker {
  explicit StateMetrics(prometheus::Registry& registry);

  // Of StateService: label model="".
  MethodCounters<StateMethod> calls;
  prometheus::Gauge& states = AddGauge("aft_states", "States that are kept.");
  prometheus::Gauge& bytes =
      AddGauge("aft_states_bytes", "What states take, and what is kept for those to come.");
  prometheus::Gauge& limit = AddGauge("aft_states_limit_bytes", "Budget for states.");
  prometheus::Counter& stored = AddCounter("aft_states_stored_total", "States that were stored.");
  prometheus::Counter& expired =
      AddCounter("aft_states_expired_total", "States whose time was over.");
  prometheus::Counter& skipped = AddCounter(
      "aft_states_skipped_total", "Files of states.folder that were not taken at the start.");
  prometheus::Counter& checkpoints_written = Checkpoints("written");
  prometheus::Counter& checkpoints_skipped = Checkpoints("skipped");  // the one before took long
  prometheus::Counter& checkpoints_failed = Checkpoints("failed");
  prometheus::Counter& handed_to_store = HandOvers("store");
  prometheus::Counter& handed_to_client = HandOvers("client");
  prometheus::Counter& handed_text_only = HandOvers("none");
  prometheus::Counter& refused(StateRefusal reason) {
    return *refused_[static_cast<size_t>(reason)];
  }
  prometheus::Histogram& store_seconds =
      AddSeconds("aft_states_store_seconds", "Time to keep a state, where states rest.");
  prometheus::Histogram& restore_seconds =
      AddSeconds("aft_states_restore_seconds", "Time to find a state to go on from.");

  // With states.redis; 0 without.
  prometheus::Gauge& redis_up =
      AddGauge("aft_states_redis_up", "1 while the server has a connection to Redis.");
  prometheus::Gauge& redis_waiting =
      AddGauge("aft_states_redis_waiting", "Calls that wait for their turn with Redis.");
  prometheus::Counter& redis_connects =
      AddCounter("aft_states_redis_connects_total", "Connections made to Redis.");
  prometheus::Counter& redis_failed(RedisFailure failure) {
    return *redis_failed_[static_cast<size_t>(failure)];
  }

 private:
  prometheus::Counter& Checkpoints(const char* result) const {
    return AddCounter("aft_checkpoints_total", "States that streams left behind under way.",
                      {{"result", result}});
  }
  prometheus::Counter& HandOvers(const char* to) const {
    return AddCounter("aft_streams_handed_over_total",
                      "Resumable streams that a drain ended, by where their states went.",
                      {{"to", to}});
  }

  std::array<prometheus::Counter*, 5> refused_;
  std::array<prometheus::Counter*, 3> redis_failed_;
};

// The process.
struct ServerMetrics : private MetricMaker {
  ServerMetrics(prometheus::Registry& registry, const std::string& server_version);

  const std::string version;

  // Requests that named no served model: label model="".
  RequestCounters requests_without_model;
  // By server/admission.
  prometheus::Gauge& memory_limit =
      AddGauge("aft_memory_limit_bytes", "Budget for requests and answers that are not sent yet.");
  prometheus::Gauge& memory_used =
      AddGauge("aft_memory_used_bytes", "What requests and unsent answers hold of the budget.");

  // By server/rpc.
  prometheus::Counter& memory_refusals =
      AddCounter("aft_memory_refused_total", "Calls refused because the memory budget was full.");
  prometheus::Counter& stuck_calls =
      AddCounter("aft_stuck_calls_total", "Calls cancelled because their client did not read.");

  // By server/states, and what StateService answers.
  StateMetrics states;

  // From the first sign of shutdown on.
  prometheus::Gauge& draining = AddGauge("aft_draining", "1 while the server shuts down.");
};

// What each client does. Of a bounded number of clients, those with a name in the config; the rest
// is "other".
class ClientMetrics {
 public:
  // `names`: the clients that have labels of their own.
  ClientMetrics(prometheus::Registry& registry, const std::vector<std::string>& names);

  // A call of that client has ended so.
  void Count(const std::string& client, absl::StatusCode code, uint64_t tokens);

 private:
  struct Counters {
    prometheus::Counter* ok;
    prometheus::Counter* failed;
    prometheus::Counter* tokens;
  };

  std::map<std::string, Counters> clients_;  // and "other"
};

// Observations of one thread, added to a histogram in one go: prometheus-cpp takes a lock for each
// Observe, which a step with many streams would pay per token. Thread-compatible.
class HistogramBatch {
 public:
  // `bounds` are the histogram's; both must outlive this object.
  HistogramBatch(prometheus::Histogram& histogram, const std::vector<double>& bounds)
      : histogram_(histogram), bounds_(bounds), counts_(bounds.size() + 1) {}

  void Add(double value);
  // Publishes what was added since the last Flush.
  void Flush();

 private:
  prometheus::Histogram& histogram_;
  const std::vector<double>& bounds_;
  std::vector<double> counts_;  // one per bound, then +Inf
  double sum_ = 0.0;
  bool empty_ = true;
};

}  // namespace aft::server
