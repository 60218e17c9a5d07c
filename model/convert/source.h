#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/import.h"
#include "model/convert/weight_files.h"

namespace aft {

// The tensors that an import starts from. Each is taken once, by name and shape, in its own format;
// what nobody took in the end is an error, so that no weight is lost in silence. Errors:
// INVALID_ARGUMENT naming the tensor, what was found and what was expected; else those of reading
// it. Thread-compatible.
class Source {
 public:
  // Any size, in an expected shape.
  static constexpr int64_t kAny = -1;

  explicit Source(WeightFiles files) : files_(std::move(files)) {}

  bool Has(const std::string& name) const { return files_.entries().count(name) > 0; }

  // Whether some tensor's name starts so.
  bool HasPrefix(const std::string& prefix) const;

  // The tensor's shape, which fits the expected one; nothing is taken.
  absl::StatusOr<std::vector<int64_t>> Shape(const std::string& name,
                                             const std::vector<int64_t>& shape) const;

  // The tensor, contiguous: fp32, bf16 or fp16 as it is, fp64 as fp32. Every value is finite.
  absl::StatusOr<at::Tensor> Take(const std::string& name, const std::vector<int64_t>& shape);

  // The tensor as it is; its type must be bool.
  absl::StatusOr<at::Tensor> TakeMask(const std::string& name, const std::vector<int64_t>& shape);

  // Says what a tensor that was taken became (MappedTensor::target).
  void Became(const std::string& name, const std::string& target) { targets_[name] = target; }

  // The source's own tensor, if it is there, which the checkpoint does not need.
  void Ignore(const std::string& name, const std::string& reason) {
    if (Has(name)) Became(name, reason);
  }

  // Names every tensor that was neither taken nor ignored; else tells `import` what became of them.
  absl::Status Finish(Import* import) const;

  // "tensor 'name': problem", and its file where there are several.
  absl::Status Error(const std::string& name, const std::string& problem) const;

 private:
  const WeightFiles files_;
  std::map<std::string, std::string> targets_;  // of those that were taken
};

// A projection or norm of our networks, "ffn.up" for that of every layer, and its name in the
// source, where $0 stands for the layer's number; of several names, the rows one after the other.
struct Renamed {
  const char* name;
  const char* source;
  bool transposed = false;  // matrices are [in, out] there
};

// Takes what a network of this config still needs beside `tensors`, and adds it there, in the
// source's format; parts that differ in theirs, as fp32. The names in the source begin with
// `prefix`.
absl::Status TakeNetwork(Source& source, const NetworkConfig& config, const std::string& prefix,
                         absl::Span<const Renamed> layers, TensorMap* tensors);

// The config of an architecture "mixer" around the projections of which `query` is a name: [hid,
// d], with biases or without. Its kind is still to be set.
absl::StatusOr<NetworkConfig> MixerModuleConfig(Source& source, const std::string& query);

// Makes `config` an AFT-full with the position bias w [T, T], [query, key], or with a window an
// AFT-local of which only the band |t - t'| < window counts, and adds the table to `tensors` below
// `layer`. At most T tokens either way. INVALID_ARGUMENT names `name`, the source's of w.
absl::Status UseBias(Source& source, const std::string& name, const at::Tensor& w,
                     std::optional<int64_t> window, const std::string& layer, NetworkConfig* config,
                     TensorMap* tensors);

// Gives the import the bytes tokenizer, which needs no files. INVALID_ARGUMENT when its vocabulary
// has another size; `wanted` says what that needs.
absl::Status UseBytes(const std::string& wanted, Import* import);

}  // namespace aft
