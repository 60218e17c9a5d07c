#pragma once

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "server/scheduling/sequence.h"
#include "server/scheduling/time.h"

namespace aft::server {

inline constexpr auto kInteractive = ServiceClass::kInteractive;
inline constexpr auto kNormal = ServiceClass::kNormal;
inline constexpr auto kBatch = ServiceClass::kBatch;
inline constexpr Duration kAge = std::chrono::seconds(10);  // the queues' `age` in these tests

// A sequence with a name for the test. It may generate a million tokens.
struct NamedSequence : Sequence {
  NamedSequence(std::string sequence_name, const Owner& owner, std::vector<TokenId> prompt,
                const SequenceTurn& turn = {})
      : Sequence(std::move(prompt), Purpose::kGenerate, 1'000'000, owner, turn),
        name(std::move(sequence_name)) {}
  std::string name;
};

// REQUIRES: they are NamedSequences.
inline std::string NameOf(const Sequence* sequence) {
  return static_cast<const NamedSequence*>(sequence)->name;
}
inline std::vector<std::string> Names(const std::vector<Sequence*>& sequences) {
  std::vector<std::string> names;
  for (const Sequence* sequence : sequences) names.push_back(NameOf(sequence));
  return names;
}

}  // namespace aft::server
