#include "server/config/memory_plan.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace aft::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kMebibyte = int64_t{1} << 20;

ModelInfo Info(int64_t memory_bytes) {
  ModelInfo info;
  info.memory_bytes = memory_bytes;
  info.state_bytes = 1;
  return info;
}

// Of a container with so much memory: what limits.max_memory_bytes is by default.
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

TEST(MemoryPlanTest, TheDefaultsServeTheShippedModelInTheContainersThatWeShip) {
  constexpr int64_t kShippedModel = 40 * kMebibyte;
  for (const int64_t container : {1024 * kMebibyte, 2048 * kMebibyte}) {
    EXPECT_EQ(CheckMemory(All(ConfigFor(container), ModelConfig(), kShippedModel), container),
              absl::OkStatus());
  }
}

TEST(MemoryPlanTest, WhatExceedsTheMemoryNamesEveryPartAndItsField) {
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
}

TEST(MemoryPlanTest, OnlyWhatIsInTheMachinesMemoryCounts) {
  ModelConfig model;
  model.device = "cuda:0";
  EXPECT_EQ(SumOf(MemoryOfModel(model, Info(0))), model.parking_bytes);
  ModelInfo encoder = Info(kMebibyte);
  encoder.state_bytes = 0;
  EXPECT_EQ(SumOf(MemoryOfModel(ModelConfig(), encoder)), kMebibyte);
}

TEST(MemoryPlanTest, GrpcHasMoreThanClientsMay) {
  LimitsConfig limits;
  for (const int64_t bytes : {kMebibyte, 64 * kMebibyte, 4096 * kMebibyte}) {
    limits.max_memory_bytes = bytes;
    EXPECT_GE(GrpcMemory(limits), bytes + bytes / 2);
  }
}

}  // namespace
}  // namespace aft::server
