#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

// What a fuzz target is made of. A target is one source file that defines LLVMFuzzerTestOneInput
// and kMemory; it proves properties with AFT_CHECK. driver.cc, or clang's libFuzzer, drives it.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace aft::fuzz {

// The most memory that one input may take: what a target would allocate for an empty one, and for
// each of its bytes. More is a finding of the driver's.
struct MemoryBound {
  int64_t fixed;
  int64_t per_byte;
};
extern const MemoryBound kMemory;

// Most memory that this thread has had through operator new, beyond what it had when this object
// was made. 0 under a sanitizer, whose allocator stays. Objects may be nested.
class PeakMemory {
 public:
  PeakMemory();
  ~PeakMemory();
  PeakMemory(const PeakMemory&) = delete;
  PeakMemory& operator=(const PeakMemory&) = delete;
  int64_t bytes() const;

 private:
  const int64_t before_;
  const int64_t outer_peak_;
};

// Says where the input led: "ok", an error's message. An input that leads where none has led before
// is worth mutating further. Only letters outside of quotes count.
void Saw(absl::string_view place);

// Cuts a text at its lines that are "----" into `count` parts; the last takes the rest, and what is
// missing is empty.
std::vector<absl::string_view> Sections(absl::string_view text, size_t count);

bool IsUtf8(absl::string_view text);

// Whether an error may be logged and sent: not empty, one short line of valid UTF-8.
bool IsMessage(absl::string_view text);

inline absl::string_view AsText(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace aft::fuzz
