#include "client/lib/generate_stream.h"

#include <grpcpp/support/client_callback.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "client/lib/call.h"
#include "client/lib/cancel_token.h"

namespace aft::client {

class GenerateStream::Part final : public grpc::ClientReadReactor<v1::GenerateResponse> {
 public:
  explicit Part(GenerateStream& stream)
      : stream_(stream), cancel_scope_(stream.options_.cancel, call_.context) {}

  Call& call() { return call_; }

  void Begin() {
    stream_.stub_->async()->Generate(&call_.context, &stream_.generation_.request(), this);
    // Reads start outside of reactions too, after a pause; the end waits until the last has failed.
    AddHold();
    StartRead(&event_);
    StartCall();
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      RemoveHold();
      return;
    }
    // What was on its way when the caller cancelled is not delivered any more.
    if (call_.facts.cancelled || IsCancelled(stream_.options_)) {
      StartRead(&event_);
      return;
    }
    GenerateListener::Next next;
    switch (stream_.generation_.Take(event_)) {
      case Generation::Verdict::kBroken:
        call_.context.TryCancel();
        RemoveHold();
        return;
      case Generation::Verdict::kDeliver:
        next = stream_.listener_.OnEvent(event_);
        break;
      case Generation::Verdict::kKeep:
        break;
    }
    if (next.cancel) {
      call_.facts.cancelled = true;
      call_.context.TryCancel();
      next.pause = {};
    }
    stream_.Pause(next.pause, [this] { StartRead(&event_); });
  }

  void OnDone(const grpc::Status& status) override {
    GenerateStream& stream = stream_;
    const auto pause = stream.generation_.End(status, call_);
    delete this;
    stream.OnPartEnd(pause);
  }

 private:
  GenerateStream& stream_;
  Call call_;
  const CancelScope cancel_scope_;
  v1::GenerateResponse event_;
};

absl::Status GenerateStream::Start(const ClientOptions& client,
                                   std::unique_ptr<v1::InferenceService::Stub> stub,
                                   const v1::GenerateRequest& request, GenerateListener& listener,
                                   const CallOptions& options) {
  std::unique_ptr<GenerateStream> stream(
      new GenerateStream(client, std::move(stub), request, listener, options));
  AFT_RETURN_IF_ERROR(stream->StartPart());
  static_cast<void>(stream.release());  // until its end
  return absl::OkStatus();
}

GenerateStream::GenerateStream(const ClientOptions& client,
                               std::unique_ptr<v1::InferenceService::Stub> stub,
                               const v1::GenerateRequest& request, GenerateListener& listener,
                               const CallOptions& options)
    : stub_(std::move(stub)),
      listener_(listener),
      options_(options),
      generation_(client, options, request) {}

absl::Status GenerateStream::StartPart() {
  auto part = std::make_unique<Part>(*this);
  AFT_RETURN_IF_ERROR(generation_.Prepare(part->call()));
  part.release()->Begin();  // until OnDone
  return absl::OkStatus();
}

void GenerateStream::OnPartEnd(std::optional<std::chrono::milliseconds> pause) {
  if (!pause) {
    End(generation_.status());
    return;
  }
  Pause(*pause, [this] {
    if (absl::Status status = StartPart(); !status.ok()) End(status);
  });
}

// In slices: nobody tells of a cancellation.
void GenerateStream::Pause(std::chrono::milliseconds pause, std::function<void()> then) {
  if (pause.count() <= 0 || IsCancelled(options_)) {
    then();
    return;
  }
  const auto slice = std::min(pause, std::chrono::milliseconds(100));
  alarm_.Set(std::chrono::system_clock::now() + slice,
             [this, left = pause - slice, then = std::move(then)](bool) mutable {
               Pause(left, std::move(then));
             });
}

void GenerateStream::End(const absl::Status& status) {
  GenerateListener& listener = listener_;
  const absl::Status result = status;
  delete this;
  listener.OnEnd(result);
}

}  // namespace aft::client
