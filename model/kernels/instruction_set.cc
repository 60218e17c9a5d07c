#include "model/kernels/instruction_set.h"

#include <cstdint>

#include "model/kernels/linear_int8.h"
#include "model/kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace aft::kernels {
namespace HWY_NAMESPACE {

int64_t CompiledTarget() { return HWY_TARGET; }

}  // namespace HWY_NAMESPACE
}  // namespace aft::kernels
HWY_AFTER_NAMESPACE();

#if AFT_DISPATCH
namespace aft::kernels {

AFT_EXPORT(CompiledTarget);

std::string InstructionSet() {
  switch (HWY_DYNAMIC_DISPATCH(CompiledTarget)()) {
    case HWY_AVX3:
      return HasInt8Dots() ? "AVX-512 with VNNI" : "AVX-512";
    case HWY_AVX2:
      return "AVX2";
    case HWY_SSE4:
      return "SSE4";
    default:
      return "portable";
  }
}

}  // namespace aft::kernels
#endif
