#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/api/tokenizer.h"
#include "model/train/train_config.h"

namespace aft {

// Makes or loads the tokenizer of some data. `training_texts` are the part that is trained on.
using TokenizerSource = absl::FunctionRef<absl::StatusOr<std::shared_ptr<const Tokenizer>>(
    const std::vector<absl::string_view>& training_texts)>;

// The tokenizer of a run, of the `tokenizer.kind` of config.network. It puts the tokenizer's files
// into `out_dir`, next to the checkpoint. A `resumed` run continues with the files that are there,
// also when the folder that the config names no longer exists. A new run copies the files of
// config.tokenizer or, without it, of config.initial. When neither is given it learns a vocabulary
// from `training_texts` (train_bpe.h), or takes the shipped one of "world". Errors: those of
// LoadTokenizer; FAILED_PRECONDITION when a resumed run began with other files than those of the
// folder that the config names.
absl::StatusOr<std::shared_ptr<const Tokenizer>> RunTokenizer(
    const TrainConfig& config, const std::vector<absl::string_view>& training_texts,
    const std::string& out_dir, bool resumed);

// The tokenizer of the checkpoint in `dir`.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadRunTokenizer(const NetworkConfig& network,
                                                                  const std::string& dir);

}  // namespace aft
