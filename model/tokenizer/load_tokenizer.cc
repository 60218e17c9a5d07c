
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/tokenizers.h"
#include "model/tokenizer/vocabulary_file.h"

namespace aft {
namespace {

absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(absl::string_view kind,
                                                      const std::string& dir) {
  if (kind == "bytes") return MakeByteTokenizer();
  if (kind == "bpe") {
    const std::string path = absl::StrCat(dir, "/", kTokenizerFileName);
    std::error_code error;
    if (std::filesystem::exists(path, error)) {
      return LoadTokenizerJson(path, absl::StrCat(dir, "/", kTokenizerConfigFileName));
    }
    return LoadBpeTokenizer(absl::StrCat(dir, "/", kVocabFileName),
                            absl::StrCat(dir, "/", kMergesFileName));
  }
  if (kind == "chars") {
    const std::string path = absl::StrCat(dir, "/", kCharsFileName);
    AFT_ASSIGN_OR_RETURN(std::vector<std::string> characters, ReadTokenList(path));
    return InFile(path, MakeCharTokenizer(std::move(characters)));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      dir, ": tokenizer.kind: must be \"bytes\", \"chars\" or \"bpe\", got \"", kind, "\""));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(absl::string_view kind,
                                                               const std::string& checkpoint_dir,
                                                               int64_t vocab_size) {
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Load(kind, checkpoint_dir));
  if (tokenizer->vocab_size() > vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_dir, ": the tokenizer (\"", kind, "\") has ", tokenizer->vocab_size(),
        " tokens, more than the network's vocab_size, ", vocab_size));
  }
  return tokenizer;
}

}  // namespace aft
