#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/api/tokenizer.h"
#include "model/train/run_tokenizer.h"
#include "model/train/train_config.h"

namespace aft {

// Texts as tokens, each cut into a training part and a held-out tail.
struct Corpus {
  struct Text {
    std::vector<int32_t> tokens = {};
    int64_t train_tokens = 0;  // tokens[train_tokens..] is held out
    std::string path = {};     // for messages
  };
  std::vector<Text> texts;
  std::vector<int64_t> token_bytes;  // by id: how many bytes of text a token stands for

  int64_t train_tokens() const;
  int64_t held_out_tokens() const;
  int64_t Bytes(absl::Span<const int32_t> tokens) const;
};

// The bytes of a text file, of which those from `train_bytes` on are held out.
struct TextFile {
  std::string path;
  std::string bytes = {};
  size_t train_bytes = 0;
  absl::string_view train() const { return absl::string_view(bytes).substr(0, train_bytes); }
};

// `held_out`: the fraction of each file's bytes that is held out, from the start of a character on
// where the text is UTF-8. NOT_FOUND names the file.
absl::StatusOr<std::vector<TextFile>> ReadTextFiles(const std::vector<std::string>& paths,
                                                    double held_out);

// Both parts of every file are encoded by themselves, so no token spans the cut. INVALID_ARGUMENT
// names the file: a part has fewer tokens than `min_part_tokens`, or the tokenizer refuses it.
absl::StatusOr<Corpus> MakeCorpus(const std::vector<TextFile>& files, const Tokenizer& tokenizer,
                                  int64_t min_part_tokens);

// The config's texts with their tokenizer, each part of at least a segment and one more token.
absl::StatusOr<Corpus> ReadCorpus(const TrainConfig& config, TokenizerSource tokenizer);

// One reader that walks through the training text, segment by segment.
class TextStream {
 public:
  explicit TextStream(const Corpus* corpus) : corpus_(corpus) {}

  // The next segment + 1 tokens (inputs and their successors). Jumps to a random place first when
  // `restart`, when it has not begun, or when the text is at its end; *restarted says so.
  absl::Span<const int32_t> Next(int64_t segment, bool restart, std::mt19937_64& random,
                                 bool* restarted);

  // Where it stands, for resuming a run; text -1: not begun. REQUIRES, of Next: IsInCorpus.
  int64_t text = -1;
  int64_t offset = 0;
  // Whether that is a place in the training text, as it may not be when it comes from a file.
  bool IsInCorpus() const;

 private:
  const Corpus* corpus_;
};

}  // namespace aft
