#include "server/config/memory_plan.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/config/loader.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_files.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = int64_t{1} << 20;
constexpr int64_t kShippedModel = 40 * kMebibyte;

ModelInfo Info(int64_t memory_bytes) {
  ModelInfo info;
  info.memory_bytes = memory_bytes;
  info.state_bytes = 1;
  return info;
}

// The config in a container with `memory` bytes, a quarter of which is max_memory_bytes by default.
ServerConfig ConfigFor(int64_t memory) {
  ServerConfig config;
  config.limits.max_memory_bytes = memory / 4;
  return config;
}

std::vector<MemoryPart> All(const ServerConfig& config, const ModelConfig& model, int64_t bytes) {
  std::vector<MemoryPart> parts = MemoryOfConfig(config);
  for (const MemoryPart& part : MemoryOfModel(model, Info(bytes))) parts.push_back(part);
  return parts;
}

TEST(MemoryPlanTest, TheShippedModelFitsIntoTheShippedContainersByDefault) {
  for (const int64_t container : {1024 * kMebibyte, 2048 * kMebibyte}) {
    EXPECT_EQ(CheckMemory(All(ConfigFor(container), ModelConfig(), kShippedModel), container),
              absl::OkStatus());
  }
}

TEST(MemoryPlanTest, TheShippedConfigsFitIntoTheContainersOfTheDeployment) {
  ASSERT_THAT(ReadBytes("deploy/k8s/cpu/resources.yaml"),
              HasSubstr("limits:\n              memory: 1Gi\n"));
  constexpr int64_t kContainer = 1024 * kMebibyte;
  for (const char* path :
       {"config/container", "k8s/cpu/server", "k8s/edge/server", "k8s/ha/server"}) {
    auto config = LoadServerConfig(absl::StrCat("deploy/", path, ".textproto"));
    ASSERT_EQ(config.status(), absl::OkStatus());
    ASSERT_EQ(config->limits.max_memory_bytes, 0);
    config->limits.max_memory_bytes = kContainer / 4;
    EXPECT_EQ(CheckMemory(All(*config, config->models.at(0), kShippedModel), kContainer),
              absl::OkStatus())
        << path;
  }
}

TEST(MemoryPlanTest, APlanThatExceedsTheMemoryNamesEveryPartAndItsField) {
  ServerConfig config;
  config.limits.max_memory_bytes = 512 * kMebibyte;
  config.states.max_bytes = 256 * kMebibyte;
  ModelConfig model;
  model.name = "austen";
  model.prefix_cache_bytes = 64 * kMebibyte;
  model.parking_bytes = 32 * kMebibyte;
  const std::vector<MemoryPart> parts = All(config, model, 100 * kMebibyte);
  const int64_t sum = SumOf(parts);
  EXPECT_EQ(sum, (140 + 512 + 256 + 256 + 100 + 64 + 32) * kMebibyte);
  EXPECT_EQ(CheckMemory(parts, sum), absl::OkStatus());
  EXPECT_THAT(
      CheckMemory(parts, sum - 1),
      StatusIs(absl::StatusCode::kResourceExhausted,
               AllOf(HasSubstr("may take 1360.0 MiB"), HasSubstr("140.0 MiB the program"),
                     HasSubstr("512.0 MiB limits.max_memory_bytes"),
                     HasSubstr("256.0 MiB gRPC's buffers"), HasSubstr("256.0 MiB states.max_bytes"),
                     HasSubstr("100.0 MiB weights, slots and workspace of model \"austen\""),
                     HasSubstr("64.0 MiB prefix_cache_bytes of model \"austen\""),
                     HasSubstr("32.0 MiB parking_bytes of model \"austen\""))));
  model.device = "cuda:0";
  EXPECT_THAT(DescribeMemory(All(config, model, 100 * kMebibyte)),
              HasSubstr("100.0 MiB pinned buffers of model \"austen\""));
}

TEST(MemoryPlanTest, ConnectionsOfHttpCountAndMoreSoWithTls) {
  ServerConfig config = ConfigFor(1024 * kMebibyte);
  const int64_t before = SumOf(MemoryOfConfig(config));
  config.http_address = "127.0.0.1:0";
  config.http.max_connections = 1024;
  EXPECT_EQ(SumOf(MemoryOfConfig(config)), before + 24 * kMebibyte);
  config.security.tls.cert_file = "c";
  EXPECT_THAT(DescribeMemory(MemoryOfConfig(config)), HasSubstr("72.0 MiB http.max_connections"));
}

