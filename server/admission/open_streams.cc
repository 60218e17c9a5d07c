#include "server/admission/open_streams.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace aft::server {

OpenStreams::OpenStreams(std::string kind, int64_t most, int64_t most_of_client,
                         OpenStreamMetrics& metrics)
    : kind_(std::move(kind)), most_(most), most_of_client_(most_of_client), metrics_(metrics) {}

absl::Status OpenStreams::Add(const std::shared_ptr<OpenStream>& stream,
                              const std::string& client) {
  std::shared_ptr<OpenStream> gives_way;
  {
    MutexLock lock(mutex_);
    if (ended_) return absl::UnavailableError("the server is shutting down; send elsewhere");
    const auto holder = holders_.try_emplace(client).first;
    // Counted first, so that MakeRoom cannot erase the entry of the client that asks.
    ++holder->second.open;
    const absl::Status room = MakeRoom(holder, gives_way);
    if (!room.ok()) {
      if (--holder->second.open == 0) holders_.erase(holder);
      return room;
    }
    Entry& entry = entries_.emplace(stream.get(), Entry{stream, holder, 0}).first->second;
    SetIdle(entry, true);
    metrics_.open.Set(static_cast<double>(entries_.size()));
  }
  if (gives_way != nullptr) {
    metrics_.gave_way.Increment();
    gives_way->EndWhenIdle(absl::ResourceExhaustedError(
        absl::StrCat("limits.max_", kind_,
                     ": this stream was idle and gave way to a new one; open another when it is "
                     "needed")));
  }
  return absl::OkStatus();
}

absl::Status OpenStreams::MakeRoom(Holders::iterator asking,
                                   std::shared_ptr<OpenStream>& gives_way) {
  auto from = holders_.end();
  if (asking->second.open > most_of_client_) {
    if (asking->second.idle.empty()) {
      return absl::ResourceExhaustedError(absl::StrCat("limits.max_client_", kind_,
                                                       ": this client has ", most_of_client_,
                                                       " open, and none of them is idle"));
    }
    from = asking;
  } else if (static_cast<int64_t>(entries_.size()) >= most_) {
    from = WhoGivesWay(asking);
    if (from == holders_.end()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("limits.max_", kind_, ": ", most_, " are open, and none can give way"));
    }
  } else {
    return absl::OkStatus();
  }
  const auto entry = entries_.find(from->second.idle.begin()->second);
  gives_way = entry->second.stream;
  Erase(entry);
  return absl::OkStatus();
}

OpenStreams::Holders::iterator OpenStreams::WhoGivesWay(Holders::iterator asking) {
  auto found = holders_.end();
  for (auto holder = holders_.begin(); holder != holders_.end(); ++holder) {
    const auto& [open, idle] = holder->second;
    if (idle.empty() || open < asking->second.open) continue;
    const bool better =
        found == holders_.end() || open > found->second.open ||
        (open == found->second.open && idle.begin()->first < found->second.idle.begin()->first);
    if (better) found = holder;
  }
  return found;
}

void OpenStreams::SetIdle(const OpenStream* stream, bool idle) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(stream);
  if (found != entries_.end()) SetIdle(found->second, idle);
}

void OpenStreams::SetIdle(Entry& entry, bool idle) {
  if (idle == (entry.idle_since != 0)) return;
  auto& all_idle = entry.holder->second.idle;
  if (idle) {
    entry.idle_since = ++turns_;
    all_idle.emplace(entry.idle_since, entry.stream.get());
  } else {
    all_idle.erase(entry.idle_since);
    entry.idle_since = 0;
  }
}

void OpenStreams::Erase(Entries::iterator entry) {
  const auto holder = entry->second.holder;
  SetIdle(entry->second, false);
  entries_.erase(entry);
  if (--holder->second.open == 0) holders_.erase(holder);
  metrics_.open.Set(static_cast<double>(entries_.size()));
}

void OpenStreams::Remove(const OpenStream* stream) {
  MutexLock lock(mutex_);
  const auto found = entries_.find(stream);
  if (found != entries_.end()) Erase(found);
}

void OpenStreams::EndAll() {
  std::vector<std::shared_ptr<OpenStream>> streams;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    for (const auto& [key, entry] : entries_) streams.push_back(entry.stream);
  }
  const absl::Status status = absl::UnavailableError("the server is shutting down; send elsewhere");
  for (const auto& stream : streams) stream->EndWhenIdle(status);
}

}  // namespace aft::server
