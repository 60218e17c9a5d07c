#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "model/mixers/mixer.h"
#include "tests/property/instruction_sets.h"
#include "tests/property/random_inputs.h"
#include "tests/support/close.h"
#include "tests/support/same_bits.h"
#include "tests/support/tolerances.h"

namespace aft {

// One mixer in the list of the property suites.
struct MixerCase {
  std::string name;
  MixerConfig config;
  int64_t hid = 24;
  double spread = 1;       // of the tables: N(0, spread^2)
  int64_t grid_width = 4;  // of the images, where the config has a grid
  int64_t tokens = 128;    // of the longest sequence

  friend void PrintTo(const MixerCase& mixer_case, std::ostream* out) { *out << mixer_case.name; }
};

bool IsAft(const MixerConfig& config);
float RoundToBf16(float x);

// Every kind and form that MakeMixer takes: mixers with a causal recurrence; those of them that
// have no Encode; and mixers that see the whole text.
std::vector<MixerCase> CausalCases();
std::vector<MixerCase> RecurrentCases();
std::vector<MixerCase> BidirectionalCases();

// The length of the longest text in cases with a limit.
inline constexpr int64_t kMixerTokens = 64;

// A part of one sequence as it enters a batch.
struct MixerChunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> packed;  // [length, width]
  bool generated = false;     // by the model itself
};

// The chunks of one batch, one after the other.
struct MixerRows {
  MixerRows(const std::vector<MixerChunk>& chunks, int64_t width);
  // Makes a chunk of each whole text.
  MixerRows(const std::vector<std::vector<float>>& sequences, int64_t width);

  int64_t count() const { return static_cast<int64_t>(slots.size()); }
  int64_t tokens() const { return offsets.back(); }
  // Cuts a matrix [tokens, columns] into a part for each row.
  std::vector<std::vector<float>> Parts(const std::vector<float>& matrix, int64_t columns) const;

  std::vector<int32_t> slots;
  std::vector<int64_t> positions;
  std::vector<uint8_t> generated;
  std::vector<int64_t> offsets = {0};
  std::vector<float> packed;
  int64_t longest = 0;  // tokens

 private:
  void Add(const MixerChunk& chunk, int64_t width);
};

// A mixer on some device, with a pool of slots whose memory starts as NaN.
class DeviceMixer {
 public:
  virtual ~DeviceMixer() = default;

  virtual StateSpec state_spec() const = 0;
  // The output y of each chunk of one batch, and of each sequence of an Encode. `masks` is empty or
  // has one mask per sequence.
  virtual std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) = 0;
  virtual std::vector<std::vector<float>> Encode(
      const std::vector<std::vector<float>>& sequences,
      const std::vector<std::vector<float>>& masks) const = 0;
  virtual std::vector<float> SlotContents(int32_t slot) const = 0;
  virtual void SetSlotContents(int32_t slot, const std::vector<float>& contents) = 0;
};

// A device on which mixers run, and what they promise there.
struct MixerDevice {
  std::unique_ptr<DeviceMixer> (*make)(const MixerCase& mixer_case, const MixerTables& tables,
                                       int32_t slots);
  std::vector<int64_t> instruction_sets;  // of CPU kernels; {0} where there is no choice
  Tolerance step;                         // tokens one by one, against the formula
  Tolerance prompt;                       // chunks and whole texts
  // True: neither the cut of a text nor Encode instead of Forward changes a bit. False: results
  // differ by at most `prompt`.
  bool one_order;
};
const MixerDevice& CpuMixers();

// The device of this test program: defined by cpu_mixers_tested.cc or by tests/gpu_model.
const MixerDevice& TestedMixers();

// Whether outputs that were computed from another cut or another form of the text are the same.
inline testing::AssertionResult Same(const std::vector<float>& y, const std::vector<float>& other) {
  if (TestedMixers().one_order) return testing::AssertionResult(SameBits(y, other));
  return Close(y, other, TestedMixers().prompt);
}

inline std::string SetName(int64_t set) { return set == 0 ? "gpu" : InstructionSetName(set); }

// Every test of a derived class runs once per instruction set of TestedMixers().
class TestedMixersTest : public testing::TestWithParam<int64_t> {
 protected:
  // `all`, or `few` of them on an emulated GPU, which is slow, unless AFT_CUDA_FULL is set.
  template <class T>
  std::vector<T> Few(const std::vector<T>& all, const std::vector<T>& few) const {
    return device_.one_order || std::getenv("AFT_CUDA_FULL") != nullptr ? all : few;
  }

  const MixerDevice& device_ = TestedMixers();
  TestRandom random_;

 private:
  const UseInstructionSet use_{GetParam()};
};
#define AFT_ON_TESTED_MIXERS(test)                                                           \
  INSTANTIATE_TEST_SUITE_P(Mixers, test, testing::ValuesIn(TestedMixers().instruction_sets), \
                           [](const auto& set) { return SetName(set.param); })

// A mixer with random tables.
class TestMixer {
 public:
  TestMixer(const MixerCase& mixer_case, TestRandom& random, int32_t slots = 1,
            const MixerDevice& device = TestedMixers());
  // With given tables, as tensors or as numbers: by name, row-major.
  TestMixer(const MixerCase& mixer_case, MixerTables tables);
  TestMixer(const MixerCase& mixer_case, const std::map<std::string, std::vector<float>>& tables,
            int32_t slots = 1, const MixerDevice& device = TestedMixers());

  int64_t width() const;
  int64_t hid() const { return case_.hid; }
  // Columns of a row of `packed`: keys from key_column() on, then values, then the key strengths of
  // cosine. Both columns are the same when positions are the keys.
  int64_t key_column() const;
  int64_t value_column() const;
  StateSpec state_spec() const { return mixer_->state_spec(); }
  const MixerTables& tables() const { return tables_; }

  // Random packed input [tokens, width]: N(0, 1), except that the keys of AFT are from the named
  // set (random_inputs.h).
  std::vector<float> Unrounded(TestRandom& random, int64_t tokens,
                               const std::string& keys = "n1") const;
  // Like Unrounded, but with bf16 numbers if the case has a bf16 ring, so that the ring's rounding
  // changes nothing.
  std::vector<float> Packed(TestRandom& random, int64_t tokens,
                            const std::string& keys = "n1") const;

  // The functions of DeviceMixer.
  std::vector<std::vector<float>> Run(const std::vector<MixerChunk>& chunks) {
    return mixer_->Run(chunks);
  }
  std::vector<std::vector<float>> Encode(const std::vector<std::vector<float>>& sequences,
                                         const std::vector<std::vector<float>>& masks = {}) const {
    return mixer_->Encode(sequences, masks);
  }
  std::vector<float> SlotContents(int32_t slot) const { return mixer_->SlotContents(slot); }
  void SetSlotContents(int32_t slot, const std::vector<float>& contents) {
    mixer_->SetSlotContents(slot, contents);
  }

  // Runs one sequence in `slot` from `position` on. It is cut into chunks of these lengths (the
  // last length repeats), and before position `generated`, from which on its tokens count as
  // generated.
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths,
                            int32_t slot = 0, int64_t position = 0, int64_t generated = INT64_MAX);

  // The output by the formula in float64. Keys and values are rounded as a bf16 ring holds them.
  std::vector<double> Reference(const std::vector<float>& packed,
                                const std::vector<float>& mask = {}) const;

 private:
  const MixerCase case_;
  MixerTables tables_;
  std::unique_ptr<DeviceMixer> mixer_;
};

}  // namespace aft
