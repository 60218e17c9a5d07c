// Runs every scenario of the contract of the clients (scenario.proto) with every client.
#include <gmock/gmock.h>
#include <grpc/grpc.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "contract/scenario.pb.h"
#include "tests/unit/client/contract/cpp_client.h"
#include "tests/unit/client/contract/load_scenarios.h"
#include "tests/unit/client/contract/scripted_model.h"
#include "tests/unit/client/fake_server.h"
#include "tests/unit/client/process.h"
#include "tests/unit/client/tcp_gate.h"

namespace aft::client::contract {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;

bool IsPython(Way way) { return way == PYTHON || way == PYTHON_ASYNC; }

// Returns a process with the Python client, which runs all scenarios. Returns null if there is no
// Python with gRPC.
Process* PythonClient() {
  static Process* const process = []() -> Process* {
    // Debian's own Python is tried too, because a newer one that comes first in PATH does not see
    // Debian's packages.
    for (const char* python : {"python3", "/usr/bin/python3"}) {
      if (Process({python, "-c", "import grpc, google.protobuf"}).Wait() != 0) continue;
      return new Process({python, CONTRACT "/contract_client.py"},
                         {"PYTHONPATH=" PYTHON_STUBS, "PYTHONDONTWRITEBYTECODE=1",
                          "GRPC_VERBOSITY=NONE", "no_grpc_proxy=127.0.0.1"});
    }
    return nullptr;
  }();
  return process;
}

Observed RunPython(const Scenario& scenario, Way way, const std::string& address,
                   const std::function<void()>& cut) {
  Process& python = *PythonClient();
  python.Send(absl::StrCat(address, " ", Way_Name(way), " ",
                           absl::Base64Escape(scenario.SerializeAsString()), "\n"));
  std::string line = python.ReadLine();
  if (line == "cut") {
    cut();
    line = python.ReadLine();
  }
  std::string bytes;
  Observed seen;
  EXPECT_TRUE(absl::Base64Unescape(line, &bytes) && seen.ParseFromString(bytes) && !line.empty())
      << python.err();
  return seen;
}

// A server. If `gated`, the connection to it can break.
struct Place {
  explicit Place(bool gated) {
    if (gated) gate.emplace(server.port());
  }
  std::string address() const { return gate ? gate->address() : server.address(); }

  FakeServer server;
  std::optional<TcpGate> gate;
};

// All variations of a scenario, for one client.
struct Case {
  std::vector<Scenario> variations;
  Way way;

  std::string name() const { return absl::StrCat(variations[0].name(), "_", Way_Name(way)); }
  friend void PrintTo(const Case& one, std::ostream* out) { *out << one.name(); }
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* file : {"generate", "score", "sequences", "protocol", "retries"}) {
    std::vector<Case> of_file;
    for (const Scenario& scenario : LoadScenarios(absl::StrCat(CONTRACT "/", file, ".textproto"))) {
      for (const Way way : {BLOCKING, LISTENER, PYTHON, PYTHON_ASYNC}) {
        if (!scenario.only().empty() &&
            std::count(scenario.only().begin(), scenario.only().end(), way) == 0)
          continue;
        if (way == LISTENER && !scenario.has_generate()) continue;
        const auto same = std::find_if(of_file.begin(), of_file.end(), [&](const Case& one) {
          return one.way == way && one.variations[0].name() == scenario.name();
        });
        if (same == of_file.end()) {
          of_file.push_back({{scenario}, way});
        } else {
          same->variations.push_back(scenario);
        }
      }
    }
    cases.insert(cases.end(), of_file.begin(), of_file.end());
  }
  return cases;
}

// ---- Expectations ----

