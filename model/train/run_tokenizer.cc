#include "model/train/run_tokenizer.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/train_bpe.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

namespace fs = std::filesystem;

// The names and contents of the tokenizer files of a folder.
using Files = std::vector<std::pair<std::string, std::string>>;

absl::StatusOr<Files> ReadFiles(const std::string& dir) {
  Files files;
  for (const char* name : kTokenizerFileNames) {
    const std::string path = absl::StrCat(dir, "/", name);
    std::error_code ignored;
    if (!fs::exists(path, ignored)) continue;
    AFT_ASSIGN_OR_RETURN(std::string text, ReadVocabularyText(path));
    files.emplace_back(name, std::move(text));
  }
  return files;
}

// Writes `files` and removes other tokenizer files that another run has left in `dir`, because
// LoadTokenizer would read them too. `dir` may hold the only copy of `files`, so they are replaced
// and never removed.
absl::Status WriteFiles(const std::string& dir, const Files& files) {
  for (const char* name : kTokenizerFileNames) {
    if (absl::c_any_of(files, [name](const auto& file) { return file.first == name; })) continue;
    std::error_code error;
    fs::remove(absl::StrCat(dir, "/", name), error);
    if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(dir, "/", name));
  }
  for (const auto& [name, text] : files) {
    AFT_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(dir, "/", name), {text}));
  }
  return absl::OkStatus();
}

// Learns the vocabulary from `texts`. The tokenizer "world" always has the shipped vocabulary.
Files MakeFiles(const NetworkConfig& network, const std::vector<absl::string_view>& texts) {
  if (network.tokenizer == "bpe") {
    return {{kTokenizerFileName, TrainBpe(texts, network.vocab_size)}};
  }
  if (network.tokenizer == "world") {
    return {{kWorldFileName, std::string(ShippedWorldVocabulary())}};
  }
  return {{kCharsFileName, CollectCharacters(texts, network.vocab_size)}};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> RunTokenizer(
    const TrainConfig& config, const std::vector<absl::string_view>& training_texts,
    const std::string& out_dir, bool resumed) {
  const NetworkConfig& network = config.network;
  const bool bytes = network.tokenizer == "bytes";  // this tokenizer has no files
  const std::string& folder = config.tokenizer.empty() ? config.initial : config.tokenizer;
  Files given;
  std::error_code ignored;
  const bool gone = resumed && !fs::exists(folder, ignored);
  if (!folder.empty() && !bytes && !gone) {
    const absl::Status loads =
        LoadTokenizer(network.tokenizer, folder, network.vocab_size).status();
    if (absl::IsNotFound(loads) && config.tokenizer.empty()) {
      return absl::NotFoundError(
          absl::StrCat("initial: ", folder, " has no tokenizer of the kind \"", network.tokenizer,
                       "\" (", loads.message(), "); name the folder of one in `tokenizer`"));
    }
    AFT_RETURN_IF_ERROR(loads);
    AFT_ASSIGN_OR_RETURN(given, ReadFiles(folder));
  }
  if (resumed && !given.empty()) {
    AFT_ASSIGN_OR_RETURN(const Files begun_with, ReadFiles(out_dir));
    if (begun_with != given) {
      return absl::FailedPreconditionError(
          absl::StrCat(folder, ": not the tokenizer with which the run in ", out_dir,
                       " began; choose another --out"));
    }
  } else if (!resumed && !bytes) {
    AFT_RETURN_IF_ERROR(
        WriteFiles(out_dir, given.empty() ? MakeFiles(network, training_texts) : given));
  }
  return LoadRunTokenizer(network, out_dir);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadRunTokenizer(const NetworkConfig& network,
                                                                  const std::string& dir) {
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer,
                       LoadTokenizer(network.tokenizer, dir, network.vocab_size));
  return MakeFramedTokenizer(std::move(tokenizer), network.text_prefix, network.text_suffix);
}

}  // namespace aft
