#pragma once

#include <atomic>
#include <functional>
#include <map>
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

// What a call promises, whatever its method and carrier.
namespace aft::server {

// Where a test holds the tokenizer, which it comes to with the text "held".
struct TokenizerGate : LoadGate {
  std::atomic<int> entered = 0;
};

// A server on which one call of a case runs at a time, and one may wait. At the end of a test that
// has called Start, this holds for whatever the test did, once all of its calls have ended:
//   nothing is held: no slot, no place in the queue, no memory, no unread byte, no stored state
//   a further call is answered, unless the server has been drained
//   each call has its one line `request.done`, with all fields
//   aft_requests_total has, by method and code, what the lines say
//   aft_e2e_seconds has each call that was not refused, and no other one
class ContractTest : public testing::TestWithParam<Case> {
 protected:
  ContractTest();

  static constexpr int kDecodeThreads = 2;

  void Start();
  void TearDown() override;

  // The call of the case. Its id is one that no other has.
  ContractCall Open(Ask ask = Ask::kShort, const CallTerms& terms = {},
                    const std::string& model = GetParam().model);
  // On a connection whose window is small, so that it is full soon.
  ContractCall OpenUnread(Ask ask);
  // Whose step is held.
  ContractCall OpenHeld(Ask ask = Ask::kShort);
  ContractCall OpenFiller(const CallTerms& terms = {});
  // All threads of the decode pool are busy from here on, with calls of team-b. REQUIRES: the
  // clients are known.
  std::vector<ContractCall> HoldDecoding();
  void ResumeDecoding(std::vector<ContractCall>& held);
  // The decode pool is done with what it has, so whatever the engine has can be cancelled.
  void WaitUntilDecoded();
  // The call of the case with that id; "": with none, and so far one that nobody knows.
  ContractCall OpenNamed(const std::string& id, Ask ask = Ask::kShort, const CallTerms& terms = {});
  void Knows(const std::string& id) { ids_.insert(id); }
  // A generation with two tokens on a connection of its own is answered.
  void ExpectNeighbourIsServed();

  // Reads the rest: the client is told that, by a status or a response, and the log says the same.
  ContractCall::End ExpectEnd(ContractCall& call, absl::StatusCode code,
                              const testing::Matcher<std::string>& message);
  // The same, of a call that was refused before it began: there was nothing but the status.
  void ExpectRefused(ContractCall& call, absl::StatusCode code,
                     const testing::Matcher<std::string>& message);
  void ExpectAnswered(ContractCall& call);
  void IsRefused(const ContractCall& call) { IsRefusedAs(call.id()); }
  void IsRefusedAs(const std::string& id) { refused_.insert(id); }

  StepGate& gate();
  void FailNextStep(const absl::Status& status);
  // "aft_slots_used{model=...}" of the case's model.
  std::string OfModel(const std::string& name, const std::string& more = "") const;
  double Calls(const std::string& code);
  void WaitUntilWaiting(double sequences);
  // The test fails when that is not true after a minute.
  static void WaitUntil(const std::function<bool()>& condition);
  // Waits for the call's line.
  LogLine LineOf(const ContractCall& call);
  // The model goes on, a step at a time, until the call's line is there: what ends it may come at
  // any of them.
  LogLine StepUntilLineOf(const ContractCall& call);

  // There are team-a, whose token is `token` and who has these fields: "models: 'other'", and
  // team-b, who may use all.
  void KnowTeamA(const std::string& token, const std::string& fields);
  static CallTerms AsTeamA();
  static CallTerms AsTeamB();

  const TempFolder folder_;
  ServerConfig config_;
  FakeEncoderRunner::Options encoder_options_;
  CapturedLog log_;
  const std::shared_ptr<TokenizerGate> tokenizing_ = std::make_shared<TokenizerGate>();
  std::unique_ptr<TestServer> server_;
  // Calls that the server may never have seen.
  std::set<std::string> unsure_;
  // Calls that have no line, by code: see the differences in call_contract_refusal_test.cc.
  std::map<std::string, std::string> without_line_;
  // It has been drained, and answers nothing.
  bool drained_ = false;
  // Its limits are such that no further call is answered.
  bool refuses_all_ = false;
  // Whether aft_e2e_seconds cannot be known.
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

// Those that take many steps.
class LongContractTest : public ContractTest {};

// Those that no engine answers too.
class AnyContractTest : public ContractTest {};

inline std::string CaseName(const testing::TestParamInfo<Case>& info) { return info.param.name; }

}  // namespace aft::server
