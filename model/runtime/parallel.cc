// The only file compiled with -fopenmp.
#include "model/runtime/parallel.h"

#include <omp.h>

#include <algorithm>

namespace aft {

void ParallelFor(int threads, int64_t n, int64_t grain,
                 absl::FunctionRef<void(int64_t, int64_t, int)> fn) {
  if (n <= 0) return;
  const int64_t ranges = std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, threads);
  if (ranges == 1) {
    fn(0, n, 0);
    return;
  }
  // Static ranges, one per thread; the runtime may give fewer threads than asked for.
#pragma omp parallel num_threads(static_cast <int>(ranges))
  {
    const int thread = omp_get_thread_num();
    const int64_t team = omp_get_num_threads();
    const int64_t begin = n * thread / team;
    const int64_t end = n * (thread + 1) / team;
    if (begin < end) fn(begin, end, thread);
  }
}

}  // namespace aft
