#include "server/config/memory_plan.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/memory.h"

namespace aft::server {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

// The program without a model, most of it LibTorch, as measured (deploy/sizing.md).
constexpr int64_t kProgramBytes = 140 * kMebibyte;

// A connection with the beginning of a request and a part of its answer.
constexpr int64_t kHttpConnectionBytes = 24 << 10;
// The memory that OpenSSL allocates for a connection with a record under way in each direction.
constexpr int64_t kTlsConnectionBytes = 48 << 10;

// The bounds for max_infer_streams if the config does not set it.
constexpr int32_t kLeastInferStreams = 2;
constexpr int32_t kMostInferStreams = 128;

}  // namespace

int64_t ClientMemory(const LimitsConfig& limits) {
  return limits.max_memory_bytes != 0 ? limits.max_memory_bytes : MemoryLimit() / 4;
}

int64_t TensorMessageBytes(const LimitsConfig& limits) {
  if (limits.max_tensor_message_bytes != 0) return limits.max_tensor_message_bytes;
  return std::max(64 * kMebibyte, limits.max_message_bytes);
}

int64_t GrpcMemory(const LimitsConfig& limits) {
  constexpr int64_t kLeast = 256 * kMebibyte;
  const int64_t clients = ClientMemory(limits);
  const int64_t incomplete =
      std::max(std::max(limits.max_infer_streams, kLeastInferStreams) * limits.max_message_bytes,
               TensorMessageBytes(limits));
  return std::max({clients + clients / 2, clients + incomplete, kLeast});
}

int32_t InferStreams(const LimitsConfig& limits) {
  if (limits.max_infer_streams != 0) return limits.max_infer_streams;
  const int64_t beside = GrpcMemory(limits) - ClientMemory(limits);
  return static_cast<int32_t>(
      std::min<int64_t>(beside / limits.max_message_bytes, kMostInferStreams));
}

std::vector<MemoryPart> MemoryOfConfig(const ServerConfig& config) {
  const int64_t clients = ClientMemory(config.limits);
  std::vector<MemoryPart> parts = {
      {MemoryUse::kProgram, "the program", kProgramBytes},
      {MemoryUse::kClients, "limits.max_memory_bytes", clients},
      {MemoryUse::kGrpc,
       absl::StrCat(
           "gRPC's buffers in addition (by limits.max_memory_bytes, max_message_bytes for ",
           "each of ", InferStreams(config.limits), " max_infer_streams)"),
       GrpcMemory(config.limits) - clients},
      {MemoryUse::kStates, "states.max_bytes", config.states.max_bytes},
  };
  if (!config.http_address.empty()) {
    const bool tls = !config.security.tls.cert_file.empty();
    parts.push_back(
        {MemoryUse::kProgram, "http.max_connections",
         config.http.max_connections * (kHttpConnectionBytes + (tls ? kTlsConnectionBytes : 0))});
  }
  return parts;
}

std::vector<MemoryPart> MemoryOfModel(const ModelConfig& config, const ModelInfo& info) {
  const std::string model =
      absl::StrCat(" of model \"", config.name, "\", version \"", config.version, "\"");
  std::vector<MemoryPart> parts;
  if (info.memory_bytes > 0) {
    parts.push_back(
        {MemoryUse::kModels,
         absl::StrCat(config.device == "cpu" ? "weights, slots and workspace" : "pinned buffers",
                      model),
         info.memory_bytes});
  }
  if (info.state_bytes == 0) return parts;  // an encoder keeps no sequences
  if (config.device == "cpu") {
    parts.push_back({MemoryUse::kPrefixCaches, absl::StrCat("prefix_cache_bytes", model),
                     config.prefix_cache_bytes});
  }
  parts.push_back(
      {MemoryUse::kParking, absl::StrCat("parking_bytes", model), config.parking_bytes});
  return parts;
}

int64_t SumOf(const std::vector<MemoryPart>& parts) {
  return std::accumulate(parts.begin(), parts.end(), int64_t{0},
                         [](int64_t sum, const MemoryPart& part) { return sum + part.bytes; });
}

std::string DescribeMemory(const std::vector<MemoryPart>& parts) {
  std::string text;
  for (const MemoryPart& part : parts) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", Mebibytes(part.bytes), " ", part.what);
  }
  return text;
}

absl::Status CheckMemory(const std::vector<MemoryPart>& parts, int64_t limit) {
  const int64_t sum = SumOf(parts);
  if (sum <= limit) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the config may take ", Mebibytes(sum), " of memory, and the machine or its ",
                   "container has ", Mebibytes(limit), ": ", DescribeMemory(parts)));
}

}  // namespace aft::server
