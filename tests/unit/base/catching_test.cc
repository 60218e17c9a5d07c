#include "base/catching.h"

#include <new>
#include <stdexcept>
#include <system_error>

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

TEST(CatchingTest, AnyOtherExceptionIsAnInternalErrorWithItsText) {
  EXPECT_EQ(Catching([]() -> absl::Status { throw std::runtime_error("boom"); }),
            absl::InternalError("boom"));
  const std::error_code denied = std::make_error_code(std::errc::permission_denied);
  EXPECT_EQ(Catching([&]() -> absl::Status { throw std::system_error(denied); }),
            absl::InternalError(std::system_error(denied).what()));
}

}  // namespace
}  // namespace aft
