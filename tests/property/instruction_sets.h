#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace aft {

// The instruction sets that this binary has and this CPU runs, as Highway's bits.
std::vector<int64_t> InstructionSets();
// Those of them with which products also use special instructions (kernels::UseDots), with these
// instructions switched off.
std::vector<int64_t> InstructionSetsWithoutDots();
// All of both, with products that read weights as another CPU prefers it
// (kernels::PreferOneStream).
std::vector<int64_t> InstructionSetsReadingOtherwise();
std::string InstructionSetName(int64_t instruction_set);

// The CPU kernels use this instruction set while the object exists.
class UseInstructionSet {
 public:
  explicit UseInstructionSet(int64_t instruction_set);
  ~UseInstructionSet();
  UseInstructionSet(const UseInstructionSet&) = delete;
  UseInstructionSet& operator=(const UseInstructionSet&) = delete;

 private:
  bool preferred_one_stream_;
};

// Every test of a derived class runs once per instruction set.
class EveryInstructionSet : public testing::TestWithParam<int64_t> {
 private:
  const UseInstructionSet use_{GetParam()};
};
#define AFT_EVERY_INSTRUCTION_SET(test)                                             \
  INSTANTIATE_TEST_SUITE_P(Simd, test, testing::ValuesIn(::aft::InstructionSets()), \
                           [](const auto& set) { return ::aft::InstructionSetName(set.param); })

}  // namespace aft
