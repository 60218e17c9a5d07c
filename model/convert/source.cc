#include "model/convert/source.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>

#include "ATen/ops/cat.h"
#include "ATen/ops/zeros.h"
#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/strings/substitute.h"
#include "base/check.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/checkpoint/safetensors_header.h"
#include "model/config/tensors.h"
#include "model/network/check_tensors.h"

namespace aft {
namespace {

bool Fits(const std::vector<int64_t>& sizes, const std::vector<int64_t>& shape) {
  if (sizes.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == Source::kAny ? sizes[i] < 1 : sizes[i] != shape[i]) return false;
  }
  return true;
}

std::string ShownShape(const std::vector<int64_t>& shape) {
  return absl::StrCat("[",
                      absl::StrJoin(shape, ", ",
                                    [](std::string* out, int64_t size) {
                                      absl::StrAppend(out, size == Source::kAny
                                                               ? std::string("any")
                                                               : absl::StrCat(size));
                                    }),
                      "]");
}

// Makes w.band from the band |t - t'| < window of a position bias w [T, T], [query, key]: causal
// [T, s], column = t - t'; bidirectional [T, 2s - 1], column = t - t' + s - 1. Biases outside the
// band are dropped; places without a key are 0. REQUIRES: 1 <= window <= T.
at::Tensor BandOf(const at::Tensor& w, int64_t window, bool causal) {
  const int64_t rows = w.size(0);
  AFT_CHECK(window >= 1 && window <= rows);
  const int64_t columns = causal ? window : 2 * window - 1;
  at::Tensor band = at::zeros({rows, columns}, w.options());
  for (int64_t column = 0; column < columns; ++column) {
    const int64_t offset = causal ? column : column - (window - 1);  // t - t'
    const at::Tensor diagonal = w.diagonal(-offset);
    band.select(1, column)
        .narrow(0, std::max<int64_t>(offset, 0), diagonal.size(0))
        .copy_(diagonal);
  }
  return band;
}

// The rows of several tensors, each transposed before if it is asked for.
DeferredTensor Joined(std::vector<DeferredTensor> rows, bool transposed,
                      std::vector<int64_t> shape) {
  const bool same = absl::c_all_of(
      rows, [&rows](const DeferredTensor& part) { return part.type == rows[0].type; });
  const at::ScalarType type = same ? rows[0].type : at::kFloat;
  const auto make = [rows = std::move(rows), transposed, type]() -> absl::StatusOr<at::Tensor> {
    std::vector<at::Tensor> parts;
    for (const DeferredTensor& row : rows) {
      AFT_ASSIGN_OR_RETURN(const at::Tensor part, row.make());
      parts.push_back((transposed ? part.t() : part).to(type));
    }
    return (parts.size() == 1 ? parts[0] : at::cat(parts)).contiguous();
  };
  return {type, std::move(shape), make};
}

}  // namespace

absl::Status Source::Error(const std::string& name, const std::string& problem) const {
  const auto entry = files_->entries().find(InFiles(name));
  const bool sharded = entry != files_->entries().end() && !entry->second.shard.empty();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", ShownTensorName(InFiles(name)), "': ", problem,
                   sharded ? absl::StrCat(" (in ", entry->second.shard, ")") : ""));
}

absl::StatusOr<std::vector<int64_t>> Source::Shape(const std::string& name,
                                                   const std::vector<int64_t>& shape) const {
  const auto found = files_->entries().find(InFiles(name));
  if (found == files_->entries().end()) {
    // A module around the one that was trained, as of DataParallel, gives all names a prefix.
    const std::string suffix = absl::StrCat(".", InFiles(name));
    const auto longer = absl::c_find_if(files_->entries(), [&suffix](const auto& entry) {
      return absl::EndsWith(entry.first, suffix);
    });
    if (longer == files_->entries().end()) return Error(name, "is missing");
    return Error(name, absl::StrCat("is missing, but '", ShownTensorName(longer->first),
                                    "' is there: save the state_dict() of the module inside"));
  }
  if (!Fits(found->second.shape, shape)) {
    return Error(name, absl::StrCat("has shape [", absl::StrJoin(found->second.shape, ", "),
                                    "], expected ", ShownShape(shape)));
  }
  return found->second.shape;
}

