#pragma once

#include <string>

namespace cuda_on_cpu {

// The demangled name of a function.
std::string NameOf(const void* function);
// "file:line" of the call that returns to `code`.
std::string PlaceOf(const void* code);

}  // namespace cuda_on_cpu
