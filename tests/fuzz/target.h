#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

// The parts of a fuzz target. A target is one source file that defines RunInput and kMemory; it
// proves properties with AFT_CHECK. replay.cc runs it on a corpus, clang's libFuzzer on mutations.
namespace aft::fuzz {

void RunInput(const uint8_t* data, size_t size);

// The most memory that one input may allocate: a fixed part, and a part for each byte of the input.
// More is a finding.
struct MemoryBound {
  int64_t fixed;
  int64_t per_byte;
};
extern const MemoryBound kMemory;

// Cuts a text at its lines that are "----" into `count` parts; the last takes the rest, and what is
// missing is empty.
std::vector<absl::string_view> Sections(absl::string_view text, size_t count);

bool IsUtf8(absl::string_view text);

// Returns whether an error may be logged and sent: it is one short line of valid UTF-8, not empty.
bool IsMessage(absl::string_view text);

inline absl::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace aft::fuzz

// RunInput, within kMemory.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
