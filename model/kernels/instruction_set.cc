#include "model/kernels/instruction_set.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "model/kernels/simd.h"

#if AFT_HAS_INT8_DOTS && HWY_ARCH_X86
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif AFT_HAS_INT8_DOTS
#include <sys/auxv.h>
#endif

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

namespace {

std::atomic<bool> use_dots = true;

std::atomic<bool> prefers_one_stream = [] {
#if HWY_ARCH_X86
  __builtin_cpu_init();  // this may run before the constructors of the compiler's library
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}();

int64_t Target() { return HWY_DYNAMIC_DISPATCH(CompiledTarget)(); }

#ifdef AFT_KERNEL_NATIVE
// Ends the program before its first kernel runs if this processor lacks the instruction set that
// the program was built for.
const bool is_native = [] {
  if ((hwy::SupportedTargets() & AFT_KERNEL_NATIVE) != 0) return true;
  std::fputs(
      "This program was built for another processor (AFT_KERNEL_TARGETS=NATIVE): build it again.\n",
      stderr);
  std::exit(1);
}();
#endif

struct NamedSet {
  const char* name;
  int64_t target;
};
#if HWY_ARCH_X86
constexpr NamedSet kNamedSets[] = {{"AVX-512", HWY_AVX3}, {"AVX2", HWY_AVX2}, {"SSE4", HWY_SSE4}};
constexpr char kNames[] = "AVX-512, AVX2 or SSE4";
#else
constexpr NamedSet kNamedSets[] = {{"NEON", HWY_NEON}};
constexpr char kNames[] = "NEON";
#endif

// Takes every set above the named one from the kernels before the first of them runs. They do not
// use the dots either.
const bool kIsLimited = [] {
  // NOLINTBEGIN(concurrency-mt-unsafe): there is one thread before main
  const char* const name = std::getenv("AFT_INSTRUCTION_SET");
  if (name == nullptr || *name == '\0') return false;
  for (const NamedSet& set : kNamedSets) {
    if (std::strcmp(name, set.name) != 0) continue;
    hwy::DisableTargets(set.target - 1);  // Highway's better targets are the lower bits
    return true;
  }
  std::fprintf(stderr, "AFT_INSTRUCTION_SET: must be %s, got %s\n", kNames, name);
  std::exit(1);
  // NOLINTEND(concurrency-mt-unsafe)
}();

#if AFT_HAS_INT8_DOTS
bool MayUseDots() {
  constexpr int64_t kTarget = HWY_ARCH_X86 ? HWY_AVX3 : HWY_NEON;
  return Target() == kTarget && !kIsLimited && use_dots.load(std::memory_order_relaxed);
}
#endif

}  // namespace

#if AFT_HAS_INT8_DOTS && HWY_ARCH_X86
bool HasInt8Dots() { return MayUseDots() && __builtin_cpu_supports("avx512vnni") != 0; }
bool HasBf16Dots() { return MayUseDots() && __builtin_cpu_supports("avx512bf16") != 0; }
bool HasTiles() {
  static const bool is_permitted = [] {
    // Intel's manual: leaf 7 of CPUID, EDX. Clang 14 does not know the names of these features.
    constexpr uint32_t kBf16TilesInt8 = (1U << 22) | (1U << 24) | (1U << 25);
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kBf16TilesInt8) != kBf16TilesInt8) {
      return false;
    }
    // Linux saves the tiles of a process only if it has asked for that.
    constexpr int64_t kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr int64_t kTileData = 18;               // XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return is_permitted && HasInt8Dots() && HasBf16Dots();
}
#else
bool HasInt8Dots() {
#if AFT_HAS_INT8_DOTS
  static const bool is_supported = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  return is_supported && MayUseDots();
#else
  return false;
#endif
}
bool HasBf16Dots() { return false; }
bool HasTiles() { return false; }
#endif

void UseDots(bool use) { use_dots = use; }

bool PrefersOneStream() { return prefers_one_stream.load(std::memory_order_relaxed); }
void PreferOneStream(bool prefer) { prefers_one_stream = prefer; }

std::string InstructionSet() {
  switch (Target()) {
    case HWY_AVX3:
      return HasTiles()      ? "AVX-512 with VNNI, BF16 and AMX"
             : HasBf16Dots() ? "AVX-512 with VNNI and BF16"
             : HasInt8Dots() ? "AVX-512 with VNNI"
                             : "AVX-512";
    case HWY_AVX2:
      return "AVX2";
    case HWY_SSE4:
      return "SSE4";
    case HWY_NEON:
      return HasInt8Dots() ? "NEON with dot products" : "NEON";
    default:
      return "portable";
  }
}

}  // namespace aft::kernels
#endif
