#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ATen/core/Tensor.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_replace.h"
#include "absl/types/span.h"
#include "model/checkpoint/safetensors.h"
#include "model/config/config.h"
#include "model/convert/import.h"
#include "model/convert/weight_files.h"

namespace aft {

// The tensors that an import starts from. Each is taken once, by name and shape, in its own format.
// A tensor that was not taken in the end is an error, so that no weight is lost silently. Errors:
// INVALID_ARGUMENT naming the tensor, what was found and what was expected; otherwise those of
// reading it. Thread-compatible.
class Source {
 public:
  // Stands for any size in an expected shape.
  static constexpr int64_t kAny = -1;

  // Parts of the names that callers use, and what the files' names have in their place.
  using Names = std::vector<std::pair<std::string, std::string>>;

  explicit Source(WeightFiles files, Names names = {})
      : files_(std::make_shared<const WeightFiles>(std::move(files))), names_(std::move(names)) {}

  bool Has(const std::string& name) const { return files_->entries().count(InFiles(name)) > 0; }

  // Whether the name of some tensor starts with `prefix`.
  bool HasPrefix(const std::string& prefix) const;

  // The tensor's shape, which must fit the expected one. This does not take the tensor.
  absl::StatusOr<std::vector<int64_t>> Shape(const std::string& name,
                                             const std::vector<int64_t>& shape) const;

  // Takes the tensor, which is read when it is made, and is then contiguous: fp32, bf16 or fp16 as
  // it is, fp64 as fp32. Every value is finite.
  absl::StatusOr<DeferredTensor> Take(const std::string& name, const std::vector<int64_t>& shape);

  // Takes a tensor that may have its numbers in another shape, in the same order.
  absl::StatusOr<DeferredTensor> TakeFlat(const std::string& name, std::vector<int64_t> shape);

  // Takes the tensor and reads it.
  absl::StatusOr<at::Tensor> Read(const std::string& name, const std::vector<int64_t>& shape);

  // Takes a tensor of the type bool and reads it.
  absl::StatusOr<at::Tensor> ReadMask(const std::string& name, const std::vector<int64_t>& shape);

  // Records what a tensor that was taken became (MappedTensor::target).
  void Became(const std::string& name, const std::string& target) {
    targets_[InFiles(name)] = target;
  }

  // Records that the checkpoint does not need a tensor, which need not be there.
  void Ignore(const std::string& name, const std::string& reason) {
    if (Has(name)) Became(name, reason);
  }

  // INVALID_ARGUMENT names the tensors that were neither taken nor ignored, at most ten. Otherwise
  // it adds to `import` the files and what became of the tensors.
  absl::Status Finish(Import* import) const;

  // "tensor 'name': problem", with the tensor's file when there are several files.
  absl::Status Error(const std::string& name, const std::string& problem) const;

 private:
  std::string InFiles(const std::string& name) const { return absl::StrReplaceAll(name, names_); }

  const std::shared_ptr<const WeightFiles> files_;
  const Names names_;
  std::map<std::string, std::string> targets_;  // of the tensors that were taken or ignored
};

// A projection, norm or tensor of our networks ("ffn.up" stands for that of every layer), and its
// name in the source, where $0 stands for the layer's number. With several names, separated by
// spaces, their rows follow each other.
struct Renamed {
  const char* name;
  const char* source;
  bool transposed = false;  // the source's matrices are [in, out]
  bool flat = false;        // the source's tensors may have another shape (Source::TakeFlat)
};

// Takes the tensors that a network of this config needs and `tensors` does not have yet, and adds
// them to `tensors`. They keep the source's format; a tensor made of parts with different formats
// is fp32. The names in the source begin with `prefix`.
absl::Status TakeNetwork(Source& source, const NetworkConfig& config, const std::string& prefix,
                         absl::Span<const Renamed> layers, DeferredTensors* tensors);

// The config of an architecture "mixer". `query` is the name of one of its projections: [hid, d],
// with a bias or without. The caller has to set the kind.
absl::StatusOr<NetworkConfig> MixerModuleConfig(Source& source, const std::string& query);

// Makes `config` an AFT-full with the position bias w [T, T], [query, key] or, with a window, an
// AFT-local, which uses only the band |t - t'| < window of w. Adds the table to `tensors`, with a
// name that begins with `layer`. Texts have at most T tokens in both cases. INVALID_ARGUMENT names
// `name`, the name of w in the source.
absl::Status UseBias(Source& source, const std::string& name, const at::Tensor& w,
                     std::optional<int64_t> window, const std::string& layer, NetworkConfig* config,
                     DeferredTensors* tensors);

// Gives the import the bytes tokenizer, which needs no files. INVALID_ARGUMENT when the vocabulary
// does not have 256 tokens; `wanted` tells the user what is needed then.
absl::Status UseBytes(const std::string& wanted, Import* import);

}  // namespace aft
