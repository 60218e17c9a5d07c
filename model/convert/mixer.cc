#include <string>
#include <utility>
#include <vector>

#include "ATen/ops/cat.h"
#include "ATen/ops/eye.h"
#include "ATen/ops/zeros.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/config/kinds.h"
#include "model/config/tensors.h"
#include "model/convert/import.h"
#include "model/convert/source.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

constexpr char kPrefix[] = "layers.0.mixer.";

absl::StatusOr<NetworkConfig> ParseMixerModule(const std::string& json) {
  AFT_ASSIGN_OR_RETURN(NetworkConfig config, ParseNetworkConfig(json));
  if (config.architecture != Architecture::kMixer) {
    return absl::InvalidArgumentError("architecture: must be mixer");
  }
  return config;
}

// The matrix that makes q, k and v equal to the vectors of queries, keys and values.
absl::StatusOr<at::Tensor> IdentityOfParts(const NetworkConfig& config) {
  std::vector<at::Tensor> parts;
  for (const PackedPart& part :
       SpecOf(config.mixer.kind).packed(config.mixer, MixerWidth(config))) {
    if (part.columns != config.d_model) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor 'qkv.weight': is missing, and the identity cannot replace it: ", part.name,
          " of ", MixerKindName(config.mixer.kind), " has ", part.columns,
          " columns, but the vectors have ", config.d_model));
    }
    parts.push_back(at::eye(config.d_model));
  }
  return at::cat(parts);
}

// The default of a tensor of the mixer that the user has not given.
absl::StatusOr<at::Tensor> Default(const NetworkConfig& config, const std::string& name,
                                   const TensorSpec& spec) {
  if (name == "qkv.weight") return IdentityOfParts(config);
  if (name == "qkv.bias" || name == "out.bias") return at::zeros(spec.shape);
  if (name == "out.weight" && spec.shape[0] == spec.shape[1]) return at::eye(spec.shape[0]);
  return absl::InvalidArgumentError(absl::StrCat("tensor '", name, "': is missing"));
}

}  // namespace

absl::StatusOr<Import> ImportMixer(const std::string& config_path, WeightFiles files) {
  Import import;
  AFT_ASSIGN_OR_RETURN(const std::string json, ReadVocabularyText(config_path));
  AFT_ASSIGN_OR_RETURN(import.config, InFile(config_path, ParseMixerModule(json)));
  Source source(std::move(files));
  for (const TensorSpec& spec : ExpectedTensors(import.config)) {
    const std::string name(absl::StripPrefix(spec.name, kPrefix));
    DeferredTensor& tensor = import.tensors[spec.name];
    if (source.Has(name)) {
      AFT_ASSIGN_OR_RETURN(tensor, source.Take(name, spec.shape));
      source.Became(name, spec.name);
    } else {
      AFT_ASSIGN_OR_RETURN(tensor, Default(import.config, name, spec));
    }
  }
  AFT_RETURN_IF_ERROR(source.Finish(&import));
  import.read.insert(import.read.begin(), config_path);
  return import;
}

}  // namespace aft
