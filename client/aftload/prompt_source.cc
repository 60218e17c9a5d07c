#include "client/aftload/prompt_source.h"

#include <array>
#include <random>

namespace aft::client {

std::string RandomPrompt(size_t bytes, uint64_t seed) {
  constexpr std::array<const char*, 16> kWords = {
      "the",   "and",    "she",    "he",   "of",     "to",    "in",  "was",
      "house", "letter", "sister", "very", "always", "could", "not", "evening"};
  std::mt19937_64 random(seed);
  std::string prompt;
  prompt.reserve(bytes + 8);
  while (prompt.size() < bytes) {
    prompt += kWords[random() % kWords.size()];
    prompt += ' ';
  }
  prompt.resize(bytes);
  return prompt;
}

}  // namespace aft::client
