#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "server/config/config.h"

// What the server may take of its machine's or container's memory: every budget of the config at
// its most, and the models that are loaded. Pure functions.
namespace aft::server {

enum class MemoryUse { kProgram, kClients, kGrpc, kStates, kModels, kPrefixCaches, kParking };

inline constexpr std::array<const char*, 7> kMemoryUses = {
    "program", "clients", "grpc", "states", "models", "prefix_caches", "parking"};

struct MemoryPart {
  MemoryUse use;
  std::string what;  // the field of the config that bounds it, or what it is
  int64_t bytes = 0;
};

// LimitsConfig::max_memory_bytes, or what stands for 0.
int64_t ClientMemory(const LimitsConfig& limits);

// LimitsConfig::max_tensor_message_bytes, or what stands for 0.
int64_t TensorMessageBytes(const LimitsConfig& limits);

// What gRPC may have in buffers: messages that are charged to clients too, and beside them those
// that are not complete, of which each ModelStreamInfer stream may have one of max_message_bytes,
// or one stream the largest message with tensors. Beyond it gRPC cancels calls, whoever's.
int64_t GrpcMemory(const LimitsConfig& limits);

// LimitsConfig::max_infer_streams, or what stands for 0: so many that the messages which are not
// complete fit beside those that are charged, 128 at most and 2 at least.
int32_t InferStreams(const LimitsConfig& limits);

// All that is there without a model.
std::vector<MemoryPart> MemoryOfConfig(const ServerConfig& config);

// What one version of a model adds once it is loaded. A GPU's memory does not count.
std::vector<MemoryPart> MemoryOfModel(const ModelConfig& config, const ModelInfo& info);

int64_t SumOf(const std::vector<MemoryPart>& parts);

// Every part with its size, for people.
std::string DescribeMemory(const std::vector<MemoryPart>& parts);

// RESOURCE_EXHAUSTED: more than `limit`; names every part.
absl::Status CheckMemory(const std::vector<MemoryPart>& parts, int64_t limit);

}  // namespace aft::server
