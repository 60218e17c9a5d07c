#include "model/gpu/cuda_queue.h"

#include <cuda_runtime_api.h>

#include <bit>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ATen/Context.h"
#include "ATen/cuda/CUDAGraph.h"
#include "ATen/ops/empty.h"
#include "ATen/ops/from_blob.h"
#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "c10/core/InferenceMode.h"
#include "c10/cuda/CUDACachingAllocator.h"
#include "c10/cuda/CUDAGuard.h"
#include "c10/cuda/CUDAStream.h"
#include "c10/util/Exception.h"
#include "model/gpu/device_tensor.h"
#include "model/runtime/torch_guard.h"

namespace aft {
namespace {

// The oldest compute capability that cmake/Cuda.cmake compiles for.
constexpr int kOldestMajor = 8;

constexpr char kWorkspaceVariable[] = "CUBLAS_WORKSPACE_CONFIG";

absl::Status CudaStatus(cudaError_t error, absl::string_view call) {
  if (error == cudaSuccess) return absl::OkStatus();
  static_cast<void>(cudaGetLastError());  // otherwise LibTorch would report the error later
  const std::string text = absl::StrCat(call, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? absl::ResourceExhaustedError(text)
                                            : absl::InternalError(text);
}

// Calls CUDA with the stream's device current. LibTorch's guard may throw after the device was
// lost, and destructors come here too.
absl::Status OnDevice(const c10::cuda::CUDAStream& stream, absl::string_view name,
                      absl::FunctionRef<cudaError_t()> call) {
  return GuardTorch([&] {
    const c10::cuda::CUDAGuard on_device(stream.device_index());
    return CudaStatus(call(), name);
  });
}

// The device's memory that LibTorch's allocator holds unused, in whole segments. The unused ends of
// other segments are too small to count on.
int64_t CachedBytes(c10::DeviceIndex device) {
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device);
  return stats.reserved_bytes[kAll].current - stats.active_bytes[kAll].current -
         stats.inactive_split_bytes[kAll].current;
}

struct Streams {
  c10::cuda::CUDAStream work;
  c10::cuda::CUDAStream to_host;
};

// The streams of all queues of the process. LibTorch's pool has only 32 for each device and hands
// them out in turn. A later queue would get the streams of one that is in use, and would capture
// the work of both. Streams are not destroyed, because LibTorch never releases the workspace that
// cuBLAS has for a stream. A later queue uses them again.
class AllStreams {
 public:
  static AllStreams& Get() {
    static AllStreams& all = *new AllStreams;
    return all;
  }

  // REQUIRES: `device` is current.
  absl::StatusOr<Streams> Take(c10::DeviceIndex device) {
    {
      const MutexLock lock(mutex_);
      if (std::vector<Streams>& unused = unused_[device]; !unused.empty()) {
        const Streams streams = unused.back();
        unused.pop_back();
        return streams;
      }
    }
    cudaStream_t work = nullptr;
    cudaStream_t to_host = nullptr;
    cudaError_t error = cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&to_host, cudaStreamNonBlocking);
    if (error != cudaSuccess && work != nullptr) static_cast<void>(cudaStreamDestroy(work));
    AFT_RETURN_IF_ERROR(CudaStatus(error, "cudaStreamCreateWithFlags"));
    {
      const MutexLock lock(mutex_);
      std::vector<Streams>& unused = unused_[device];
      unused.reserve(unused.capacity() + 1);  // so that GiveBack needs no memory
    }
    return Streams{c10::cuda::getStreamFromExternal(work, device),
                   c10::cuda::getStreamFromExternal(to_host, device)};
  }

  void GiveBack(const Streams& streams) {
    const MutexLock lock(mutex_);
    unused_[streams.work.device_index()].push_back(streams);
  }

