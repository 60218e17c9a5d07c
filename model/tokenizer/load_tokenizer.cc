
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
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
    const std::string config_path = absl::StrCat(dir, "/", kTokenizerConfigFileName);
    std::error_code error;
    if (std::filesystem::exists(path, error)) return LoadTokenizerJson(path, config_path);
    AFT_ASSIGN_OR_RETURN(const std::optional<EndOfText> eos, ReadEndOfText(config_path));
    return LoadBpeTokenizer(absl::StrCat(dir, "/", kVocabFileName),
                            absl::StrCat(dir, "/", kMergesFileName), eos);
  }
  if (kind == "chars") {
    const std::string path = absl::StrCat(dir, "/", kCharsFileName);
    AFT_ASSIGN_OR_RETURN(std::vector<std::string> characters, ReadTokenList(path));
    return InFile(path, MakeCharTokenizer(std::move(characters)));
  }
  if (kind == "world") return LoadWorldTokenizer(absl::StrCat(dir, "/", kWorldFileName));
  return absl::InvalidArgumentError(absl::StrCat(
      dir, ": tokenizer.kind: must be \"bytes\", \"chars\", \"bpe\" or \"world\", got \"", kind,
      "\""));
}

class FramedTokenizer : public Tokenizer {
 public:
  FramedTokenizer(std::shared_ptr<const Tokenizer> tokenizer, std::vector<int32_t> prefix,
                  std::vector<int32_t> suffix)
      : tokenizer_(std::move(tokenizer)), prefix_(std::move(prefix)), suffix_(std::move(suffix)) {}

  int32_t vocab_size() const override { return tokenizer_->vocab_size(); }
  int32_t eos_id() const override { return tokenizer_->eos_id(); }
  absl::string_view TokenBytes(int32_t id) const override {
    const bool frame = absl::c_linear_search(prefix_, id) || absl::c_linear_search(suffix_, id);
    return frame ? absl::string_view() : tokenizer_->TokenBytes(id);
  }
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text) const override {
    AFT_ASSIGN_OR_RETURN(const std::vector<int32_t> inner, tokenizer_->Encode(text));
    std::vector<int32_t> ids = prefix_;
    ids.insert(ids.end(), inner.begin(), inner.end());
    ids.insert(ids.end(), suffix_.begin(), suffix_.end());
    return ids;
  }
  const Tokenizer& unframed() const override { return *tokenizer_; }

 private:
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const std::vector<int32_t> prefix_, suffix_;
};

}  // namespace

std::shared_ptr<const Tokenizer> MakeFramedTokenizer(std::shared_ptr<const Tokenizer> tokenizer,
                                                     std::vector<int32_t> prefix,
                                                     std::vector<int32_t> suffix) {
  if (prefix.empty() && suffix.empty()) return tokenizer;
  return std::make_shared<FramedTokenizer>(std::move(tokenizer), std::move(prefix),
                                           std::move(suffix));
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> LoadTokenizer(absl::string_view kind,
                                                               const std::string& checkpoint_dir,
                                                               int64_t vocab_size) {
  AFT_ASSIGN_OR_RETURN(std::shared_ptr<const Tokenizer> tokenizer, Load(kind, checkpoint_dir));
  AFT_RETURN_IF_ERROR(CheckVocabulary(*tokenizer, kind, checkpoint_dir, vocab_size));
  return tokenizer;
}

absl::Status CheckVocabulary(const Tokenizer& tokenizer, absl::string_view kind,
                             const std::string& dir, int64_t vocab_size) {
  if (tokenizer.vocab_size() <= vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(dir, ": the tokenizer (\"", kind, "\") has ", tokenizer.vocab_size(),
                   " tokens, more than the network's vocab_size, ", vocab_size));
}

}  // namespace aft
