#pragma once

#include <limits>

// How far results may be from what they are compared with. These values have no other place. The
// table in model/kernels/README.md gives the reason for each.
namespace aft {

// |y - reference| <= each * max(1, |reference|) for every number, and
// sqrt(sum of (y - reference)^2 / sum of reference^2) <= rms. See tests/support/close.h.
struct Tolerance {
  double each = 0;
  double rms = std::numeric_limits<double>::infinity();
};

namespace tolerance {

// ---- One kernel or mixer against its formula in float64, on the same inputs; values N(0, 1)
inline constexpr Tolerance kFp32 = {1e-5, 2e-6};         // keys and biases of ordinary size
inline constexpr Tolerance kFp32Spread = {1e-5, 3e-6};   // exponents of tens
inline constexpr Tolerance kFp32Large = {1e-4};          // exponents of several hundred
inline constexpr Tolerance kFp32LongRun = {5e-5, 1e-5};  // 10^4 tokens and more
inline constexpr Tolerance kBf16 = {1e-2, 5e-3};         // inputs or outputs in bf16
inline constexpr Tolerance kFp16 = {2e-3, 1e-3};
// Heads that are normalised: where a head's numbers are nearly equal, the norm enlarges their
// rounding.
inline constexpr Tolerance kFp32Normed = {3e-5, 2e-6};
// Softmax attention: scores are rounded too, in proportion to their size. S is the largest score.
constexpr Tolerance Attention(double s) { return {3e-6 + 4e-7 * s}; }
constexpr Tolerance AttentionSplitTf32(double s) { return {5e-6 + 6e-7 * s}; }
inline constexpr Tolerance kKeysRounded = {2e-3};  // exact reference, keys of 1e3, scores of 1e4

// ---- Two results of fp32 arithmetic
inline constexpr Tolerance kReordered = {5e-6};       // the same terms, added in another order
inline constexpr Tolerance kTwoFp32 = {2e-5};         // each within kFp32 of the formula
inline constexpr Tolerance kStored = {1e-7};          // float64, stored as fp32
inline constexpr Tolerance kFewOperations = {1e-6};   // a copy, an exponential, a few additions
inline constexpr Tolerance kDifferentiable = {2e-5};  // the form that training uses
inline constexpr double kDifferentiableFp64 = 1e-11;  // in float64
inline constexpr double kFiniteDifference = 1e-6;     // of a gradient, steps of 1e-5

// ---- Outputs of AFT and attention are means of values
inline constexpr float kMean = 1e-5F;           // |y| <= (1 + kMean) * largest |v|
inline constexpr float kMeanBf16 = 1e-2F;       // in bf16
inline constexpr double kConstantValue = 3e-6;  // y = v when all values are v

// ---- Rows between the mixers
inline constexpr Tolerance kLinear = {1e-5};
inline constexpr Tolerance kLayerNorm = {1e-4};      // numbers of mean 100
inline constexpr Tolerance kLayerNorm1000 = {1e-3};  // numbers of mean 1000

// ---- Imported layers, with their projections
inline constexpr Tolerance kLayer = {1e-5};
inline constexpr Tolerance kLayerKeys100 = {5e-5};  // keys near 100 come out of the projection

// ---- Whole models
inline constexpr double kLogProbability = 1e-4;      // CPU against float64 or the package
inline constexpr Tolerance kVectors = {1e-4};        // encoders: CPU against float64
inline constexpr Tolerance kRwkvCpu = {2e-5, 3e-6};  // logits, states: CPU against float64
inline constexpr Tolerance kLogits = {1e-3};         // GPU in fp32 against the CPU
inline constexpr Tolerance kUnitVectors = {2e-4};    // pooled and normalised; GPU against CPU
inline constexpr Tolerance kVectorsGpu = {4e-3, 5e-4};
inline constexpr Tolerance kVectorsFp16 = {0.03, 3e-3};
inline constexpr Tolerance kVectorsBf16 = {0.2, 2e-2};
inline constexpr Tolerance kVectorsInt8 = {0.2, 3e-2};
inline constexpr Tolerance kVectorsInt8Gpu = {0.05, 1e-2};  // GPU in int8 against the CPU in int8
inline constexpr double kDivergenceBf16 = 1e-3;             // KL of a token's distribution, nats
inline constexpr double kDivergenceFp16 = 2e-5;
inline constexpr double kDivergenceInt8 = 5e-3;
inline constexpr double kDivergenceInt8Gpu = 1e-4;

}  // namespace tolerance
}  // namespace aft