 private:
  Mutex mutex_;
  std::map<c10::DeviceIndex, std::vector<Streams>> unused_ ABSL_GUARDED_BY(mutex_);
};

class CudaEvent final : public GpuEvent {
 public:
  static absl::StatusOr<std::unique_ptr<CudaEvent>> Create(const c10::cuda::CUDAStream& stream,
                                                           unsigned flags) {
    cudaEvent_t event = nullptr;
    AFT_RETURN_IF_ERROR(OnDevice(stream, "cudaEventCreateWithFlags",
                                 [&] { return cudaEventCreateWithFlags(&event, flags); }));
    return std::make_unique<CudaEvent>(event, stream);
  }
  CudaEvent(cudaEvent_t event, c10::cuda::CUDAStream stream) : event_(event), stream_(stream) {}
  ~CudaEvent() override {
    OnDevice(stream_, "cudaEventDestroy", [this] {
      return cudaEventDestroy(event_);
    }).IgnoreError();
  }

  absl::Status Record() override {
    return OnDevice(stream_, "cudaEventRecord",
                    [this] { return cudaEventRecord(event_, stream_.stream()); });
  }
  absl::Status Wait() override {
    return OnDevice(stream_, "cudaEventSynchronize",
                    [this] { return cudaEventSynchronize(event_); });
  }
  // Later work on `other`, which is a stream of this device, waits for the last Record.
  absl::Status Block(const c10::cuda::CUDAStream& other) {
    return OnDevice(other, "cudaStreamWaitEvent", [&] {
      return cudaStreamWaitEvent(other.stream(), event_, cudaEventWaitDefault);
    });
  }
  double SecondsSince(const GpuEvent& earlier) const override {
    float milliseconds = 0;
    const cudaEvent_t from = static_cast<const CudaEvent&>(earlier).event_;
    const absl::Status status =
        CudaStatus(cudaEventElapsedTime(&milliseconds, from, event_), "cudaEventElapsedTime");
    return status.ok() ? milliseconds * 1e-3 : 0.0;
  }

 private:
  const cudaEvent_t event_;
  const c10::cuda::CUDAStream stream_;
};

// Floats in pinned memory, which LibTorch's allocator gives to others only after the copy. It keeps
// released memory for them, because cudaFreeHost would wait for the device.
class PinnedFloats final : public HostFloats {
 public:
  PinnedFloats(std::shared_ptr<const at::Tensor> floats, std::unique_ptr<CudaEvent> arrived)
      : floats_(std::move(floats)), arrived_(std::move(arrived)) {}

  // LibTorch's allocator rounds sizes of pinned memory up to a power of two.
  int64_t bytes() const override {
    return static_cast<int64_t>(std::bit_ceil(uint64_t{floats_->nbytes()}));
  }
  absl::StatusOr<const float*> Get() const override {
    AFT_RETURN_IF_ERROR(arrived_->Wait());
    return floats_->const_data_ptr<float>();
  }

 private:
  const std::shared_ptr<const at::Tensor> floats_;
  const std::unique_ptr<CudaEvent> arrived_;
};

class CudaGraph final : public GpuGraph {
 public:
  CudaGraph(std::unique_ptr<at::cuda::CUDAGraph> graph, c10::cuda::CUDAStream stream)
      : graph_(std::move(graph)), executable_(graph_->raw_cuda_graph_exec()), stream_(stream) {}

  // Does the work of the first launch now: it takes the device's memory for the graph.
  absl::Status Upload() {
    return CudaStatus(cudaGraphUpload(executable_, stream_.stream()), "cudaGraphUpload");
  }

  // at::cuda::CUDAGraph::replay is not used: it also advances LibTorch's random numbers.
  absl::Status Launch() override {
    return OnDevice(stream_, "cudaGraphLaunch",
                    [this] { return cudaGraphLaunch(executable_, stream_.stream()); });
  }

 private:
  const std::unique_ptr<at::cuda::CUDAGraph> graph_;
  const cudaGraphExec_t executable_;
  const c10::cuda::CUDAStream stream_;
};

// Every call makes the queue's device current for its duration. So no context of another device is
// opened by accident, whichever thread calls and whatever device was current there.
class CudaQueue final : public GpuQueue {
 public:
  CudaQueue(const Streams& streams, std::string name)
      : stream_(streams.work),
        to_host_(streams.to_host),
        name_(std::move(name)),
        graph_pool_(at::cuda::graph_pool_handle()) {}
  // Work that still waits on a stream runs before the work of the next queue.
  ~CudaQueue() override { AllStreams::Get().GiveBack({stream_, to_host_}); }

