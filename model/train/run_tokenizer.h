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

// Makes or loads the tokenizer of data, of which the part that is trained on is given.
using TokenizerSource = absl::FunctionRef<absl::StatusOr<std::shared_ptr<const Tokenizer>>(
    const std::vector<absl::string_view>& training_texts)>;

// The tokenizer of a run, by config.network's `tokenizer.kind`. Its files lie in `out_dir`, beside
// the checkpoint, from then on. A `resumed` run continues with those that it finds there. A new one
// copies the files of config.tokenizer, or else of config.initial, or where neither is given learns
// a vocabulary from `training_texts` (train_bpe.h).
// Errors: those of LoadTokenizer; FAILED_PRECONDITION when a resumed run began with other files
// than those of the folder.
absl::StatusOr<std::shared_ptr<const Tokenizer>> RunTokenizer(
    const TrainConfig& config, const std::vector<absl::string_view>& training_texts,
    const std::string& out_dir, bool resumed);

// The tokenizer of the checkpoint in `dir`.
absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadRunTokenizer(const NetworkConfig& network,
                                                                  const std::string& dir);

}  // namespace aft
