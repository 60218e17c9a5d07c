#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "ATen/core/Tensor.h"
#include "base/check.h"
#include "tests/support/cuda_on_cpu/host_queue.h"

namespace aft {

// A HostQueue that is late, as a GPU is. It runs copies, graphs and events only when a caller waits
// for them, or before a kernel is launched. So a test detects memory that is reused or read too
// early. It can also make calls fail.
class LazyQueue final : public GpuQueue {
 public:
  // A test uses it to control a queue that a runner owns.
  struct Control {
    int fail_copies = 0;  // the number of next calls of Copy that fail
    int fail_graphs = 0;  // the number of next calls of GpuGraph::Launch that fail
    bool full = false;    // allocations fail, as all work in Run
    bool lost = false;    // calls that reach the device fail, as after an illegal address
    int captures = 0;     // the number of graphs made
    int64_t late = 0;     // the most operations that waited at a time
    int waits = 0;        // the number of calls of Synchronize
    int64_t used = 0;     // bytes of the device that other programs use
  };

  explicit LazyQueue(std::shared_ptr<Control> control) : control_(std::move(control)) {}

  at::Device device() const override { return host_.device(); }
  // A caller asks for the stream to launch a kernel.
  kernels::cuda::Stream stream() const override {
    CatchUp();
    return host_.stream();
  }
  std::string name() const override { return host_.name(); }
  int64_t free_bytes() const override { return host_.free_bytes() - control_->used; }
  int64_t total_bytes() const override { return host_.total_bytes(); }
  absl::Status Run(absl::FunctionRef<absl::Status()> work) override {
    return control_->full ? absl::ResourceExhaustedError("full") : host_.Run(work);
  }
  absl::StatusOr<at::Tensor> HostBuffer(int64_t bytes) override { return host_.HostBuffer(bytes); }

  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    if (control_->lost) return Lost();
    if (control_->fail_copies > 0) {
      --control_->fail_copies;
      return absl::InternalError("no copy today");
    }
    return Later([this, to, from, bytes] { return host_.Copy(to, from, bytes); });
  }
  absl::StatusOr<std::shared_ptr<const HostFloats>> CopyToHost(DeviceFloats floats) override {
    if (control_->lost) return Lost();
    auto after = std::make_unique<Event>(this);
    if (absl::Status status = after->Record(); !status.ok()) return status;
    auto copy = host_.CopyToHost(std::move(floats));
    if (!copy.ok()) return copy;
    return std::make_shared<const Copied>(std::move(after), *std::move(copy));
  }
  absl::Status CopyFromHost(void* to, const void* from, int64_t bytes) override {
    if (control_->lost) return Lost();
    if (control_->fail_copies > 0) {
      --control_->fail_copies;
      return absl::InternalError("no copy today");
    }
    std::string content(static_cast<const char*>(from), static_cast<size_t>(bytes));
    return Later([this, to, content = std::move(content)] {
      return host_.Copy(to, content.data(), static_cast<int64_t>(content.size()));
    });
  }
  absl::StatusOr<std::unique_ptr<GpuEvent>> MakeEvent() override {
    return std::make_unique<Event>(this);
  }
  absl::StatusOr<std::unique_ptr<GpuGraph>> Capture(std::function<absl::Status()> work) override {
    ++control_->captures;
    return std::make_unique<Graph>(this, std::move(work));
  }
  absl::Status Synchronize() override {
    ++control_->waits;
    CatchUp();
    return control_->lost ? Lost() : absl::OkStatus();
  }

 private:
  static absl::Status Lost() { return absl::InternalError("an illegal address"); }

  class Event final : public GpuEvent {
   public:
    explicit Event(LazyQueue* queue) : queue_(queue) {}
    absl::Status Record() override {
      const int64_t time = ++time_;
      return queue_->Later([this, time] {
        passed_ = time;
        return absl::OkStatus();
      });
    }
    absl::Status Wait() override {
      while (passed_ < time_) queue_->DoOne();
      return queue_->control_->lost ? Lost() : absl::OkStatus();
    }
    double SecondsSince(const GpuEvent& /*earlier*/) const override { return 0.5; }

   private:
    LazyQueue* const queue_;
    int64_t time_ = 0;    // the number of calls of Record
    int64_t passed_ = 0;  // the last of them that the device has passed
  };

  // Copies as late as a device may: when the copy is asked for.
  class Copied final : public HostFloats {
   public:
    Copied(std::unique_ptr<Event> after, std::shared_ptr<const HostFloats> copy)
        : after_(std::move(after)), copy_(std::move(copy)) {}
    int64_t bytes() const override { return copy_->bytes(); }
    absl::StatusOr<const float*> Get() const override {
      if (absl::Status status = after_->Wait(); !status.ok()) return status;
      return copy_->Get();
    }

   private:
    const std::unique_ptr<Event> after_;
    const std::shared_ptr<const HostFloats> copy_;
  };

  class Graph final : public GpuGraph {
   public:
    Graph(LazyQueue* queue, std::function<absl::Status()> work)
        : queue_(queue), work_(std::move(work)) {}
    absl::Status Launch() override {
      if (queue_->control_->fail_graphs > 0) {
        --queue_->control_->fail_graphs;
        return absl::InternalError("no graph today");
      }
      return queue_->Later([this] { return queue_->host_.Run(work_); });
    }

   private:
    LazyQueue* const queue_;
    const std::function<absl::Status()> work_;
  };

  absl::Status Later(std::function<absl::Status()> work) {
    waiting_.push_back(std::move(work));
    control_->late = std::max(control_->late, static_cast<int64_t>(waiting_.size()));
    return absl::OkStatus();
  }
  // Sets running_, so that the kernels of a graph do not run later operations (CatchUp).
  void DoOne() const {
    AFT_CHECK(!waiting_.empty());
    const std::function<absl::Status()> work = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    AFT_CHECK(work().ok());
    running_ = false;
  }
  void CatchUp() const {
    while (!running_ && !waiting_.empty()) DoOne();
  }

  mutable HostQueue host_;
  const std::shared_ptr<Control> control_;
  mutable std::deque<std::function<absl::Status()>> waiting_;
  mutable bool running_ = false;
};

// The GPU of a test program. In host_test_queue.cc it is emulated, and `control`, if given, makes
// it late and lets it fail. In cuda_test_queue.cc it is the machine's first, without `control`.
std::unique_ptr<GpuQueue> MakeTestQueue(std::shared_ptr<LazyQueue::Control> control = nullptr);
at::Device TestDevice();

}  // namespace aft
