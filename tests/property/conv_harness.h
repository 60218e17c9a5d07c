#ifndef AFT_TESTS_PROPERTY_CONV_HARNESS_H_
#define AFT_TESTS_PROPERTY_CONV_HARNESS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/config/tensors.h"
#include "model/mixers/mixer.h"
#include "tests/property/random_inputs.h"

namespace aft {

// A mixer with the tables it was made of.
struct ConvLayer {
  MixerConfig config;
  int64_t hid = 0;
  MixerTables tables;
  std::unique_ptr<Mixer> mixer;

  int64_t width() const { return PackedWidth(config, hid); }
};

// AFT-conv with `heads` and `taps`; causal, fp32 ring.
MixerConfig ConvConfig(int64_t heads, int64_t taps);

// Tables are N(0, spread^2).
ConvLayer MakeConvLayer(TestRandom& random, const MixerConfig& config, int64_t hid,
                        double spread = 1.0);

// [tokens, width()]: keys of the named set (random_inputs.h), the rest N(0, 1).
std::vector<float> RandomConvInput(TestRandom& random, const ConvLayer& layer,
                                   const std::string& keys, int64_t tokens);

// Keys and values as a bf16 ring holds them.
std::vector<float> RoundedToBf16(const ConvLayer& layer, std::vector<float> packed);

// A part of one sequence as it enters a batch.
struct ConvChunk {
  int32_t slot = 0;
  int64_t position = 0;
  std::vector<float> packed;
};

// Forward over a pool of slots. What was never written is NaN, in states and scratch, so that
// reading it shows; units run in two ranges, the later one first, each with scratch of its own.
class ConvRunner {
 public:
  ConvRunner(const ConvLayer& layer, int64_t slots);

  // Runs one batch; returns y per chunk.
  std::vector<std::vector<float>> Run(const std::vector<ConvChunk>& chunks);

  // One sequence in slot 0, cut into chunks of these lengths (the last length repeats).
  std::vector<float> RunCut(const std::vector<float>& packed, const std::vector<int64_t>& lengths);

  std::vector<float>& states() { return states_; }

 private:
  const ConvLayer& layer_;
  std::vector<float> states_;
};

// Encode of sequences of these lengths, one after the other in `packed`.
std::vector<float> EncodeConv(const ConvLayer& layer, const std::vector<float>& packed,
                              const std::vector<int64_t>& lengths,
                              const std::vector<float>& mask = {}, int64_t grid_width = 0);

// One sequence from the definition, in double (tests/support/mixer_reference.h).
std::vector<double> ConvReference(const ConvLayer& layer, const std::vector<float>& packed,
                                  const std::vector<float>& mask = {}, int64_t grid_width = 0);

// Expects y to be finite and within `tolerance` of the reference.
void ExpectClose(const std::vector<float>& y, const std::vector<double>& reference,
                 double tolerance, const std::string& what);

}  // namespace aft

#endif  // AFT_TESTS_PROPERTY_CONV_HARNESS_H_
