#include "server/api/openai/http_call.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>
#include <vector>

#include "base/catching.h"
#include "google/protobuf/wrappers.pb.h"
#include "server/api/openai/error_page.h"
#include "server/call/call_report.h"
#include "server/call/carrier.h"
#include "server/observability/log.h"

namespace aft::server::openai {
namespace {

// The body of a request. It is JSON, so no field can be read before all of it is parsed.
class Body final : public RequestBytes {
 public:
  explicit Body(std::string text) : text_(std::move(text)) {}

  size_t size() const override { return text_.size(); }
  std::vector<std::optional<std::string>> PeekStrings(int last, size_t /*most*/) const override {
    return std::vector<std::optional<std::string>>(static_cast<size_t>(last));
  }
  size_t FieldBytes(int /*field*/) const override { return 0; }
  absl::Status ParseInto(google::protobuf::Message& message) override {
    static_cast<google::protobuf::StringValue&>(message).set_value(std::move(text_));
    return absl::OkStatus();
  }

 private:
  std::string text_;
};

}  // namespace

HttpCall::HttpCall(InferenceEnvironment& environment, OpenCalls& calls,
                   const ClientIdentity& identity, std::unique_ptr<JsonExchange> exchange,
                   Caller caller, CallerFacts facts, std::map<std::string, std::string> headers)
    : environment_(environment),
      calls_(calls),
      place_(calls.Enter()),
      identity_(identity),
      arrival_(std::chrono::steady_clock::now()),
      exchange_(std::move(exchange)),
      caller_(std::move(caller)),
      facts_(std::move(facts)),
      headers_(std::move(headers)),
      charge_(environment.ledger, *caller_.client) {}

std::optional<HttpPage> HttpCall::Expect(size_t bytes) {
  // The buffer of the body doubles while it grows, so up to twice the size is charged. The size
  // that the client has announced stays charged.
  expected_ = std::max(expected_, bytes);
  const size_t held = kCallBytes + 2 * expected_;
  if (charge_.Resize(static_cast<int64_t>(held))) return std::nullopt;
  return Refuse(
      environment_.RefuseForMemory({held, charge_.MayEverHold(static_cast<int64_t>(held))}),
      exchange_->method());
}

HttpPage HttpCall::Refuse(const absl::Status& status, Method method) const {
  Report(status, method);
  std::optional<std::chrono::milliseconds> retry_after;
  if (absl::IsResourceExhausted(status)) retry_after = environment_.retry_hint.After(EngineLoad());
  return WithHeaders(ErrorPage(status, caller_.ids.request, retry_after));
}

void HttpCall::Start(std::string body, std::shared_ptr<HttpAnswer> answer) {
  answer_ = std::move(answer);
  const Method method = exchange_->method();
  const absl::Status started = Catching([&] {
    call_ = std::make_shared<Call>(environment_, std::move(exchange_), shared_from_this());
    charge_.Close();
    if (!calls_.Add(this, {call_, facts_, caller_.client->name}, identity_)) {
      return absl::UnavailableError("the server is shutting down");
    }
    place_.reset();  // calls_ has the call
    call_->Start(caller_, absl::OkStatus(), std::make_unique<Body>(std::move(body)));
    return absl::OkStatus();
  });
  if (started.ok()) return;
  ended_ = true;  // the call has not started and will never wake this object
  Close();
  answer_->Send(Refuse(started, method));
}

void HttpCall::Report(const absl::Status& refusal, Method method) const {
  ReportRefusal(environment_, environment_.client_metrics, caller_, method, refusal,
                std::chrono::steady_clock::now() - arrival_);
}

void HttpCall::Wake(Call& /*call*/) {
  if (state_.exchange(State::kWoken) == State::kIdle) PostPump();
}

// JSON of some megabytes takes up to hundreds of milliseconds to make. On the server's thread that
// would delay all clients. Until the posted Pump, nothing else takes messages, resets call_ or uses
// what the exchange makes: a client that goes only calls Call::Cancel.
void HttpCall::WakeLast(Call& call) {
  if (state_.exchange(State::kWoken) != State::kIdle) return;
  std::optional<Call::Next> taken;
  const absl::Status status = Catching([&] {
    taken = Take(call);
    return absl::OkStatus();
  });
  status.IgnoreError();  // without a result, Pump tries again
  answer_->Post([this, taken] { Pump(taken); });
}

// The call holds this object until it is over, which only Pump finds out.
void HttpCall::PostPump() {
  answer_->Post([this] { Pump(); });
}

Call::Next HttpCall::Take(Call& call) {
  state_ = State::kPumping;
  return call.Take();
}

void HttpCall::Pump(std::optional<Call::Next> taken) {
  try {
    while (true) {
      const Call::Next next = taken.has_value() ? *taken : Take(*call_);
      taken.reset();
      switch (next) {
        case Call::Next::kNothing:
          if (auto same = State::kPumping; state_.compare_exchange_strong(same, State::kIdle)) {
            return;
          }
          break;
        case Call::Next::kMessage:
          if (!SendPart()) return;
          call_->Written();
          if (state_ == State::kWoken) return PostPump();  // other connections have their turn
          break;
        case Call::Next::kEnd:
          ended_ = true;
          return SendEnd();
      }
    }
  } catch (const std::exception& error) {  // out of memory: the client sees a broken answer
    log::Error("http.failed", {{"id", caller_.ids.request},
                               {"error", error.what()},
                               {"trace_id", caller_.ids.trace.trace_id}});
    if (ended_) return answer_->Abort();
    call_->Cancel(absl::InternalError(error.what()));
    PostPump();
  }
}

// Returns false if Written is called later.
bool HttpCall::SendPart() {
  if (gone_) return true;
  if (!std::exchange(begun_, true)) {
    answer_->Begin(StreamHead());
  }
  return answer_->Write(exchange().TakeText());
}

void HttpCall::Written() {
  call_->Written();
  Pump();
}

void HttpCall::SendEnd() {
  const CallEnd& ending = call_->ending();
  if (gone_) return Close();
  const bool failed = !ending.status.ok();
  const std::string& id = caller_.ids.request;
  if (begun_ || (!failed && exchange().streams())) {
    if (!begun_) answer_->Begin(StreamHead());
    return answer_->End(failed ? exchange().ErrorEvent(ErrorOf(ending.status, id, ending.path))
                               : exchange().TakeText());
  }
  answer_->Send(WithHeaders(
      failed ? ErrorPage(ending.status, id, ending.retry_after, ending.path)
             : HttpPage{.content_type = "application/json", .body = exchange().TakeText()}));
}

HttpPage HttpCall::StreamHead() const {
  HttpPage page = WithHeaders({.content_type = "text/event-stream; charset=utf-8"});
  page.headers.emplace("X-Accel-Buffering", "no");  // otherwise nginx would hold events back
  return page;
}

HttpPage HttpCall::WithHeaders(HttpPage page) const {
  page.headers.insert(headers_.begin(), headers_.end());
  return page;
}

void HttpCall::Done() { Close(); }

void HttpCall::Gone(bool stuck) {
  if (call_ == nullptr) return;
  gone_ = true;
  if (stuck) {
    environment_.metrics.stuck_calls.Increment();
    LogStuck(caller_, exchange().method(), environment_.limits.write_stall);
  }
  // This follows the end too, because the client may lack the id of a state that was stored.
  call_->Cancel(stuck ? SlowClient() : absl::CancelledError("the client cancelled the request"));
  if (ended_) Close();
}

// Breaks the cycle of references between this object, its call and OpenCalls.
void HttpCall::Close() {
  const std::shared_ptr<HttpCall> self = shared_from_this();
  const std::shared_ptr<Call> call = std::move(call_);
  if (call == nullptr) return;
  call->Close();
  calls_.Remove(this);
}

}  // namespace aft::server::openai
