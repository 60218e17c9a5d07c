#ifndef AFT_TESTS_PROPERTY_MIXER_HARNESS_H_
#define AFT_TESTS_PROPERTY_MIXER_HARNESS_H_

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "model/mixers/mixer.h"
#include "tests/property/random_inputs.h"
#include "tests/support/same_bits.h"

namespace aft {

// One member of the property suite's list.
struct MixerCase {
  std::string name;
  MixerConfig config;
  int64_t hid = 24;
  double spread = 1;       // of the tables: N(0, spread^2)
  int64_t grid_width = 4;  // of the images, where the config has a grid

  friend void PrintTo(const MixerCase& mixer_case, std::ostream* out) { *out << mixer_case.name; }
};

bool IsAft(const MixerConfig& config);
float RoundToBf16(float x);

// Every kind and form that MakeMixer takes: those with a causal recurrence, and those that see the
// whole text.
std::vector<MixerCase> CausalCases();
std::vector<MixerCase> BidirectionalCases();

// Longest text of the cases with a limit.
inline constexpr int64_t kMixerTokens = 64;

// A part of one sequence as it enters a batch.
struct MixerChunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> packed;  // [length, width]
};

// A mixer with random tables, and a pool of slots whose memory starts as NaN.
class TestMixer {
 public:
  TestMixer(const MixerCase& mixer_case, TestRandom& random, int32_t slots = 1);
  // With given tables, by name, row-major.
  TestMixer(const MixerCase& mixer_case, const std::map<std::string, std::vector<float>>& tables);

  int64_t width() const;
  int64_t hid() const { return case_.hid; }
  const Mixer& mixer() const { return *mixer_; }
  const MixerTables& tables() const { return tables_; }

  // Random packed input [tokens, width]: N(0, 1), of AFT the keys from the named set
  // (random_inputs.h). In bf16's numbers where the case has a bf16 ring, so that rounding as they
  // enter changes nothing.
  std::vector<float> Packed(TestRandom& random, int64_t tokens,
                            const std::string& keys = "n1") const;

  // Runs one batch on two threads' scratch; returns y per chunk.
  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks);

  // One sequence in `slot`, cut into chunks of these lengths (the last length repeats).
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths,
                            int32_t slot = 0);

  // y per sequence; masks empty, or one per sequence.
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& sequences,
                                         const std::vector<std::vector<float>>& masks = {}) const;

  // The same from the formula in float64, and from LibTorch operators.
  std::vector<double> Reference(const std::vector<float>& packed,
                                const std::vector<float>& mask = {}) const;
  std::vector<float> Trained(const std::vector<float>& packed,
                             const std::vector<float>& mask = {}) const;

  std::vector<float> SlotBytes(int32_t slot) const;
  void SetSlotBytes(int32_t slot, const std::vector<float>& bytes);

 private:
  void Make(int32_t slots);

  const MixerCase case_;
  MixerTables tables_;
  std::unique_ptr<Mixer> mixer_;
  int64_t slot_floats_ = 0;
  std::vector<float> states_;
};

// Fails unless |y - reference| <= allowed * max(1, |reference|) everywhere; NaN fails.
void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference, double allowed);

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_MIXER_HARNESS_H_
