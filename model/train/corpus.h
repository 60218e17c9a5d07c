#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace aft {

// Text files as bytes, each cut into a training part and a held-out tail.
struct Corpus {
  struct Text {
    std::vector<uint8_t> bytes;
    int64_t train_bytes = 0;  // bytes[train_bytes..] is held out
    std::string path = {};    // for messages
  };
  std::vector<Text> texts;

  int64_t train_bytes() const;
  int64_t held_out_bytes() const;
};

// NOT_FOUND naming the file; INVALID_ARGUMENT when a part is shorter than `min_part_bytes`.
absl::StatusOr<Corpus> ReadCorpus(const std::vector<std::string>& paths, double held_out,
                                  int64_t min_part_bytes);

// One reader that walks through the training text, segment by segment.
class TextStream {
 public:
  explicit TextStream(const Corpus* corpus) : corpus_(corpus) {}

  // The next segment + 1 bytes (inputs and their successors). Jumps to a random place first when
  // `restart`, when it has not begun, or when the text is at its end; *restarted says so.
  absl::Span<const uint8_t> Next(int64_t segment, bool restart, std::mt19937_64& random,
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
