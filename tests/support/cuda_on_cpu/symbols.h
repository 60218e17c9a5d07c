#ifndef AFT_TESTS_SUPPORT_CUDA_ON_CPU_SYMBOLS_H_
#define AFT_TESTS_SUPPORT_CUDA_ON_CPU_SYMBOLS_H_

#include <string>

namespace cuda_on_cpu {

// Demangled name of a function.
std::string NameOf(const void* function);
// "file:line" of the call that returns to `code`.
std::string PlaceOf(const void* code);

}  // namespace cuda_on_cpu

#endif  // AFT_TESTS_SUPPORT_CUDA_ON_CPU_SYMBOLS_H_
