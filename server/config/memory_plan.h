#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/api/model_runner.h"
#include "server/config/config.h"

// How much of the memory of its machine or container the server may take: every budget of the
// config at its limit, and the loaded models. Pure functions.
namespace aft::server {

enum class MemoryUse { kProgram, kClients, kGrpc, kStates, kModels, kPrefixCaches, kParking };

inline constexpr std::array<const char*, 7> kMemoryUses = {
    "program", "clients", "grpc", "states", "models", "prefix_caches", "parking"};

struct MemoryPart {
  MemoryUse use;
  std::string what;  // the field of the config that bounds it, or a description
  int64_t bytes = 0;
};

// LimitsConfig::max_memory_bytes, or the value that 0 stands for.
int64_t ClientMemory(const LimitsConfig& limits);

// LimitsConfig::max_tensor_message_bytes, or the value that 0 stands for.
int64_t TensorMessageBytes(const LimitsConfig& limits);

// The memory that gRPC may have in buffers. It covers messages that are also charged to clients,
// and incomplete messages, which are not. Each ModelStreamInfer stream may have one incomplete
// message of max_message_bytes, or one stream may have the largest message with tensors. Above this
// limit, gRPC cancels calls of any client.
int64_t GrpcMemory(const LimitsConfig& limits);

// LimitsConfig::max_infer_streams, or the value that 0 stands for: as many streams as gRPC's memory
// has room for incomplete messages, at least 2 and at most 128.
int32_t InferStreams(const LimitsConfig& limits);

// All parts without models.
std::vector<MemoryPart> MemoryOfConfig(const ServerConfig& config);

// The parts that a loaded version of a model adds. Memory of a GPU does not count.
std::vector<MemoryPart> MemoryOfModel(const ModelConfig& config, const ModelInfo& info);

int64_t SumOf(const std::vector<MemoryPart>& parts);

// Lists every part with its size, for people to read.
std::string DescribeMemory(const std::vector<MemoryPart>& parts);

// RESOURCE_EXHAUSTED if the parts take more than `limit`; the message names every part.
absl::Status CheckMemory(const std::vector<MemoryPart>& parts, int64_t limit);

}  // namespace aft::server
