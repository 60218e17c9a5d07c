#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/methods/call_contract_call.h"
#include "tests/integration/methods/call_contract_cases.h"
#include "tests/integration/server_fixture.h"
#include "tests/support/captured_log.h"
#include "tests/support/fake_loader.h"
#include "tests/support/temp_files.h"

// What every call guarantees, for each method and carrier.
namespace aft::server {

// A gate at which the fake tokenizer waits when it gets the text "held".
struct TokenizerGate : LoadGate {
  std::atomic<int> entered = 0;
};

// A server on which one call of a case runs at a time, and one may wait. At the end of a test that
// has called Start, when all of its calls have ended, this must hold:
//   no slot, place in the queue, memory, unread byte or stored state is held
//   a further call is answered, unless the server has been drained
//   each call has exactly one log line `request.done`, with all fields
//   aft_requests_total agrees with the log lines, for each method and code
//   aft_e2e_seconds counts each call that was not refused, and no other call
class ContractTest : public testing::TestWithParam<Case> {
 protected:
  ContractTest();

  static constexpr int kDecodeThreads = 2;

  void Start();
  void TearDown() override;

  // Opens the case's call with a new id.
  ContractCall Open(Ask ask = Ask::kShort, const CallTerms& terms = {},
                    const std::string& model = GetParam().model);
  // Opens the call on a connection with a small window that is soon full.
  ContractCall OpenUnread(Ask ask);
  // Opens the call and holds its first step.
  ContractCall OpenHeld(Ask ask = Ask::kShort);
  ContractCall OpenFiller(const CallTerms& terms = {});
  // Keeps all threads of the decode pool busy with calls of team-b until ResumeDecoding. REQUIRES:
  // the clients are known.
  std::vector<ContractCall> HoldDecoding();
  void ResumeDecoding(std::vector<ContractCall>& held);
  // Waits until the decode pool has decoded all earlier calls, so that the engine has them.
  void WaitUntilDecoded();
  // Opens the case's call with this id. If it is empty, the call has none, and the server makes
  // one. The test must later pass that one to Knows.
  ContractCall OpenNamed(const std::string& id, Ask ask = Ask::kShort, const CallTerms& terms = {});
  void Knows(const std::string& id) { ids_.insert(id); }
  // Opens a generation of two tokens on a new connection, which must succeed.
  void ExpectNeighbourIsServed();

  // Reads the rest. The client must get this error, by a status or a response, and the log line
  // must agree.
  ContractCall::End ExpectEnd(ContractCall& call, absl::StatusCode code,
                              const testing::Matcher<std::string>& message);
  // Like ExpectEnd, for a call that was refused before it began: it has no response, only a status.
  void ExpectRefused(ContractCall& call, absl::StatusCode code,
                     const testing::Matcher<std::string>& message);
  void ExpectAnswered(ContractCall& call);
  void IsRefused(const ContractCall& call) { IsRefusedAs(call.id()); }
  void IsRefusedAs(const std::string& id) { refused_.insert(id); }

  StepGate& gate();
  void FailNextStep(const absl::Status& status);
  // The sample's name with the case's model, such as "aft_slots_used{model=...}".
  std::string OfModel(const std::string& name, const std::string& more = "") const;
  double Calls(const std::string& code);
  void WaitUntilWaiting(double sequences);
  // The test fails if the condition is not true after a minute.
  static void WaitUntil(const std::function<bool()>& condition);
  // Waits for the call's line.
  LogLine LineOf(const ContractCall& call);
  // Allows one step at a time until the call's log line exists, because the call may end at any
  // step.
  LogLine StepUntilLineOf(const ContractCall& call);

  // The clients are team-a, with this token and these fields, such as "models: 'other'", and
  // team-b, which may use all models.
  void KnowTeamA(const std::string& token, const std::string& fields);
  static CallTerms AsTeamA();
  static CallTerms AsTeamB();
  // Starts the server, opens a call of team-a, and gives team-a these fields while the call is in
  // its first step.
  ContractCall OpenAndChangeTeamA(Ask ask, const std::string& fields);

  const TempFolder folder_;
  ServerConfig config_;
  FakeEncoderRunner::Options encoder_options_;
  CapturedLog log_;
  const std::shared_ptr<TokenizerGate> tokenizing_ = std::make_shared<TokenizerGate>();
  std::unique_ptr<TestServer> server_;
  // Calls that the server may never have seen.
  std::set<std::string> unsure_;
  // The server has been drained and answers no further call.
  bool drained_ = false;
  // The server's limits allow no further call.
  bool refuses_all_ = false;
  // The counts of aft_e2e_seconds are not predictable.
  bool times_unsure_ = false;

 private:
  ContractCall OpenAs(const Case& one, Ask ask, const CallTerms& terms, const std::string& model,
                      bool unread = false);
  ContractCall Send(const std::string& id, const Case& one, Ask ask, CallTerms terms,
                    const std::string& model, bool unread);
  std::optional<LogLine> FindLine(const std::string& id) const;
  void ExpectNothingIsHeld();
  void ExpectCounts(const std::vector<LogLine>& lines);

  std::set<std::string> ids_;
  std::set<std::string> refused_;
};

// The cases that take many steps.
class LongContractTest : public ContractTest {};

// All cases, including those that no engine answers.
class AnyContractTest : public ContractTest {};

inline std::string CaseName(const testing::TestParamInfo<Case>& info) { return info.param.name; }

}  // namespace aft::server
