#include "model/state/device.h"

#include <cstring>
#include <utility>

#include "base/status_macros.h"
#include "model/state/aligned_buffer.h"

namespace aft {
namespace {

class OwnFloats final : public HostFloats {
 public:
  explicit OwnFloats(DeviceFloats floats) : floats_(std::move(floats)) {}
  int64_t bytes() const override { return floats_.bytes(); }
  absl::StatusOr<const float*> Get() const override { return floats_.data; }

 private:
  const DeviceFloats floats_;
};

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

  // The floats are on the host already.
  absl::StatusOr<std::shared_ptr<const HostFloats>> CopyToHost(DeviceFloats floats) override {
    return std::make_shared<const OwnFloats>(std::move(floats));
  }

  absl::Status CopyFromHost(void* to, const void* from, int64_t bytes) override {
    return Copy(to, from, bytes);
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }
};

}  // namespace

Device& Host() {
  static HostDevice host;
  return host;
}

}  // namespace aft
