#include "tests/property/instruction_sets.h"

#include "absl/strings/str_cat.h"
#include "model/kernels/instruction_set.h"
#include "model/kernels/simd.h"

namespace aft {

namespace {

constexpr int64_t kWithoutDots = int64_t{1} << 60;  // below Highway's own
static_assert((HWY_TARGETS & kWithoutDots) == 0);

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

std::string InstructionSetName(int64_t instruction_set) {
  return absl::StrCat(hwy::TargetName(instruction_set & ~kWithoutDots),
                      (instruction_set & kWithoutDots) != 0 ? "_without_dots" : "");
}

UseInstructionSet::UseInstructionSet(int64_t instruction_set) {
  kernels::UseDots((instruction_set & kWithoutDots) == 0);
  hwy::SetSupportedTargetsForTest(instruction_set & ~kWithoutDots);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}
UseInstructionSet::~UseInstructionSet() {
  kernels::UseDots(true);
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace aft
