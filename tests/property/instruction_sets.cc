#include "tests/property/instruction_sets.h"

#include "absl/strings/str_cat.h"
#include "model/kernels/instruction_set.h"
#include "model/kernels/simd.h"

namespace aft {

namespace {

// Bits that Highway does not use.
constexpr int64_t kWithoutDots = int64_t{1} << 60;
constexpr int64_t kReadsOtherwise = int64_t{1} << 59;
constexpr int64_t kOwnBits = kWithoutDots | kReadsOtherwise;
static_assert((HWY_TARGETS & kOwnBits) == 0);

}  // namespace

std::vector<int64_t> InstructionSets() { return hwy::SupportedAndGeneratedTargets(); }

std::vector<int64_t> InstructionSetsWithoutDots() {
  std::vector<int64_t> sets;
  for (const int64_t set : InstructionSets()) {
    const UseInstructionSet use(set);
    if (kernels::HasInt8Dots()) sets.push_back(set | kWithoutDots);
  }
  return sets;
}

std::vector<int64_t> InstructionSetsReadingOtherwise() {
  std::vector<int64_t> sets = InstructionSets();
  for (const int64_t set : InstructionSetsWithoutDots()) sets.push_back(set);
  for (int64_t& set : sets) set |= kReadsOtherwise;
  return sets;
}

std::string InstructionSetName(int64_t instruction_set) {
  return absl::StrCat(hwy::TargetName(instruction_set & ~kOwnBits),
                      (instruction_set & kWithoutDots) != 0 ? "_without_dots" : "",
                      (instruction_set & kReadsOtherwise) != 0 ? "_reading_otherwise" : "");
}

UseInstructionSet::UseInstructionSet(int64_t instruction_set)
    : preferred_one_stream_(kernels::PrefersOneStream()) {
  kernels::UseDots((instruction_set & kWithoutDots) == 0);
  kernels::PreferOneStream(preferred_one_stream_ != ((instruction_set & kReadsOtherwise) != 0));
  hwy::SetSupportedTargetsForTest(instruction_set & ~kOwnBits);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}
UseInstructionSet::~UseInstructionSet() {
  kernels::UseDots(true);
  kernels::PreferOneStream(preferred_one_stream_);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace aft
