#include "server/api/oip/statistics.h"

#include <chrono>
#include <set>

namespace aft::server::oip {
namespace {

int64_t NowMs() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<milliseconds>(now).count();
}

// Describes all that a version has executed, including requests of other services. A language model
// has steps. An encoder has batches that ran without an error, their rows (inference_count), and
// the time of each batch size.
void DescribeExecutions(const VersionStatus& version, inference::ModelStatistics& message) {
  if (!version.encodes) return message.set_execution_count(version.steps);
  uint64_t rows = 0;
  uint64_t batches = 0;
  for (const auto& [size, count] : version.batches) {
    rows += size * count.batches;
    batches += count.batches;
    inference::InferBatchStatistics& batch = *message.add_batch_stats();
    batch.set_batch_size(size);
    batch.mutable_compute_infer()->set_count(count.batches);
    batch.mutable_compute_infer()->set_ns(static_cast<uint64_t>(count.time.count()));
  }
  message.set_inference_count(rows);
  message.set_execution_count(batches);
}

}  // namespace

void Statistics::Duration::Add(server::Duration duration) {
  const auto value = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
  ++count;
  ns += value > 0 ? static_cast<uint64_t>(value) : 0;
}

void Statistics::Duration::Describe(inference::StatisticDuration& message) const {
  message.set_count(count);
  message.set_ns(ns);
}

// With a new version, the entries of versions that are gone are removed.
Statistics::Version& Statistics::Find(const Key& key) {
  const auto found = versions_.find(key);
  if (found != versions_.end()) return found->second;
  std::set<Key> listed;
  for (const ModelStatus& model : registry_.List()) {
    for (const VersionStatus& version : model.versions)
      listed.insert({model.name, version.version});
  }
  std::erase_if(versions_, [&](const auto& version) { return listed.count(version.first) == 0; });
  return versions_[key];
}

void Statistics::Record(const ServedModel& model, const absl::Status& status,
                        const Timings& timings) {
  MutexLock lock(mutex_);
  Version& version = Find({model.config.name, model.config.version});
  (status.ok() ? version.success : version.fail).Add(timings.total);
  if (!status.ok()) return;
  version.queue.Add(timings.queue);
  version.compute.Add(timings.total - timings.queue);
  version.last_ms = NowMs();
}

void Statistics::Describe(const std::string& model, const VersionStatus& version,
                          inference::ModelStatistics& message) const {
  message.set_name(model);
  message.set_version(version.version);
  DescribeRequests({model, version.version}, message);
  DescribeExecutions(version, message);
}

void Statistics::DescribeRequests(const Key& key, inference::ModelStatistics& message) const {
  MutexLock lock(mutex_);
  const auto found = versions_.find(key);
  if (found == versions_.end()) return;
  const Version& counted = found->second;
  message.set_last_inference(static_cast<uint64_t>(counted.last_ms));
  inference::InferStatistics& infer = *message.mutable_inference_stats();
  counted.success.Describe(*infer.mutable_success());
  counted.fail.Describe(*infer.mutable_fail());
  counted.queue.Describe(*infer.mutable_queue());
  counted.compute.Describe(*infer.mutable_compute_infer());
  // It includes reading and writing tensors. perf_analyzer needs the same count in all three.
  infer.mutable_compute_input()->set_count(infer.compute_infer().count());
  infer.mutable_compute_output()->set_count(infer.compute_infer().count());
  message.set_inference_count(infer.success().count());
}

}  // namespace aft::server::oip
