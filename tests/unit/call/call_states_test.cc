#include "server/call/call_states.h"

#include <chrono>
#include <future>
#include <memory>
#include <string>

#include "aft/v1/inference.pb.h"
#include "gtest/gtest.h"
#include "model/api/model_runner.h"
#include "prometheus/registry.h"
#include "server/call/decode_pool.h"
#include "server/config/config.h"
#include "server/engine/request.h"
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

}  // namespace
}  // namespace aft::server
