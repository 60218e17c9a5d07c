#pragma once

#include <cstdint>
#include <vector>

#include "tests/unit/engine/engine_fixture.h"

namespace aft::server {

using Tokens = std::vector<TokenId>;

inline Tokens Joined(Tokens text, const Tokens& more) {
  text.insert(text.end(), more.begin(), more.end());
  return text;
}

// Prompts that share beginnings.
class EnginePrefixTest : public EngineTest {
 protected:
  EnginePrefixTest() {
    model.slots = 4;
    model.max_step_tokens = 64;
    options.model.prefix_cache_interval_tokens = 0;
  }

  // Serves the request and checks its answer.
  Usage Serve(const GenerationRequest& request) {
    const Sink sink = Submit(request).sink;
    const Outcome outcome = sink->Wait();
    EXPECT_EQ(outcome.status, absl::OkStatus());
    EXPECT_EQ(sink->tokens(), Expected(request));
    EXPECT_EQ(outcome.usage.prompt_tokens, request.prompt.size());
    return outcome.usage;
  }
  Usage Serve(const Tokens& prompt, int32_t max_tokens = 3) {
    return Serve(Request(prompt, max_tokens));
  }
  Usage UsageOf(const Accepted& accepted, const GenerationRequest& request) {
    ExpectServed(accepted.sink, request);
    return accepted.sink->Wait().usage;
  }

  // The prompt tokens that steps have read, for all requests.
  double read() const { return metrics.prompt_tokens.Value(); }
};

}  // namespace aft::server
