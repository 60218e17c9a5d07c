#include "model/convert/tokenizer_files.h"

#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

constexpr int64_t kBytes = 256;

// The bytes tokenizer, which needs no files; `wanted` says what a vocabulary of another size needs.
absl::Status UseBytes(const std::string& wanted, Import* import) {
  if (import->config.vocab_size != kBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the vocabulary has ", import->config.vocab_size, " tokens: ", wanted));
  }
  import->config.tokenizer = "bytes";
  return absl::OkStatus();
}

}  // namespace

absl::Status UseCharacters(const std::string& chars_path, Import* import) {
  if (chars_path.empty()) {
    return UseBytes("its characters must be given (--chars), or be the 256 bytes", import);
  }
  AFT_ASSIGN_OR_RETURN(std::vector<std::string> characters, ReadTokenList(chars_path));
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> tokenizer,
                       InFile(chars_path, MakeCharTokenizer(std::move(characters))));
  if (tokenizer->vocab_size() != import->config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(chars_path, ": has ", tokenizer->vocab_size(),
                                                   " characters, but the embedding ",
                                                   import->config.vocab_size, " rows"));
  }
  AFT_ASSIGN_OR_RETURN(import->files[kCharsFileName], ReadVocabularyText(chars_path));
  import->config.tokenizer = "chars";
  return absl::OkStatus();
}

absl::Status UseBpe(const std::string& dir, Import* import) {
  const std::string vocab = absl::StrCat(dir, "/", kVocabFileName);
  const std::string merges = absl::StrCat(dir, "/", kMergesFileName);
  std::error_code error;
  if (!std::filesystem::exists(vocab, error) && !std::filesystem::exists(merges, error)) {
    return UseBytes(absl::StrCat("needs ", vocab, " and ", merges), import);
  }
  AFT_RETURN_IF_ERROR(LoadTokenizer("bpe", dir, import->config.vocab_size).status());
  AFT_ASSIGN_OR_RETURN(import->files[kVocabFileName], ReadVocabularyText(vocab));
  AFT_ASSIGN_OR_RETURN(import->files[kMergesFileName], ReadVocabularyText(merges));
  import->config.tokenizer = "bpe";
  return absl::OkStatus();
}

}  // namespace aft
