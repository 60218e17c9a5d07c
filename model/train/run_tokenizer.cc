#include "model/train/run_tokenizer.h"

#include <filesystem>
#include <system_error>

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

bool Exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Removes the files that LoadTokenizer would read, so that those of two runs do not mix.
absl::Status RemoveFiles(const std::string& dir) {
  for (const char* name : kTokenizerFileNames) {
    std::error_code error;
    fs::remove(absl::StrCat(dir, "/", name), error);
    if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat(dir, "/", name));
  }
  return absl::OkStatus();
}

absl::Status Copy(const std::string& from, const std::string& to) {
  for (const char* name : kTokenizerFileNames) {
    const std::string path = absl::StrCat(from, "/", name);
    if (!Exists(path)) continue;
    AFT_ASSIGN_OR_RETURN(const std::string text, ReadVocabularyText(path));
    AFT_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(to, "/", name), {text}));
  }
  return absl::OkStatus();
}

absl::Status CheckSame(const std::string& given, const std::string& dir) {
  for (const char* name : kTokenizerFileNames) {
    const std::string one = absl::StrCat(given, "/", name), other = absl::StrCat(dir, "/", name);
    bool same = Exists(one) == Exists(other);
    if (same && Exists(one)) {
      AFT_ASSIGN_OR_RETURN(const std::string wanted, ReadVocabularyText(one));
      AFT_ASSIGN_OR_RETURN(const std::string found, ReadVocabularyText(other));
      same = wanted == found;
    }
    if (!same) {
      return absl::FailedPreconditionError(
          absl::StrCat(other, ": differs from ", one,
                       ": the run began with another tokenizer; choose another ", "--out"));
    }
  }
  return absl::OkStatus();
}

absl::Status Learn(const TrainConfig& config, const std::vector<TextFile>& files,
                   const std::string& out_dir) {
  std::vector<absl::string_view> texts;
  for (const TextFile& file : files) texts.push_back(file.train());
  const bool bpe = config.network.tokenizer == "bpe";
  const std::string content = bpe ? TrainBpe(texts, config.network.vocab_size)
                                  : CollectCharacters(texts, config.network.vocab_size);
  const char* const name = bpe ? kTokenizerFileName : kCharsFileName;
  return WriteFileAtomically(absl::StrCat(out_dir, "/", name), {content});
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> RunTokenizer(const TrainConfig& config,
                                                              const std::vector<TextFile>& files,
                                                              const std::string& out_dir,
                                                              bool resumed) {
  if (config.network.tokenizer != "bytes" && resumed) {
    if (!config.tokenizer.empty()) AFT_RETURN_IF_ERROR(CheckSame(config.tokenizer, out_dir));
  } else if (config.network.tokenizer != "bytes") {
    if (!config.tokenizer.empty()) {
      AFT_RETURN_IF_ERROR(
          LoadTokenizer(config.network.tokenizer, config.tokenizer, config.network.vocab_size)
              .status());
    }
    AFT_RETURN_IF_ERROR(RemoveFiles(out_dir));
    AFT_RETURN_IF_ERROR(config.tokenizer.empty() ? Learn(config, files, out_dir)
                                                 : Copy(config.tokenizer, out_dir));
  }
  return LoadTokenizer(config.network.tokenizer, out_dir, config.network.vocab_size);
}

}  // namespace aft