// Expects every token of each sequence once and in order.
void ExpectWholeAnswer(const Scenario& scenario, const Observed& seen) {
  const uint32_t sequences = std::max(scenario.generate().n(), 1U);
  const auto had = static_cast<uint32_t>(scenario.generate().resume().token_ids_size());
  ASSERT_EQ(seen.events_size(), 1 + sequences * (scenario.length() - had + 1));
  EXPECT_EQ(seen.events(0).started().model_version(), "0");  // the version of the first server
  for (uint32_t s = 0; s < sequences; ++s) {
    std::vector<v1::GenerateResponse> events;
    for (int i = 1; i < seen.events_size(); ++i) {
      if (seen.events(i).sequence() == s) events.push_back(seen.events(i));
    }
    ASSERT_EQ(events.size(), scenario.length() - had + 1);
    for (uint32_t i = had; i < scenario.length(); ++i) {
      v1::GenerateResponse expected = DeltaEvent(i, std::string(1, TokenOf(s, i)));
      expected.set_sequence(s);
      EXPECT_EQ(events[i - had].ShortDebugString(), expected.ShortDebugString());
    }
    const v1::Usage& usage = events.back().finished().usage();
    EXPECT_EQ(usage.generated_tokens(), scenario.length());
    EXPECT_EQ(usage.prompt_tokens(), s == 0 ? 5U : 0U);  // the prompt is counted once
    EXPECT_EQ(usage.cached_tokens(), s == 0 ? 3U : 0U);
    EXPECT_EQ(usage.cache_miss(), s == 0 ? v1::CACHE_MISS_DIVERGED : v1::CACHE_MISS_UNSPECIFIED);
    EXPECT_EQ(usage.diverged_at(), s == 0 ? 1U : 0U);
  }
}

void ExpectWholeScores(const Scenario& scenario, const Observed& seen) {
  const std::vector<std::string> texts = TextsOf(scenario.score());
  ASSERT_EQ(static_cast<size_t>(seen.answers_size()), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    Answer expected;
    double sum = 0;
    for (size_t at = UnscoredOf(scenario.score()); at < texts[i].size(); ++at) {
      expected.add_token_ids(static_cast<uint32_t>(texts[i][at]));
      expected.add_values(ScoreOf(texts[i][at], at));
      sum += ScoreOf(texts[i][at], at);
    }
    expected.set_logprob(sum);  // to the last bit
    EXPECT_EQ(seen.answers(static_cast<int>(i)).SerializeAsString(), expected.SerializeAsString())
        << seen.answers(static_cast<int>(i)).ShortDebugString();
  }
}

std::vector<std::string> SeenTexts(const Scenario& scenario, const Observed& seen) {
  std::vector<std::string> texts;
  if (scenario.has_generate()) texts.resize(std::max(scenario.generate().n(), 1U));
  for (const v1::GenerateResponse& event : seen.events()) {
    if (event.sequence() < texts.size()) texts[event.sequence()] += event.delta().text();
  }
  for (const Answer& answer : seen.answers()) {
    texts.emplace_back(answer.token_ids().begin(), answer.token_ids().end());
  }
  return texts;
}

std::vector<uint32_t> ScoredOf(const Observed& seen) {
  std::vector<uint32_t> positions;
  for (const v1::GenerateResponse& event : seen.events()) {
    const v1::ScoreChunk& scores = event.prompt_scores();
    for (int i = 0; i < scores.token_ids_size(); ++i) {
      positions.push_back(scores.first_index() + static_cast<uint32_t>(i));
    }
  }
  return positions;
}

uint32_t TokensOf(const Observed& seen) {
  return std::accumulate(seen.events().begin(), seen.events().end(), 0U,
                         [](uint32_t sum, const v1::GenerateResponse& event) {
                           return sum + event.delta().token_ids_size();
                         });
}

