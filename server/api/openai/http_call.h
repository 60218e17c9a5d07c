#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "server/admission/memory_ledger.h"
#include "server/api/openai/json_exchange.h"
#include "server/call/call.h"
#include "server/call/carrier.h"
#include "server/http/http_handler.h"
#include "server/scheduling/time.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

class OpenCalls;

// One request over HTTP that is a Call. Of the server's thread, but for Wake.
class HttpCall final : public HttpTask,
                       public Carrier,
                       public std::enable_shared_from_this<HttpCall> {
 public:
  // `headers`: of every answer. The first three must outlive it.
  HttpCall(InferenceEnvironment& environment, OpenCalls& calls, const ClientIdentity& identity,
           std::unique_ptr<JsonExchange> exchange, Caller caller, CallerFacts facts,
           std::map<std::string, std::string> headers);

  // ---- HttpTask. The body is charged for before it is read.
  std::optional<HttpPage> Expect(size_t bytes) override;
  void Refused(int status) override { Report(BodyError(status), exchange_->method()); }
  void Start(std::string body, std::shared_ptr<HttpAnswer> answer) override;
  void Done() override;
  void Gone(bool stuck) override;

  // ---- Carrier.
  void Wake(Call& call) override;

 private:
  JsonExchange& exchange() { return static_cast<JsonExchange&>(call_->exchange()); }
  // Reports a request that becomes no call.
  void Report(const absl::Status& refusal, Method method) const;
  void Pump();
  void SendPart(const std::string& text, bool last);
  void SendEnd();
  HttpPage WithHeaders(HttpPage page) const;
  void Close();

  InferenceEnvironment& environment_;
  OpenCalls& calls_;
  const ClientIdentity& identity_;
  const TimePoint arrival_;
  std::unique_ptr<JsonExchange> exchange_;  // until Start
  Caller caller_;
  const CallerFacts facts_;
  const std::map<std::string, std::string> headers_;
  size_t expected_ = 0;          // bytes of the body
  MemoryLedger::Charge charge_;  // for the body, until the call has its own
  std::shared_ptr<HttpAnswer> answer_;
  std::shared_ptr<Call> call_;  // from Start to Close
  std::atomic<bool> woken_{false};
  bool begun_ = false;    // the head of a stream is sent
  bool writing_ = false;  // a part is under way
  bool ended_ = false;    // the call is over
  bool gone_ = false;     // the client
};

}  // namespace aft::server::openai
