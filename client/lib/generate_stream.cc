#include "client/lib/generate_stream.h"

#include <algorithm>
#include <memory>

#include "base/status_macros.h"

namespace aft::client {

absl::Status GenerateStream::Start(const ClientOptions& client, v1::InferenceService::Stub& stub,
                                   const v1::GenerateRequest& request, GenerateListener& listener,
                                   const CallOptions& options) {
  std::unique_ptr<GenerateStream> stream(new GenerateStream(listener, options));
  AFT_RETURN_IF_ERROR(stream->call_.Prepare(client, options));
  GenerateStream* const reactor = stream.release();  // until OnDone
  stub.async()->Generate(&reactor->call_.context, &request, reactor);
  // Reads start outside of reactions too, after a pause; the end waits until the last has failed.
  reactor->AddHold();
  reactor->StartRead(&reactor->event_);
  reactor->StartCall();
  return absl::OkStatus();
}

void GenerateStream::OnReadDone(bool ok) {
  if (!ok) {
    RemoveHold();
    return;
  }
  // What was on its way when the caller cancelled is not delivered any more.
  if (call_.facts.cancelled || IsCancelled(options_)) {
    StartRead(&event_);
    return;
  }
  broken_ = checker_.Take(event_);
  if (!broken_.empty()) {
    call_.context.TryCancel();
    RemoveHold();
    return;
  }
  const GenerateListener::Next next = listener_.OnEvent(event_);
  if (next.cancel) {
    call_.facts.cancelled = true;
    call_.context.TryCancel();
  } else {
    pause_left_ = next.pause;
  }
  ReadWhenPaused();
}

void GenerateStream::ReadWhenPaused() {
  if (pause_left_.count() <= 0 || IsCancelled(options_)) {
    StartRead(&event_);
    return;
  }
  // In slices: nobody tells of a cancellation.
  const auto slice = std::min(pause_left_, std::chrono::milliseconds(100));
  pause_left_ -= slice;
  alarm_.Set(std::chrono::system_clock::now() + slice, [this](bool) { ReadWhenPaused(); });
}

void GenerateStream::OnDone(const grpc::Status& status) {
  call_.facts.cancelled |= IsCancelled(options_);
  const absl::Status result = call_.StreamStatus(status, checker_, broken_);
  GenerateListener& listener = listener_;
  delete this;
  listener.OnEnd(result);
}

}  // namespace aft::client
