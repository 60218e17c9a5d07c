#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/admission/memory_ledger.h"
#include "server/api/openai/error_page.h"
#include "server/api/openai/json_exchange.h"
#include "server/api/openai/open_calls.h"
#include "server/call/call.h"
#include "server/call/carrier.h"
#include "server/http/http_handler.h"
#include "server/scheduling/time.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

// An HTTP request that becomes a Call. Only the server's thread uses it, except for Wake and
// WakeLast.
class HttpCall final : public HttpTask,
                       public Carrier,
                       public std::enable_shared_from_this<HttpCall> {
 public:
  // `headers`: are added to every answer. The first three arguments must outlive this object.
  HttpCall(InferenceEnvironment& environment, OpenCalls& calls, const ClientIdentity& identity,
           std::unique_ptr<JsonExchange> exchange, Caller caller, CallerFacts facts,
           std::map<std::string, std::string> headers);

  // ---- HttpTask. The client is charged for the body before it is read.
  std::optional<HttpPage> Expect(size_t bytes) override;
  HttpPage Refused(int status) override {
    Report(PartError("body", status), exchange_->method());
    return WithHeaders(PartErrorPage("body", status, caller_.ids.request));
  }
  void Start(std::string body, std::shared_ptr<HttpAnswer> answer) override;
  void Written() override;
  void Done() override;
  void Gone(bool stuck) override;

  // ---- Carrier.
  void Wake(Call& call) override;
  void WakeLast(Call& call) override;

 private:
  JsonExchange& exchange() { return static_cast<JsonExchange&>(call_->exchange()); }
  // Reports a request that is refused before it becomes a call.
  void Report(const absl::Status& refusal, Method method) const;
  // Reports such a request, and returns the page that tells its client.
  HttpPage Refuse(const absl::Status& status, Method method) const;
  void PostPump();
  // `taken`: what Take has returned already, if it was called.
  void Pump(std::optional<Call::Next> taken = std::nullopt);
  // Calls Call::Take. REQUIRES: the caller has set kPumping or kWoken in place of kIdle.
  Call::Next Take(Call& call);
  bool SendPart();
  void SendEnd();
  // Returns the head of a stream.
  HttpPage StreamHead() const;
  HttpPage WithHeaders(HttpPage page) const;
  void Close();

  InferenceEnvironment& environment_;
  OpenCalls& calls_;
  // While the body arrives, and until Start's refusal is sent, a drain waits for this request. It
  // is destroyed after `answer_`, which uses the server.
  OpenCalls::Place place_;
  const ClientIdentity& identity_;
  const TimePoint arrival_;
  std::unique_ptr<JsonExchange> exchange_;  // until Start
  Caller caller_;
  const CallerFacts facts_;
  const std::map<std::string, std::string> headers_;
  size_t expected_ = 0;          // the size of the body in bytes, as far as it is known
  MemoryLedger::Charge charge_;  // for the body, until the call has its own
  std::shared_ptr<HttpAnswer> answer_;
  std::shared_ptr<Call> call_;  // from Start to Close
  // kPumping: Pump or WakeLast runs, Pump is posted, or waits for Written, or the call is over.
  // kWoken: likewise, and Wake or WakeLast was called since the last Take.
  enum class State { kIdle, kPumping, kWoken };
  std::atomic<State> state_{State::kIdle};
  bool begun_ = false;  // the head of a stream is sent
  bool ended_ = false;  // the call is over
  bool gone_ = false;   // the client is gone
};

}  // namespace aft::server::openai