absl::StatusOr<DeferredTensor> Source::Take(const std::string& name,
                                            const std::vector<int64_t>& shape) {
  AFT_ASSIGN_OR_RETURN(std::vector<int64_t> sizes, Shape(name, shape));
  const std::string in_files = InFiles(name);
  const std::string& dtype = files_->entries().at(in_files).dtype;
  if (dtype != "F32" && dtype != "BF16" && dtype != "F16" && dtype != "F64") {
    return Error(name, absl::StrCat("holds ", dtype, ", expected F32, BF16, F16 or F64"));
  }
  targets_.emplace(in_files, "");
  const at::ScalarType type = dtype == "F64" ? at::kFloat : SafetensorsType(dtype);
  const auto make = [files = files_, in_files, type,
                     problem = Error(name, "holds a value that is not finite in fp32")]()
      -> absl::StatusOr<at::Tensor> {
    AFT_ASSIGN_OR_RETURN(const at::Tensor tensor, files->Read(in_files));
    at::Tensor made = tensor.to(type).contiguous();
    if (AllFinite(made)) return made;
    return files->paths().empty() ? problem : InFile(files->path(), problem);
  };
  return DeferredTensor(type, std::move(sizes), make);
}

absl::StatusOr<DeferredTensor> Source::TakeFlat(const std::string& name,
                                                std::vector<int64_t> shape) {
  const auto count = [](const std::vector<int64_t>& sizes) {
    return absl::c_accumulate(sizes, int64_t{1}, std::multiplies<>());
  };
  const auto found = files_->entries().find(InFiles(name));
  const bool fits = found != files_->entries().end() && count(found->second.shape) == count(shape);
  AFT_ASSIGN_OR_RETURN(DeferredTensor tensor, Take(name, fits ? found->second.shape : shape));
  const auto make = [shape, make = std::move(tensor.make)]() -> absl::StatusOr<at::Tensor> {
    AFT_ASSIGN_OR_RETURN(const at::Tensor made, make());
    return made.view(shape);
  };
  return DeferredTensor(tensor.type, std::move(shape), make);
}

absl::StatusOr<at::Tensor> Source::Read(const std::string& name,
                                        const std::vector<int64_t>& shape) {
  AFT_ASSIGN_OR_RETURN(const DeferredTensor tensor, Take(name, shape));
  return tensor.make();
}

absl::StatusOr<at::Tensor> Source::ReadMask(const std::string& name,
                                            const std::vector<int64_t>& shape) {
  AFT_RETURN_IF_ERROR(Shape(name, shape).status());
  const std::string in_files = InFiles(name);
  const std::string& dtype = files_->entries().at(in_files).dtype;
  if (dtype != "BOOL") return Error(name, absl::StrCat("holds ", dtype, ", expected BOOL"));
  targets_.emplace(in_files, "");
  return files_->Read(in_files);
}

bool Source::HasPrefix(const std::string& prefix) const {
  const std::string in_files = InFiles(prefix);
  const auto first = files_->entries().lower_bound(in_files);
  return first != files_->entries().end() && absl::StartsWith(first->first, in_files);
}