// Checks what the application was told of the calls that resumed its stream.
void ExpectWent(const Expect& expected, const Observed& seen) {
  if (expected.resumed().empty()) return;
  ASSERT_EQ(seen.resumed_size(), expected.resumed_size());
  for (int i = 0; i < expected.resumed_size(); ++i) {
    const Went& want = expected.resumed(i);
    const Went& went = seen.resumed(i);
    if (want.has_cause()) {
      EXPECT_EQ(went.cause(), want.cause());
    }
    EXPECT_THAT(went.cause_has(), HasSubstr(want.cause_has()));
    if (want.has_exact()) {
      EXPECT_EQ(went.exact(), want.exact());
    }
    if (want.has_tries()) {
      EXPECT_EQ(went.tries(), want.tries());
    }
    EXPECT_GE(went.until_sent_ms(), want.until_sent_ms());
  }
}

void ExpectSeen(const Scenario& scenario, Way way, const Observed& seen) {
  const Expect& expected = scenario.expect();
  if (expected.code().empty() && !expected.cancelled()) {
    EXPECT_EQ(seen.code(), OK) << seen.message();
    EXPECT_EQ(seen.exact(), !expected.inexact());
  } else if (!expected.cancelled()) {
    EXPECT_THAT(expected.code(), Contains(seen.code())) << seen.message();
  }
  EXPECT_EQ(seen.cancelled(), expected.cancelled()) << seen.message();
  for (const std::string& part : expected.message_has()) {
    EXPECT_THAT(seen.message(), HasSubstr(part));
  }
  if (expected.whole() && scenario.has_generate()) ExpectWholeAnswer(scenario, seen);
  if (expected.whole() && scenario.has_score()) ExpectWholeScores(scenario, seen);
  if (!expected.texts().empty()) {
    EXPECT_THAT(SeenTexts(scenario, seen), ElementsAreArray(expected.texts()));
  }
  for (int i = 0; i < expected.answers_size(); ++i) {
    ASSERT_LT(i, seen.answers_size());
    EXPECT_EQ(seen.answers(i).ShortDebugString(), expected.answers(i).ShortDebugString());
  }
  EXPECT_THAT(ScoredOf(seen), ElementsAreArray(expected.scored()));
  std::string hand_over;
  for (const v1::GenerateResponse& event : seen.events()) hand_over += event.hand_over().chunk();
  EXPECT_EQ(hand_over, expected.hand_over());
  if (expected.has_events()) {
    EXPECT_EQ(seen.events_size(), expected.events());
  }
  if (expected.has_tokens()) {
    EXPECT_EQ(TokensOf(seen), expected.tokens());
  }
  if (expected.has_received_tokens()) {
    EXPECT_EQ(seen.received_tokens(), expected.received_tokens());
  }
  if (expected.has_retry_after_ms()) {
    EXPECT_EQ(seen.retry_after_ms(), expected.retry_after_ms());
  }
  ExpectWent(expected, seen);
  if (IsPython(way) || expected.resuming().empty()) return;
  ASSERT_EQ(seen.resuming_size(), expected.resuming_size());
  for (int i = 0; i < expected.resuming_size(); ++i) {
    EXPECT_EQ(seen.resuming(i).ShortDebugString(), expected.resuming(i).ShortDebugString());
  }
}

void ExpectAsked(const Scenario& scenario, const Observed& seen, const ScriptedModel& model) {
  const Expect& expected = scenario.expect();
  const std::vector<ScriptedModel::Asked> asked = model.asked();
  if (expected.has_calls()) {
    EXPECT_EQ(asked.size(), expected.calls());
  }
  if (expected.whole()) {
    EXPECT_TRUE(model.all_used());
  }
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(asked[i].got, asked[i].wanted) << "call " << i;
    const bool told = i > 0 && i <= static_cast<size_t>(expected.states_size());
    EXPECT_EQ(asked[i].state, told ? expected.states(static_cast<int>(i) - 1) : "");
  }
  if (!expected.code().empty() || expected.cancelled()) return;
  std::vector<std::pair<uint32_t, uint32_t>> resumed;
  for (const Went& went : seen.resumed()) resumed.emplace_back(went.sequence(), went.tokens());
  std::sort(resumed.begin(), resumed.end());
  EXPECT_THAT(resumed, ElementsAreArray(model.resumed()));
  EXPECT_EQ(seen.resumes(), resumed.size());
}