TEST(MemoryPlanTest, OnlyPartsInTheMachinesMemoryCount) {
  ModelConfig model;
  model.device = "cuda:0";
  EXPECT_EQ(SumOf(MemoryOfModel(model, Info(0))), model.parking_bytes);
  ModelInfo encoder = Info(kMebibyte);
  encoder.state_bytes = 0;
  EXPECT_EQ(SumOf(MemoryOfModel(ModelConfig(), encoder)), kMebibyte);
}

TEST(MemoryPlanTest, GrpcMayUseMoreMemoryThanClients) {
  LimitsConfig limits;
  for (const int64_t bytes : {kMebibyte, 64 * kMebibyte, 4096 * kMebibyte}) {
    limits.max_memory_bytes = bytes;
    EXPECT_GE(GrpcMemory(limits), bytes + bytes / 2);
  }
}

// gRPC's buffers hold one message of each stream of requests, complete or not, in addition to all
// memory that clients are charged for.
TEST(MemoryPlanTest, OneMessageOfEachStreamOfRequestsFitsIntoGrpcsBuffers) {
  for (const int64_t clients : {1, 64, 255, 256, 512, 1024, 65'536}) {
    for (const int64_t message :
         {int64_t{1} << 16, 4 * kMebibyte, 64 * kMebibyte, 2047 * kMebibyte}) {
      for (const int32_t configured : {0, 1, 2, 128, 65'536}) {
        LimitsConfig limits;
        limits.max_memory_bytes = clients * kMebibyte;
        limits.max_message_bytes = message;
        limits.max_infer_streams = configured;
        const int32_t streams = InferStreams(limits);
        EXPECT_LE(limits.max_memory_bytes + streams * message, GrpcMemory(limits));
        if (configured != 0) {
          EXPECT_EQ(streams, configured);
          continue;
        }
        EXPECT_GE(streams, 2);
        EXPECT_LE(streams, 128);
      }
    }
  }
}

TEST(MemoryPlanTest, OneMessageWithTensorsFitsIntoGrpcsBuffers) {
  LimitsConfig limits;
  EXPECT_EQ(TensorMessageBytes(limits), 64 * kMebibyte);
  limits.max_message_bytes = 65 * kMebibyte;
  EXPECT_EQ(TensorMessageBytes(limits), 65 * kMebibyte);
  limits.max_message_bytes = 4 * kMebibyte;
  limits.max_memory_bytes = 100 * kMebibyte;
  limits.max_tensor_message_bytes = 1024 * kMebibyte;
  EXPECT_EQ(TensorMessageBytes(limits), 1024 * kMebibyte);
  EXPECT_EQ(GrpcMemory(limits), 1124 * kMebibyte);
}

TEST(MemoryPlanTest, TheDefaultNumberOfStreamsOfRequestsFollowsTheMemory) {
  const auto streams = [](int64_t memory) { return InferStreams(ConfigFor(memory).limits); };
  EXPECT_EQ(streams(128 * kMebibyte), 56);  // gRPC has 256 MiB at least
  EXPECT_EQ(streams(1024 * kMebibyte), 32);
  EXPECT_EQ(streams(4096 * kMebibyte), 128);
  EXPECT_EQ(streams(65'536 * kMebibyte), 128);
}

TEST(MemoryPlanTest, MoreStreamsOfRequestsThanTheMemoryHasRoomForAreRefused) {
  ServerConfig config = ConfigFor(1024 * kMebibyte);
  config.limits.max_infer_streams = 32;
  EXPECT_EQ(SumOf(MemoryOfConfig(config)), SumOf(MemoryOfConfig(ConfigFor(1024 * kMebibyte))));
  config.limits.max_infer_streams = 128;
  EXPECT_THAT(CheckMemory(MemoryOfConfig(config), 1024 * kMebibyte),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("512.0 MiB gRPC's buffers"),
                             HasSubstr("each of 128 max_infer_streams"))));
}

}  // namespace
}  // namespace aft::server
