#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "server/config/client.h"
#include "server/config/config.h"
#include "server/engine/sequence_state.h"
#include "server/observability/metrics.h"
#include "server/states/state_access.h"
#include "tests/support/status_matchers.h"

namespace aft::server {

inline SequenceState StateAfter(int64_t tokens, size_t bytes = 1000) {
  SequenceState state;
  state.tokens = tokens;
  state.snapshot = std::string(bytes, 's');
  return state;
}

// States of known clients. Tasks that the executor should run are run at once.
inline std::unique_ptr<StateAccess> OpenStates(const StatesConfig& config, StateMetrics& metrics) {
  auto states =
      StateAccess::Create(config, /*known_clients=*/true, metrics,
                          [](const Client&, size_t, const std::function<void()>& task) { task(); });
  EXPECT_TRUE(states.ok()) << states.status();
  return *std::move(states);
}

// Makes a call that answers by a callback, and waits for its answer.
template <typename Answer>
Answer Await(const std::function<void(std::function<void(Answer)>)>& call) {
  std::promise<Answer> answered;
  call([&](Answer answer) {
    // The other thread gets a copy, because ThreadSanitizer does not see how Debian's Abseil shares
    // a status.
    const absl::Status status = StatusOf(answer);
    if (!status.ok()) answer = absl::Status(status.code(), status.message());
    answered.set_value(std::move(answer));
  });
  return answered.get_future().get();
}

}  // namespace aft::server
