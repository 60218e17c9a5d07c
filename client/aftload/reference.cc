#include "client/aftload/reference.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace aft::client {

absl::StatusOr<std::vector<Reference>> TakeReferences(
    const Workload& workload, uint64_t count, uint32_t streams,
    const std::vector<std::unique_ptr<Client>>& clients, CancelToken& cancel) {
  constexpr uint32_t kMostThreads = 64;
  std::vector<Reference> references(count);
  std::atomic<uint64_t> next = 0;
  Mutex mutex;
  absl::Status failed;
  const auto take = [&] {
    for (uint64_t i = next++; i < count; i = next++) {
      auto result = clients[i % clients.size()]->Generate(
          workload.Make(i).request, {},
          {.deadline = std::chrono::milliseconds(0), .cancel = &cancel});
      if (result.ok()) {
        references[i] = {std::move(result->token_ids), std::move(result->text)};
        continue;
      }
      next = count;
      MutexLock lock(mutex);
      failed.Update(result.status());
    }
  };
  std::vector<std::thread> threads(std::min<uint64_t>({streams, count, kMostThreads}));
  for (std::thread& thread : threads) thread = std::thread(take);
  for (std::thread& thread : threads) thread.join();
  if (!failed.ok()) return failed;
  return references;
}

void Differences::Merge(const Differences& other) {
  lost += other.lost;
  repeated += other.repeated;
  changed += other.changed;
  changed_texts += other.changed_texts;
}

void StreamVerifier::OnDelta(const v1::Delta& delta, Differences& differences) {
  uint64_t index = delta.first_index();
  for (const uint32_t id : delta.token_ids()) {
    if (index < next_) {
      ++differences.repeated;
    } else {
      differences.lost += index - next_;
      next_ = index + 1;
      if (reference_ != nullptr &&
          (index >= reference_->token_ids.size() || reference_->token_ids[index] != id)) {
        ++differences.changed;
      }
    }
    ++index;
  }
  if (reference_ == nullptr) return;
  const std::string& text = delta.text();
  same_text_ &= text_bytes_ <= reference_->text.size() &&
                reference_->text.compare(text_bytes_, text.size(), text) == 0;
  text_bytes_ += text.size();
}

void StreamVerifier::OnCompleted(Differences& differences) {
  if (reference_ == nullptr) return;
  const uint64_t tokens = reference_->token_ids.size();
  differences.lost += tokens - std::min(next_, tokens);
  if (!same_text_ || text_bytes_ != reference_->text.size()) ++differences.changed_texts;
}

}  // namespace aft::client
