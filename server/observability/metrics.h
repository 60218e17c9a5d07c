#ifndef AFT_SERVER_OBSERVABILITY_METRICS_H_
#define AFT_SERVER_OBSERVABILITY_METRICS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

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

// Of aft.v1.InferenceService, label of aft_requests_total.
enum class Method { kGenerate, kScore, kEncode };

inline constexpr std::array<const char*, 3> kMethodNames = {"Generate", "Score", "Encode"};
inline const char* MethodName(Method method) { return kMethodNames[static_cast<size_t>(method)]; }

// aft_requests_total{model,method,code}: ended calls by gRPC status, refused ones included.
class RequestCounters {
 public:
  RequestCounters(prometheus::Registry& registry, const std::string& model);

  void Increment(Method method, absl::StatusCode code);

 private:
  static constexpr int kCodes = 17;  // OK .. UNAUTHENTICATED
  std::array<std::array<prometheus::Counter*, kCodes>, kMethodNames.size()> counters_;
};

// Why a request was refused, label of aft_rejected_total.
enum class Rejection { kQueuedRequests, kQueuedTokens, kDraining, kInvalid };

// How an accepted request ended, label of aft_request_finished_total. kDone: scored or encoded.
enum class Ending {
  kEos,
  kStop,
  kLength,
  kDone,
  kCancelled,
  kDeadline,
  kShutdown,
  kSlowClient,
  kError
};

// One served model.
struct ModelMetrics {
  enum class State { kLoading, kReady, kDraining, kFailed };

  ModelMetrics(prometheus::Registry& registry, const std::string& model);

  // By server/rpc.
  RequestCounters requests;

  // By server/engine.
  prometheus::Counter& rejected(Rejection reason) {
    return *rejected_[static_cast<size_t>(reason)];
  }
  prometheus::Counter& finished(Ending ending) { return *finished_[static_cast<size_t>(ending)]; }
  prometheus::Gauge& requests_running;
  prometheus::Gauge& requests_waiting;
  prometheus::Gauge& slots_used;
  prometheus::Gauge& slots_total;
  prometheus::Histogram& ttft_seconds;         // arrival to first generated token
  prometheus::Histogram& inter_token_seconds;  // between two tokens of one stream
  prometheus::Histogram& queue_seconds;        // arrival to the first step that holds the request
  prometheus::Histogram& e2e_seconds;          // arrival to the end, however it ended
  prometheus::Histogram& step_seconds;
  prometheus::Histogram& step_rows;
  prometheus::Histogram& step_tokens;
  prometheus::Counter& prompt_tokens;  // computed, not just received; texts to score included
  prometheus::Counter& generated_tokens;
  prometheus::Counter& scored_tokens;
  prometheus::Counter& encoded_tokens;

  // By server/engine, of models on a GPU; 0 and empty on the CPU.
  prometheus::Gauge& device_memory_used;   // bytes, by all programs
  prometheus::Gauge& device_memory_total;  // bytes
  prometheus::Histogram& device_step_seconds;
  prometheus::Counter& device_graph_steps;  // one launch of a recorded graph
  prometheus::Counter& device_eager_steps;  // queued operator by operator

  // By server/registry. Exactly one state's gauge is 1.
  void SetState(State state);
  prometheus::Gauge& load_seconds;

 private:
  std::array<prometheus::Counter*, 4> rejected_;
  std::array<prometheus::Counter*, 9> finished_;
  std::array<prometheus::Gauge*, 4> state_;
};

// The process.
struct ServerMetrics {
  ServerMetrics(prometheus::Registry& registry, const std::string& version);

  // Requests that named no served model: label model="".
  RequestCounters requests_without_model;
  prometheus::Gauge& draining;  // 1 from the first sign of shutdown on

 private:
  prometheus::Gauge& build_info_;  // constant 1, label version
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

#endif  // AFT_SERVER_OBSERVABILITY_METRICS_H_
