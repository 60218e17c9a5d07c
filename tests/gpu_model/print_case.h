#ifndef AFT_TESTS_GPU_MODEL_PRINT_CASE_H_
#define AFT_TESTS_GPU_MODEL_PRINT_CASE_H_

#include <ostream>
#include <string>

#include "gtest/gtest.h"
#include "tests/property/network_reference.h"

namespace aft {

// For GoogleTest's messages, and for the names of tests.
inline void PrintTo(const NetworkCase& network, std::ostream* out) { *out << network.name; }
inline std::string NameOf(const testing::TestParamInfo<NetworkCase>& test) {
  return test.param.name;
}

}  // namespace aft

#endif  // AFT_TESTS_GPU_MODEL_PRINT_CASE_H_
