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

// The bytes of a text file. The bytes from `train_bytes` on are held out.
struct TextFile {
  std::string path;
  std::string bytes = {};
  size_t train_bytes = 0;
  absl::string_view train() const { return absl::string_view(bytes).substr(0, train_bytes); }
};

// `held_out` is the fraction of each file's bytes that is held out. In UTF-8 text the held-out part
// begins at the start of a character. NOT_FOUND names the file.
absl::StatusOr<std::vector<TextFile>> ReadTextFiles(const std::vector<std::string>& paths,
                                                    double held_out);

// Encodes the two parts of every file separately, so no token spans the cut. INVALID_ARGUMENT names
// a file with a part that has fewer tokens than `min_part_tokens` or that the tokenizer refuses.
absl::StatusOr<Corpus> MakeCorpus(const std::vector<TextFile>& files, const Tokenizer& tokenizer,
                                  int64_t min_part_tokens);

// Reads the config's texts and encodes them, without the tokens that the tokenizer adds around a
// text: a file is cut into many texts. Each part must have more tokens than a segment.
absl::StatusOr<Corpus> ReadCorpus(const TrainConfig& config, TokenizerSource tokenizer);

// One reader that walks through the training text, segment by segment.
class TextStream {
 public:
  explicit TextStream(const Corpus* corpus) : corpus_(corpus) {}

  // The next segment + 1 tokens (inputs and their successors). The stream jumps to a random place
  // first when `restart` is set, when it has not begun, or when its text ends. *restarted tells
  // whether it has jumped. REQUIRES: IsInCorpus.
  absl::Span<const int32_t> Next(int64_t segment, bool restart, std::mt19937_64& random,
                                 bool* restarted);

  // The position of the stream, with which a run can be resumed; text -1: the stream has not begun.
  int64_t text = -1;
  int64_t offset = 0;
  // Whether this is a position in the training text. It may not be one when it comes from a file.
  bool IsInCorpus() const;

 private:
  const Corpus* corpus_;
};

}  // namespace aft
