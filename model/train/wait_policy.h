#pragma once

namespace aft {

// Makes OMP_WAIT_POLICY=passive the default of this process: its OpenMP threads then sleep while
// they wait, where libgomp's own default lets them spin on cores that other work needs. libgomp
// reads the variable before main, so the function starts the program again in the same process,
// with `exec` (execv). It returns without doing so when the user has set the variable, and when the
// program cannot be started again.
void WaitPassively(char** argv, int (*exec)(const char* path, char* const* argv));

}  // namespace aft
