#include <random>

#include "ATen/core/grad_mode.h"
#include "model/train/objective.h"

namespace aft {

std::mt19937_64 SeededBy(uint64_t seed, uint64_t stream) {
  std::seed_seq sequence{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32),
                         static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
  return std::mt19937_64(sequence);
}

bool RestoreTensor(const SafetensorsFile& file, const std::string& name, at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const auto found = file.tensors.find(name);
  if (found == file.tensors.end() || found->second.sizes() != tensor.sizes()) return false;
  tensor.copy_(found->second);
  return true;
}

absl::StatusOr<std::unique_ptr<Objective>> MakeObjective(const TrainConfig& config,
                                                         TokenizerSource tokenizer) {
  switch (config.objective) {
    case ObjectiveKind::kNextTokens:
      return MakeNextTokens(config, tokenizer);
    case ObjectiveKind::kMaskedTokens:
      return MakeMaskedTokens(config, tokenizer);
    case ObjectiveKind::kLabels:
      return config.learns_images() ? MakeImageLabels(config) : MakeTextLabels(config, tokenizer);
    case ObjectiveKind::kPairs:
      return MakePairs(config, tokenizer);
  }
  return absl::InternalError("unknown objective");
}

}  // namespace aft
