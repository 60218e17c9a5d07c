#include "model/train/corpus.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/in_file.h"
#include "base/status_macros.h"
#include "model/tokenizer/utf8_character.h"

namespace aft {
namespace {

// Returns `at` or, when `at` would cut a UTF-8 character in two, the place where it begins.
size_t StartOfCharacter(absl::string_view text, size_t at) {
  for (size_t back = 1; back < 4 && back <= at; ++back) {
    if (FirstCharacter(text.substr(at - back)).size > back) return at - back;
  }
  return at;
}

}  // namespace

int64_t Corpus::train_tokens() const {
  int64_t sum = 0;
  for (const Text& text : texts) sum += text.train_tokens;
  return sum;
}

int64_t Corpus::held_out_tokens() const {
  int64_t sum = 0;
  for (const Text& text : texts) {
    sum += static_cast<int64_t>(text.tokens.size()) - text.train_tokens;
  }
  return sum;
}

int64_t Corpus::Bytes(absl::Span<const int32_t> tokens) const {
  int64_t sum = 0;
  for (const int32_t id : tokens) sum += token_bytes[static_cast<size_t>(id)];
  return sum;
}

absl::StatusOr<std::vector<TextFile>> ReadTextFiles(const std::vector<std::string>& paths,
                                                    double held_out) {
  std::vector<TextFile> files;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    std::error_code ignored;
    // A folder can be opened, and then the iterator below throws.
    if (!file || std::filesystem::is_directory(path, ignored)) {
      return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    }
    TextFile text{.path = path};
    text.bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    const size_t size = text.bytes.size();
    text.train_bytes = size - static_cast<size_t>(held_out * static_cast<double>(size));
    text.train_bytes = StartOfCharacter(text.bytes, text.train_bytes);
    files.push_back(std::move(text));
  }
  return files;
}

absl::StatusOr<Corpus> MakeCorpus(const std::vector<TextFile>& files, const Tokenizer& tokenizer,
                                  int64_t min_part_tokens) {
  Corpus corpus;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    corpus.token_bytes.push_back(static_cast<int64_t>(tokenizer.TokenBytes(id).size()));
  }
  for (const TextFile& file : files) {
    Corpus::Text text{.path = file.path};
    AFT_ASSIGN_OR_RETURN(text.tokens, InFile(file.path, tokenizer.Encode(file.train())));
    text.train_tokens = static_cast<int64_t>(text.tokens.size());
    const absl::string_view tail = absl::string_view(file.bytes).substr(file.train_bytes);
    AFT_ASSIGN_OR_RETURN(const std::vector<int32_t> held_out,
                         InFile(file.path, tokenizer.Encode(tail)));
    text.tokens.insert(text.tokens.end(), held_out.begin(), held_out.end());
    if (static_cast<int64_t>(held_out.size()) < min_part_tokens ||
        text.train_tokens < min_part_tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat(file.path, ": ", text.tokens.size(),
                       " tokens are too few; both the training part and the held-out part need ",
                       min_part_tokens));
    }
    corpus.texts.push_back(std::move(text));
  }
  return corpus;
}

absl::StatusOr<Corpus> ReadCorpus(const TrainConfig& config, TokenizerSource tokenizer) {
  AFT_ASSIGN_OR_RETURN(const std::vector<TextFile> files,
                       ReadTextFiles(config.texts, config.held_out));
  std::vector<absl::string_view> training_texts;
  training_texts.reserve(files.size());
  for (const TextFile& file : files) training_texts.push_back(file.train());
  AFT_ASSIGN_OR_RETURN(const std::shared_ptr<const Tokenizer> made, tokenizer(training_texts));
  return MakeCorpus(files, made->unframed(), config.segment + 1);
}

bool TextStream::IsInCorpus() const {
  if (text == -1) return true;
  return text >= 0 && text < static_cast<int64_t>(corpus_->texts.size()) && offset >= 0 &&
         offset <= corpus_->texts[static_cast<size_t>(text)].train_tokens;
}

absl::Span<const int32_t> TextStream::Next(int64_t segment, bool restart, std::mt19937_64& random,
                                           bool* restarted) {
  *restarted = restart || text < 0 ||
               offset + segment + 1 > corpus_->texts[static_cast<size_t>(text)].train_tokens;
  if (*restarted) {
    // A place drawn uniformly over all training tokens.
    int64_t place = std::uniform_int_distribution<int64_t>(0, corpus_->train_tokens() - 1)(random);
    text = 0;
    while (place >= corpus_->texts[static_cast<size_t>(text)].train_tokens) {
      place -= corpus_->texts[static_cast<size_t>(text)].train_tokens;
      ++text;
    }
    offset = std::min(place, corpus_->texts[static_cast<size_t>(text)].train_tokens - segment - 1);
  }
  const int32_t* begin = corpus_->texts[static_cast<size_t>(text)].tokens.data() + offset;
  offset += segment;
  return {begin, static_cast<size_t>(segment + 1)};
}

}  // namespace aft
