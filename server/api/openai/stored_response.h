#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "server/admission/memory_ledger.h"
#include "server/api/openai/open_calls.h"
#include "server/call/call.h"
#include "server/http/http_handler.h"
#include "server/transport/client_identity.h"

namespace aft::server::openai {

// GET and DELETE of /v1/responses/ID. The response is the note of a stored state. The answer may
// have to wait for the storage of states (a folder or Redis). A drain waits until the answer is
// sent, and until the storage has made its last callback.
class StoredResponse final : public HttpTask, public std::enable_shared_from_this<StoredResponse> {
 public:
  // `headers`: are added to the answer. The references must outlive this object.
  StoredResponse(InferenceEnvironment& environment, OpenCalls& calls,
                 const ClientIdentity& identity, Method method, std::string id, Caller caller,
                 CallerFacts facts, std::map<std::string, std::string> headers);

  // ---- HttpTask.
  std::optional<HttpPage> Expect(size_t bytes) override;
  void Start(std::string body, std::shared_ptr<HttpAnswer> answer) override;
  HttpPage Refused(int status) override;
  void Done() override { charge_.Close(); }
  void Gone(bool stuck) override;

 private:
  // Reports a request that is refused before it is started.
  void Report(const absl::Status& refusal) const;
  void OnFound(const absl::StatusOr<std::shared_ptr<const SequenceState>>& found);
  void Answer(absl::StatusOr<std::string> json);
  HttpPage WithHeaders(HttpPage page) const;

  InferenceEnvironment& environment_;
  OpenCalls& calls_;
  const ClientIdentity& identity_;
  OpenCalls::Place place_;  // from Start on; destroyed after `answer_`, which uses the server
  const Method method_;
  const std::string id_;
  const TimePoint arrival_;
  const Caller caller_;
  const CallerFacts facts_;
  const std::map<std::string, std::string> headers_;
  MemoryLedger::Charge charge_;  // for the answer
  std::shared_ptr<HttpAnswer> answer_;
};

}  // namespace aft::server::openai
