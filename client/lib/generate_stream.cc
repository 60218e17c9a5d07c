#include "client/lib/generate_stream.h"

#include <grpcpp/alarm.h>
#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "client/lib/call.h"
#include "client/lib/cancel_token.h"
#include "client/lib/rpc_error.h"

namespace aft::client {

// Makes one call after another.
class GenerateStream::Lane {
 public:
  Lane(GenerateStream& stream, Generation generation)
      : stream_(stream), generation_(std::move(generation)) {}

  GenerateStream& stream() { return stream_; }
  Generation& generation() { return generation_; }

  absl::Status StartPart();
  // Starts another call after `pause`.
  void StartLater(std::chrono::milliseconds pause);
  // Calls `then` when the pause or the stream is over, perhaps at once.
  void Pause(std::chrono::milliseconds pause, std::function<void()> then);
  // REQUIRES: mutex_ of the stream is held.
  void Cancel();
  void Forget() { part_ = nullptr; }

 private:
  GenerateStream& stream_;
  Generation generation_;
  grpc::Alarm alarm_;
  Part* part_ = nullptr;  // the call under way
};

class GenerateStream::Part final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit Part(Lane& lane)
      : lane_(lane),
        stream_(lane.stream()),
        cancel_scope_(stream_.options_.cancel, call_.context) {}

  Call& call() { return call_; }

  void Begin() {
    stream_.stub_->async()->Generate(&call_.context, &lane_.generation().request(), this);
    // Reads also start outside of reactions, after a pause. The hold delays OnDone until the last
    // read has failed.
    AddHold();
    StartRead(&event_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      RemoveHold();
      return;
    }
    GenerateListener::Next next;
    bool broken = false;
    {
      MutexLock lock(stream_.mutex_);
      // Events that arrive after a cancellation are not delivered.
      if (!stream_.over() && !IsCancelled(stream_.options_)) {
        const Generation::Verdict verdict = lane_.generation().Take(event_);
        broken = verdict == Generation::Verdict::kBroken;
        if (verdict == Generation::Verdict::kDeliver) next = stream_.listener_.OnEvent(event_);
        if (next.cancel) {
          stream_.cancelled_ = true;
          stream_.CancelAll();
        }
      }
    }
    if (broken) {
      call_.context.TryCancel();
      RemoveHold();
      return;
    }
    lane_.Pause(next.pause, [this] { StartRead(&event_); });
  }

  void OnDone(const grpc::Status& status) override {
    Lane& lane = lane_;
    GenerateStream& stream = stream_;
    std::optional<std::chrono::milliseconds> pause;
    {
      MutexLock lock(stream.mutex_);
      lane.Forget();
      call_.facts.cancelled = stream.over();
      pause = lane.generation().End(status, call_);
      if (!pause) stream.total_.request_id = RequestId(call_.context);
    }
    delete this;
    if (pause) {
      stream.GoOn(lane, *pause);
    } else {
      stream.EndLane(lane, lane.generation().status());
    }
  }

 private:
  Lane& lane_;
  GenerateStream& stream_;
  Call call_;
  const CancelScope cancel_scope_;
  v1::GenerateResponse event_;
};

absl::Status GenerateStream::Lane::StartPart() {
  auto part = std::make_unique<Part>(*this);
  AFT_RETURN_IF_ERROR(generation_.Prepare(part->call()));
  {
    MutexLock lock(stream_.mutex_);
    part_ = part.get();
    // Cancelling before Begin makes the call end like one that was cancelled under way.
    if (stream_.over()) Cancel();
  }
  part.release()->Begin();  // owns itself until OnDone
  return absl::OkStatus();
}

void GenerateStream::Lane::StartLater(std::chrono::milliseconds pause) {
  Pause(pause, [this] {
    if (absl::Status status = StartPart(); !status.ok()) stream_.EndLane(*this, status);
  });
}

// Waits in slices, because a cancellation does not wake this.
void GenerateStream::Lane::Pause(std::chrono::milliseconds pause, std::function<void()> then) {
  bool over = IsCancelled(stream_.options_);
  if (pause.count() > 0 && !over) {
    MutexLock lock(stream_.mutex_);
    over = stream_.over();
  }
  if (pause.count() <= 0 || over) {
    then();
    return;
  }
  const auto slice = std::min(pause, std::chrono::milliseconds(100));
  alarm_.Set(std::chrono::system_clock::now() + slice,
             [this, left = pause - slice, then = std::move(then)](bool) mutable {
               Pause(left, std::move(then));
             });
}

void GenerateStream::Lane::Cancel() {
  if (part_ != nullptr) part_->call().context.TryCancel();
}

absl::Status GenerateStream::Start(const ClientOptions& client,
                                   std::unique_ptr<v1::InferenceService::Stub> stub,
                                   const v1::GenerateRequest& request, GenerateListener& listener,
                                   const CallOptions& options, Summary* summary) {
  std::unique_ptr<GenerateStream> stream(
      new GenerateStream(std::move(stub), listener, options, summary));
  Lane* lane = nullptr;
  {
    MutexLock lock(stream->mutex_);
    stream->lanes_.push_back(std::make_unique<Lane>(*stream, Generation(client, options, request)));
    lane = stream->lanes_.front().get();
  }
  AFT_RETURN_IF_ERROR(lane->StartPart());
  static_cast<void>(stream.release());  // owns itself until it ends
  return absl::OkStatus();
}

GenerateStream::GenerateStream(std::unique_ptr<v1::InferenceService::Stub> stub,
                               GenerateListener& listener, const CallOptions& options,
                               Summary* summary)
    : stub_(std::move(stub)), listener_(listener), options_(options), summary_(summary) {}

void GenerateStream::GoOn(Lane& lane, std::chrono::milliseconds pause) {
  std::vector<Lane*> next;
  if (lane.generation().sequences() == 1) {
    next = {&lane};
  } else {
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < lane.generation().sequences(); ++i) {
      if (lane.generation().finished(i)) continue;
      lanes_.push_back(std::make_unique<Lane>(*this, Generation(lane.generation(), i)));
      next.push_back(lanes_.back().get());
    }
    open_ += next.size() - 1;
  }
  for (Lane* one : next) one->StartLater(pause);  // the last one may destroy the stream
}

void GenerateStream::EndLane(Lane& lane, const absl::Status& status) {
  GenerateListener& listener = listener_;
  absl::Status result;
  {
    MutexLock lock(mutex_);
    total_.resumes += lane.generation().resumes();
    total_.exact &= lane.generation().exact();
    if (!status.ok() && status_.ok()) {
      status_ = status;
      CancelAll();
    }
    if (--open_ > 0) return;
    if (summary_ != nullptr) *summary_ = total_;
    result = status_;
  }
  delete this;
  listener.OnEnd(result);
}

bool GenerateStream::over() const { return cancelled_ || !status_.ok(); }

void GenerateStream::CancelAll() {
  for (const auto& lane : lanes_) lane->Cancel();
}

}  // namespace aft::client
