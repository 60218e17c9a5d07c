#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "tests/property/random_inputs.h"

namespace aft::fuzz {

// Words of a dictionary in libFuzzer's form: lines of "text" or name="text", with the escapes
// \\, \" and \xAB; # begins a comment. AFT_CHECKs that it is one.
std::vector<std::string> ParseDictionary(absl::string_view text);

// Makes inputs from inputs: flips, inserts, deletes, repeats, splices, words of a dictionary and
// integers at which programs go wrong.
class Mutator {
 public:
  // `random` must outlive this object. Inputs grow to `max_bytes`.
  Mutator(TestRandom& random, std::vector<std::string> dictionary, size_t max_bytes);

  // A few mutations of `input`, which may take parts of `other`.
  std::string Mutate(std::string input, absl::string_view other);

  // A piece of `input` so often that it has about `bytes` bytes: for what grows faster than its
  // input.
  std::string Blow(std::string input, size_t bytes);

 private:
  // A random place, and the length of a random piece from there: a line, or short as a rule.
  struct Piece {
    size_t at;
    size_t size;
  };
  Piece PieceOf(absl::string_view text);
  size_t Below(size_t n);

  void Step(std::string& input, absl::string_view other);
  std::string Integer();
  void Put(std::string& input, absl::string_view text);
  void ReplaceNumber(std::string& input);

  TestRandom& random_;
  const std::vector<std::string> dictionary_;
  const size_t max_bytes_;
};

}  // namespace aft::fuzz