  at::Device device() const override { return stream_.device(); }
  kernels::cuda::Stream stream() const override { return stream_.stream(); }
  std::string name() const override { return name_; }

  int64_t free_bytes() const override { return Memory().free; }
  int64_t total_bytes() const override { return Memory().total; }

  absl::Status Run(absl::FunctionRef<absl::Status()> work) override { return OnStream(work); }

  absl::StatusOr<at::Tensor> HostBuffer(int64_t bytes) override {
    void* memory = nullptr;
    AFT_RETURN_IF_ERROR(OnStream([&] {
      return CudaStatus(
          cudaHostAlloc(&memory, static_cast<size_t>(bytes > 0 ? bytes : 1), cudaHostAllocDefault),
          absl::StrCat("cudaHostAlloc of ", bytes, " bytes"));
    }));
    return at::from_blob(
        memory, {bytes}, [](void* p) { static_cast<void>(cudaFreeHost(p)); },
        at::TensorOptions(at::kByte));
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return OnDevice(stream_, "cudaMemcpyAsync", [&] {
      return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                             stream_.stream());
    });
  }

  absl::StatusOr<std::shared_ptr<const HostFloats>> CopyToHost(DeviceFloats floats) override {
    std::shared_ptr<const HostFloats> copy;
    const absl::Status outcome = OnStream([&]() -> absl::Status {
      const at::Tensor& from = *static_cast<const at::Tensor*>(floats.owner.get());  // of Allocate
      std::shared_ptr<at::Tensor> to =
          Owned(at::empty(from.sizes(), at::TensorOptions(at::kFloat).pinned_memory(true)));
      AFT_ASSIGN_OR_RETURN(const std::unique_ptr<CudaEvent> ready,
                           CudaEvent::Create(stream_, cudaEventDisableTiming));
      AFT_ASSIGN_OR_RETURN(std::unique_ptr<CudaEvent> arrived,
                           CudaEvent::Create(to_host_, cudaEventDisableTiming));
      AFT_RETURN_IF_ERROR(ready->Record());
      AFT_RETURN_IF_ERROR(ready->Block(to_host_));
      const c10::cuda::CUDAStreamGuard on_their_stream(to_host_.unwrap());
      to->copy_(from, /*non_blocking=*/true);
      from.record_stream(to_host_.unwrap());  // its memory is not reused before
      AFT_RETURN_IF_ERROR(arrived->Record());
      copy = std::make_shared<const PinnedFloats>(std::move(to), std::move(arrived));
      return absl::OkStatus();
    });
    AFT_RETURN_IF_ERROR(outcome);
    return copy;
  }

  // From pinned memory, which LibTorch's allocator gives to others only after the copy.
  absl::Status CopyFromHost(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    return OnStream([&] {
      const at::TensorOptions options(at::kByte);
      const std::shared_ptr<at::Tensor> pinned =
          Owned(at::empty({bytes}, options.pinned_memory(true)));
      std::memcpy(pinned->mutable_data_ptr(), from, static_cast<size_t>(bytes));
      at::from_blob(to, {bytes}, options.device(device())).copy_(*pinned, /*non_blocking=*/true);
      return absl::OkStatus();
    });
  }

  absl::StatusOr<std::unique_ptr<GpuEvent>> MakeEvent() override {
    return CudaEvent::Create(stream_, cudaEventDefault);
  }

  // Uses LibTorch's capture, so that memory which its allocator hands out meanwhile remains the
  // graph's. thread_local: other threads may continue to use CUDA.
  absl::StatusOr<std::unique_ptr<GpuGraph>> Capture(std::function<absl::Status()> work) override {
    std::unique_ptr<CudaGraph> captured;
    const absl::Status outcome = OnStream([&]() -> absl::Status {
      auto graph = std::make_unique<at::cuda::CUDAGraph>();
      graph->capture_begin(graph_pool_, cudaStreamCaptureModeThreadLocal);
      const absl::Status status = GuardTorch(work);
      // The stream must leave the capture whatever happened.
      const absl::Status ended = GuardTorch([&] {
        graph->capture_end();
        return absl::OkStatus();
      });
      AFT_RETURN_IF_ERROR(status);
      AFT_RETURN_IF_ERROR(ended);
      captured = std::make_unique<CudaGraph>(std::move(graph), stream_);
      return captured->Upload();
    });
    AFT_RETURN_IF_ERROR(outcome);
    return captured;
  }

