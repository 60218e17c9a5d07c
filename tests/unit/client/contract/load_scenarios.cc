#include "tests/unit/client/contract/load_scenarios.h"

#include <cstdint>
#include <fstream>
#include <sstream>

#include "aft/v1/inference.pb.h"
#include "base/check.h"
#include "tests/support/proto_text.h"

namespace aft::client::contract {
namespace {

// The default requests of scenarios.
constexpr char kGenerate[] =
    "model: 'm' text: 'hello' sampling { temperature: 0.5 } stop { max_tokens: 8 } store {} "
    "previous { state_id: 's' }";
constexpr char kScore[] = "model: 'm' text: 'abcdefg' output { top_logprobs: 2 }";
constexpr char kEncode[] = "model: 'm' text: 'ab' pooling: POOLING_MEAN normalize: true";

template <typename Request>
Request WithDefaults(const char* defaults, const Request& given) {
  auto request = FromText<Request>(defaults);
  request.MergeFrom(given);
  return request;
}

template <typename Request>
Request WithoutText(Request request) {
  if (!request.texts().empty()) request.clear_text();
  return request;
}

void FillIn(Scenario& scenario) {
  if (scenario.has_generate()) {
    *scenario.mutable_generate() = WithDefaults(kGenerate, scenario.generate());
    if (scenario.prompt_bytes() > 0) {
      scenario.mutable_generate()->set_text(std::string(scenario.prompt_bytes(), 'x'));
    }
  } else if (scenario.has_score()) {
    *scenario.mutable_score() = WithoutText(WithDefaults(kScore, scenario.score()));
  } else {
    AFT_CHECK(scenario.has_encode());
    *scenario.mutable_encode() = WithoutText(WithDefaults(kEncode, scenario.encode()));
  }
  Options& options = *scenario.mutable_options();
  if (!options.has_max_attempts()) options.set_max_attempts(1);
  if (!options.has_deadline_ms()) options.set_deadline_ms(60'000);
  if (scenario.length() == 0) scenario.set_length(8);
  for (Call& call : *scenario.mutable_calls()) {
    if (call.times() == 0) call.set_times(1);
    if (!call.has_code()) call.set_code(call.events().empty() ? UNAVAILABLE : OK);
    if (call.message().empty()) call.set_message("the server went away");
  }
}

Scenario With(Scenario scenario, Code code) {
  const auto put = [code](Code varied) { return varied == VARIED ? code : varied; };
  for (Call& call : *scenario.mutable_calls()) call.set_code(put(call.code()));
  for (Went& went : *scenario.mutable_expect()->mutable_resumed()) {
    if (went.has_cause()) went.set_cause(put(went.cause()));
  }
  for (int& expected : *scenario.mutable_expect()->mutable_code()) {
    expected = put(static_cast<Code>(expected));
  }
  return scenario;
}

}  // namespace

std::vector<Scenario> LoadScenarios(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  std::vector<Scenario> all;
  auto file = FromText<Scenarios>(text.str());
  for (Scenario& scenario : *file.mutable_scenarios()) {
    FillIn(scenario);
    if (scenario.vary_code().empty()) scenario.add_vary_code(VARIED);
    if (scenario.vary_after().empty()) {
      scenario.add_vary_after(scenario.calls().empty() ? 0 : scenario.calls(0).after());
    }
    for (const int code : scenario.vary_code()) {
      for (const uint32_t after : scenario.vary_after()) {
        all.push_back(With(scenario, static_cast<Code>(code)));
        if (!scenario.calls().empty()) all.back().mutable_calls(0)->set_after(after);
      }
    }
  }
  return all;
}

}  // namespace aft::client::contract
