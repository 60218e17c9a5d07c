#include "server/call/call_states.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

#include "aft/v1/inference.pb.h"
#include "gtest/gtest.h"
#include "model/api/model_runner.h"
#include "prometheus/registry.h"
#include "server/call/call_ids.h"
#include "server/call/decode_pool.h"
#include "server/config/config.h"
#include "server/engine/request.h"
#include "server/engine/sequence_state.h"
#include "server/registry/served_model.h"
#include "tests/support/redis_server.h"
#include "tests/support/states.h"
#include "tests/support/thread_name.h"

namespace aft::server {
namespace {

TEST(CallStatesTest, WithoutAStateAStreamIsReadOnADecodeThread) {
  FakeRedis redis([](const RedisCommand&) { return "$0\r\n\r\n"; });
  StatesConfig config;
  config.max_bytes = 100'000;
  config.redis.address = redis.address();
  config.redis.timeout = std::chrono::minutes(1);
  prometheus::Registry registry;
  StateMetrics metrics(registry);
  const std::unique_ptr<StateAccess> access = OpenStates(config, metrics);
  DecodePool decoders;
  CallStates states(*access, decoders, metrics);
  const Client client;
  v1::Resume resume;
  resume.set_resume_id(std::string(32, 'a'));
  const ModelInfo info;
  GenerationRequest request;
  std::promise<std::string> thread;
  states.FindStart(client, resume, info, request, [&] { thread.set_value(ThreadName()); });
  EXPECT_EQ(thread.get_future().get(), "aft-decode");
  EXPECT_EQ(request.start, nullptr);
}

// One state is held while another one is written or sent. A stream without this room leaves none.
TEST(CallStatesTest, AStreamThatIsToSurviveHoldsRoomForTwoOfItsLargestStates) {
  StatesConfig config;
  config.checkpoint_tokens = 64;
  prometheus::Registry registry;
  StateMetrics metrics(registry);
  const std::unique_ptr<StateAccess> access = OpenStates(config, metrics);
  DecodePool decoders;
  CallStates states(*access, decoders, metrics);
  const auto client = std::make_shared<const Client>();
  ServedModel model;
  model.info.vocab_size = 256;
  model.info.state_bytes = 1000;
  GenerationRequest request;
  request.prompt = {1, 2, 3};
  request.stop.max_tokens = 7;
  for (const bool fits : {false, true}) {
    size_t asked = 0;
    states.Survive(client, model, CallIds(), request, [&](size_t bytes) {
      asked = bytes;
      return fits;
    });
    const int64_t state = MaxStateBytes(model.info, /*tokens=*/10, /*added=*/0);
    // The output may have 7 tokens. The vector of their ids may take twice their memory.
    EXPECT_EQ(asked, static_cast<size_t>(2 * (state + 2 * 256)) + 2 * 7 * sizeof(TokenId));
    EXPECT_EQ(states.kept_bytes(), fits ? asked : 0);
    EXPECT_EQ(!states.resume_id().empty(), fits);
    EXPECT_EQ(request.survival.sink != nullptr, fits);
  }
}

}  // namespace
}  // namespace aft::server