void ExpectRequestIds(const Scenario& scenario, Way way, const Observed& seen,
                      const std::vector<std::string>& of_calls) {
  const std::string mine = scenario.options().request_id();
  const std::string id = mine.empty() ? "fake-1" : mine;
  // A listener is not told the request id of a call that ends well.
  if (way != LISTENER && seen.code() == OK && !seen.cancelled()) {
    EXPECT_EQ(seen.request_id(), id);
  }
  if (scenario.options().max_attempts() > 1) return;  // attempts of gRPC are one call
  const auto& expected = scenario.expect().request_ids();
  for (size_t i = 0; i < of_calls.size(); ++i) {
    const bool given = i < static_cast<size_t>(expected.size());
    EXPECT_EQ(of_calls[i], given ? expected[static_cast<int>(i)] : i == 0 ? mine : id);
  }
}

void RunScenario(const Scenario& scenario, Way way) {
  ScriptedModel model(scenario);
  const bool cuts = scenario.then() == CUT;
  std::vector<std::unique_ptr<Place>> places;
  std::vector<std::string> addresses;
  for (int i = 0; i < (cuts ? 2 : 1); ++i) {
    places.push_back(std::make_unique<Place>(cuts));
    addresses.push_back(places.back()->address());
    places.back()->server.SetAnyAnswer(
        [&model, i](const google::protobuf::Message& request) { return model.Answer(request, i); });
  }
  const std::string address =
      cuts ? absl::StrCat("ipv4:", addresses[0], ",", addresses[1]) : addresses[0];
  const auto cut = [&] { places[static_cast<size_t>(model.asked()[0].server)]->gate->Cut(); };
  const Observed seen =
      IsPython(way) ? RunPython(scenario, way, address, cut) : RunCpp(scenario, way, address, cut);
  // On a slow machine a deadline may pass before a server gets the call.
  const int64_t deadline = scenario.options().deadline_ms();
  const bool too_late = scenario.expect().calls() > 0 && model.asked().empty() &&
                        seen.code() == DEADLINE_EXCEEDED && deadline > 0 && deadline < 60'000;
  if (!too_late) {
    ExpectSeen(scenario, way, seen);
    ExpectAsked(scenario, seen, model);
  }
  std::vector<std::string> ids;
  for (size_t i = 0; i < places.size(); ++i) {
    if (!cuts) ExpectRequestIds(scenario, way, seen, places[i]->server.request_ids());
    // The end of each call tells its server. The end of the client comes only later.
    places[i]->server.WaitForCancellations(model.stalls(static_cast<int>(i)));
  }
  if (IsPython(way)) {
    PythonClient()->Send("close\n");
    EXPECT_EQ(PythonClient()->ReadLine(), "closed");
  }
  if (!too_late) return;
  Scenario longer = scenario;
  longer.mutable_options()->set_deadline_ms(2 * deadline);
  RunScenario(longer, way);
}

class ContractTest : public testing::TestWithParam<Case> {
 protected:
  // Without this, gRPC shuts down with the last object of each scenario, which can take ten
  // seconds.
  static void SetUpTestSuite() { grpc_init(); }
  static void TearDownTestSuite() { grpc_shutdown(); }
};

TEST_P(ContractTest, Holds) {
  if (IsPython(GetParam().way) && PythonClient() == nullptr) {
    GTEST_SKIP() << "no Python with gRPC: install python3-grpcio";
  }
  for (const Scenario& scenario : GetParam().variations) {
    SCOPED_TRACE(scenario.calls().empty() ? ""
                                          : scenario.calls(0).ShortDebugString().substr(0, 200));
    RunScenario(scenario, GetParam().way);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Clients, ContractTest, testing::ValuesIn(Cases()),
                         [](const auto& suite) { return suite.param.name(); });

}  // namespace
}  // namespace aft::client::contract
