#include "model/state/device.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "model/state/aligned_buffer.h"

namespace aft {
namespace {

class HostDevice final : public Device {
 public:
  absl::StatusOr<DeviceFloats> Allocate(int64_t floats, absl::string_view what,
                                        bool lazy) override {
    AFT_ASSIGN_OR_RETURN(AlignedBuffer buffer, lazy ? AlignedBuffer::Reserve(floats, what)
                                                    : AlignedBuffer::Create(floats, what));
    auto owner = std::make_shared<AlignedBuffer>(std::move(buffer));
    return DeviceFloats{owner->data(), floats, owner};
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace

Device& Host() {
  static HostDevice host;
  return host;
}

}  // namespace aft