  absl::Status Synchronize() override {
    return OnDevice(stream_, "cudaStreamSynchronize",
                    [this] { return cudaStreamSynchronize(stream_.stream()); });
  }

 private:
  struct Bytes {
    int64_t free = 0;
    int64_t total = 0;
  };
  Bytes Memory() const {  // a device that does not answer has nothing free
    size_t free = 0;
    size_t total = 0;
    int64_t cached = 0;
    OnStream([&] {
      cached = CachedBytes(stream_.device_index());
      return CudaStatus(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    }).IgnoreError();
    if (total == 0) return {};
    return {static_cast<int64_t>(free) + cached, static_cast<int64_t>(total)};
  }

  absl::Status OnStream(absl::FunctionRef<absl::Status()> work) const {
    return GuardTorch([&]() -> absl::Status {
      const c10::cuda::CUDAStreamGuard on_our_stream(stream_.unwrap());
      const c10::InferenceMode inference;
      try {
        return work();
      } catch (const c10::OutOfMemoryError& error) {
        return absl::ResourceExhaustedError(error.what_without_backtrace());
      } catch (const c10::AcceleratorError& error) {  // pinned memory, among others
        if (error.get_error_code() != cudaErrorMemoryAllocation) throw;
        return absl::ResourceExhaustedError(error.what_without_backtrace());
      }
    });
  }

  const c10::cuda::CUDAStream stream_;
  const c10::cuda::CUDAStream to_host_;
  const std::string name_;
  const at::cuda::MempoolId_t graph_pool_;
};

// LibTorch's switches apply to the whole process. Every queue sets them to the same values.
void SetUpLibTorch() {
  at::Context& context = at::globalContext();
  context.lazyInitDevice(at::kCUDA);
  context.setAllowTF32CuBLAS(false);
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  context.setDeterministicAlgorithms(true, /*warn_only=*/false);
  context.setDeterministicFillUninitializedMemory(false);  // else at::empty costs a kernel
}

absl::StatusOr<std::string> CheckDevice(int device) {
  int count = 0;
  const absl::Status status = CudaStatus(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
  if (!status.ok()) return absl::UnavailableError(absl::StrCat("no GPU: ", status.message()));
  if (device >= count) {
    return absl::NotFoundError(absl::StrCat("cuda:", device, ": this machine has ", count,
                                            count == 1 ? " GPU" : " GPUs", ", counted from 0"));
  }
  cudaDeviceProp properties;
  AFT_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  const std::string name = absl::StrCat("cuda:", device, " (", properties.name, ")");
  if (properties.major < kOldestMajor) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": compute capability ",
                                                      properties.major, ".", properties.minor,
                                                      ", and ", kOldestMajor, ".0 is needed"));
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing changes the environment now
  if (std::getenv(kWorkspaceVariable) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(kWorkspaceVariable,
                     " is not set: unless it is set (to :4096:8, before the first "
                     "thread starts), products differ from run to run"));
  }
  return name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<GpuQueue>> OpenCudaQueue(int device) {
  return GuardTorch([&]() -> absl::StatusOr<std::unique_ptr<GpuQueue>> {
    AFT_ASSIGN_OR_RETURN(std::string name, CheckDevice(device));
    SetUpLibTorch();
    const auto index = static_cast<c10::DeviceIndex>(device);
    const c10::cuda::CUDAGuard on_device(index);
    AFT_ASSIGN_OR_RETURN(const Streams streams, AllStreams::Get().Take(index));
    return std::make_unique<CudaQueue>(streams, std::move(name));
  });
}

}  // namespace aft
