#include "tests/property/instruction_sets.h"

#include "model/kernels/simd.h"

namespace aft {

std::vector<int64_t> InstructionSets() { return hwy::SupportedAndGeneratedTargets(); }

std::string InstructionSetName(int64_t instruction_set) { return hwy::TargetName(instruction_set); }

UseInstructionSet::UseInstructionSet(int64_t instruction_set) {
  hwy::SetSupportedTargetsForTest(instruction_set);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}
UseInstructionSet::~UseInstructionSet() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

}  // namespace aft
