#include "base/catching.h"

#include <new>

#include "absl/status/status.h"
#include "gtest/gtest.h"
#include "tests/support/short_memory.h"

namespace aft {
namespace {

TEST(CatchingTest, NeedsNoMemoryToSayThatThereIsNone) {
  const absl::Status expected = OutOfMemory();
  absl::Status status;
  {
    const ShortMemory short_memory(1);
    status = Catching([]() -> absl::Status { throw std::bad_alloc(); });
  }
  EXPECT_EQ(status, expected);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace aft