absl::Status TakeNetwork(Source& source, const NetworkConfig& config, const std::string& prefix,
                         absl::Span<const Renamed> layers, DeferredTensors* tensors) {
  for (const TensorSpec& spec : ExpectedTensors(config)) {
    if (tensors->count(spec.name) != 0) continue;
    // [layers.N.]name.leaf
    absl::string_view name = spec.name;
    std::string number;
    if (absl::ConsumePrefix(&name, "layers.")) {
      number = std::string(name.substr(0, name.find('.')));
      name.remove_prefix(number.size() + 1);
    }
    const auto layer = absl::c_find_if(layers, [name](const Renamed& known) {
      return name == known.name || absl::StartsWith(name, absl::StrCat(known.name, "."));
    });
    AFT_CHECK(layer != layers.end());
    const std::string source_names = absl::Substitute(layer->source, number);
    const std::vector<std::string> parts = absl::StrSplit(source_names, ' ');
    std::vector<int64_t> shape = spec.shape;
    shape[0] /= static_cast<int64_t>(parts.size());
    if (layer->transposed) absl::c_reverse(shape);
    std::vector<DeferredTensor> rows;
    for (const std::string& part : parts) {
      const std::string source_name =
          absl::StrCat(prefix, part, name.substr(std::strlen(layer->name)));
      AFT_ASSIGN_OR_RETURN(rows.emplace_back(), layer->flat ? source.TakeFlat(source_name, shape)
                                                            : source.Take(source_name, shape));
      source.Became(source_name, spec.name);
    }
    (*tensors)[spec.name] =
        rows.size() == 1 && !layer->transposed
            ? rows[0]
            : Joined(std::move(rows), layer->transposed && shape.size() == 2, spec.shape);
  }
  return absl::OkStatus();
}

absl::Status Source::Finish(Import* import) const {
  constexpr size_t kMostShown = 10;
  std::vector<std::string> unknown;
  size_t count = 0;
  for (const auto& [name, entry] : files_->entries()) {
    const auto target = targets_.find(name);
    if (target != targets_.end()) {
      import->mapped.push_back({name, entry.dtype, entry.shape, target->second});
    } else if (++count <= kMostShown) {
      unknown.push_back(absl::StrCat("'", ShownTensorName(name), "'"));
    }
  }
  import->read.insert(import->read.end(), files_->paths().begin(), files_->paths().end());
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(count == 1 ? "tensor " : "tensors ", absl::StrJoin(unknown, ", "),
                   count > kMostShown ? absl::StrCat(" and ", count - kMostShown, " more") : "",
                   count == 1 ? ": has" : ": have", " no place in the network that is imported"));
}

absl::StatusOr<NetworkConfig> MixerModuleConfig(Source& source, const std::string& query) {
  AFT_ASSIGN_OR_RETURN(const std::vector<int64_t> weight,
                       source.Shape(query + ".weight", {Source::kAny, Source::kAny}));
  NetworkConfig config;
  config.architecture = Architecture::kMixer;
  config.d_model = weight[1];
  config.n_layers = 1;
  config.qkv_bias = source.Has(query + ".bias");
  config.tokenizer.clear();
  config.mixer.hidden = weight[0] == config.d_model ? 0 : weight[0];
  return config;
}

absl::Status UseBias(Source& source, const std::string& name, const at::Tensor& w,
                     std::optional<int64_t> window, const std::string& layer, NetworkConfig* config,
                     DeferredTensors* tensors) {
  const int64_t rows = w.size(0);
  if (w.size(1) != rows) {
    return source.Error(name, absl::StrCat("has shape [", rows, ", ", w.size(1),
                                           "], expected as many rows as columns"));
  }
  config->max_seq_len = rows;
  MixerConfig& mixer = config->mixer;
  if (!window.has_value()) {
    mixer.kind = MixerKind::kAftFull;
    mixer.bias = BiasForm::kFull;
    mixer.band_rows = rows;
    (*tensors)[layer + "mixer.w.full"] = w;
    source.Became(name, layer + "mixer.w.full");
    return absl::OkStatus();
  }
  mixer.kind = MixerKind::kAftLocal;
  mixer.window = std::min(*window, rows);
  source.Became(name, mixer.window == 0 ? "(a window of 0 has no bias)" : layer + "mixer.w.band");
  if (mixer.window == 0) return absl::OkStatus();
  mixer.band_rows = rows;
  (*tensors)[layer + "mixer.w.band"] = BandOf(w, mixer.window, mixer.causal);
  return absl::OkStatus();
}

absl::Status UseBytes(const std::string& wanted, Import* import) {
  if (import->config.vocab_size != 256) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", import->config.vocab_size, " tokens: ", wanted));
  }
  import->config.tokenizer = "bytes";
  return absl::OkStatus();
}

}  // namespace aft
