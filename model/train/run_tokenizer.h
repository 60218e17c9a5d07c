#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/api/tokenizer.h"
#include "model/train/corpus.h"
#include "model/train/train_config.h"

namespace aft {

// The tokenizer of a run, by config.network's `tokenizer.kind`. Its files lie in `out_dir`, beside
// the checkpoint, from then on. A `resumed` run continues with those that it finds there. A new one
// copies the files of config.tokenizer, or where that is empty learns a vocabulary from the
// training parts of `files` (train_bpe.h).
// Errors: those of LoadTokenizer; FAILED_PRECONDITION when a resumed run began with other files
// than those of config.tokenizer.
absl::StatusOr<std::shared_ptr<const Tokenizer>> RunTokenizer(const TrainConfig& config,
                                                              const std::vector<TextFile>& files,
                                                              const std::string& out_dir,
                                                              bool resumed);

}  // namespace aft
