#include "model/train/corpus.h"

#include <fstream>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace aft {

int64_t Corpus::train_bytes() const {
  int64_t sum = 0;
  for (const Text& text : texts) sum += text.train_bytes;
  return sum;
}

int64_t Corpus::held_out_bytes() const {
  int64_t sum = 0;
  for (const Text& text : texts) sum += static_cast<int64_t>(text.bytes.size()) - text.train_bytes;
  return sum;
}

absl::StatusOr<Corpus> ReadCorpus(const std::vector<std::string>& paths, double held_out,
                                  int64_t min_part_bytes) {
  Corpus corpus;
  for (const std::string& path : paths) {
    std::ifstream file(path, std::ios::binary);
    if (!file) return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
    Corpus::Text text;
    text.path = path;
    text.bytes.assign(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    const auto size = static_cast<int64_t>(text.bytes.size());
    text.train_bytes = size - static_cast<int64_t>(held_out * static_cast<double>(size));
    if (size - text.train_bytes < min_part_bytes || text.train_bytes < min_part_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": ", size,
                       " bytes are too few; both the training part and the held-out part need ",
                       min_part_bytes));
    }
    corpus.texts.push_back(std::move(text));
  }
  return corpus;
}

bool TextStream::IsInCorpus() const {
  if (text == -1) return true;
  return text >= 0 && text < static_cast<int64_t>(corpus_->texts.size()) && offset >= 0 &&
         offset <= corpus_->texts[static_cast<size_t>(text)].train_bytes;
}

absl::Span<const uint8_t> TextStream::Next(int64_t segment, bool restart, std::mt19937_64& random,
                                           bool* restarted) {
  *restarted = restart || text < 0 ||
               offset + segment + 1 > corpus_->texts[static_cast<size_t>(text)].train_bytes;
  if (*restarted) {
    // A place drawn uniformly over all training bytes.
    int64_t place = std::uniform_int_distribution<int64_t>(0, corpus_->train_bytes() - 1)(random);
    text = 0;
    while (place >= corpus_->texts[static_cast<size_t>(text)].train_bytes) {
      place -= corpus_->texts[static_cast<size_t>(text)].train_bytes;
      ++text;
    }
    offset = std::min(place, corpus_->texts[static_cast<size_t>(text)].train_bytes - segment - 1);
  }
  const uint8_t* begin = corpus_->texts[static_cast<size_t>(text)].bytes.data() + offset;
  offset += segment;
  return {begin, static_cast<size_t>(segment + 1)};
}

}  // namespace aft
