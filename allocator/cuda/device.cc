// SPDX-License-Identifier: Apache-2.0
#include "allocator/cuda/device.h"

#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/cuda/cuda_api.h"

namespace stratalloc {
namespace {

// The primary context of a device, retained at first and never let go, as the
// runtime keeps it. nullptr, and why, if it cannot be had.
CUcontext ContextOf(const CudaApi& api, DeviceIndex index, CUresult* error) {
  static std::atomic<CUcontext> contexts[kMaxDevices];
  std::atomic<CUcontext>& known = contexts[static_cast<int>(index)];
  CUcontext context = known.load(std::memory_order_acquire);
  if (context != nullptr) return context;
  CUdevice device = 0;
  *error = api.cuDeviceGet(&device, static_cast<int>(index));
  if (*error != CUDA_SUCCESS) return nullptr;
  *error = api.cuDevicePrimaryCtxRetain(&context, device);
  if (*error != CUDA_SUCCESS) return nullptr;
  // Two threads may both retain it: it is the same one, and stays.
  known.store(context, std::memory_order_release);
  return context;
}

// Makes a device current for one scope. Not by cudaSetDevice: to go back with
// that makes a context on the device the thread was on, which on a thread that
// never chose one is the first device, perhaps used by nobody here. A context
// of the device that is current already (a green one, say) stays. Where it
// cannot be made current, what is asked next would be asked of the device that
// is, unless it names a stream or event that was made: callers look.
class CurrentDevice {
 public:
  CurrentDevice(const CudaApi& api, DeviceIndex index) : api_(api) {
    CUdevice current = 0;
    if (api_.cuCtxGetDevice(&current) == CUDA_SUCCESS &&
        current == static_cast<int>(index)) {
      return;
    }
    failed_ = "cuDevicePrimaryCtxRetain";
    const CUcontext context = ContextOf(api, index, &error_);
    if (context == nullptr) return;
    failed_ = "cuCtxPushCurrent";
    error_ = api_.cuCtxPushCurrent(context);
    pushed_ = error_ == CUDA_SUCCESS;
  }
  ~CurrentDevice() {
    CUcontext popped = nullptr;
    if (pushed_) api_.cuCtxPopCurrent(&popped);
  }
  explicit operator bool() const { return error_ == CUDA_SUCCESS; }
  // REQUIRES: it is not current.
  Error error() const { return DriverError(api_, failed_, error_); }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  const CudaApi& api_;
  CUresult error_ = CUDA_SUCCESS;
  const char* failed_ = "";
  bool pushed_ = false;
};

// While some stream captures in global mode, every thread on every device is
// forbidden what CUDA takes for unsafe (asking for an event, allocating,
// pinning, waiting), and one such call spoils the capture. Ours touch nothing
// that is captured. What a thread may call is a mode of the thread. Not for
// calls that are allowed always: virtual memory, asynchronous copies, recording
// events and asking whether a stream captures.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(const CudaApi& api)
      : api_(api),
        relaxed_(api_.cudaThreadExchangeStreamCaptureMode(&mode_) ==
                 cudaSuccess) {}
  ~RelaxedCapture() {
    if (relaxed_) api_.cudaThreadExchangeStreamCaptureMode(&mode_);
  }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  const CudaApi& api_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
  const bool relaxed_;
};

cudaStream_t ToCuda(StreamId stream) {
  return reinterpret_cast<cudaStream_t>(StreamValue(stream));
}
bool IsMade(StreamId stream) {
  const cudaStream_t made = ToCuda(stream);
  return made != nullptr && made != cudaStreamLegacy &&
         made != cudaStreamPerThread;
}
// The device of `stream`, where nothing else is said `index`.
DeviceIndex DeviceOf(StreamId stream, DeviceIndex index) {
  return IsElsewhere(stream) ? DeviceElsewhere(stream) : index;
}
cudaEvent_t ToCuda(EventId event) {
  return reinterpret_cast<cudaEvent_t>(Raw(event));
}
CUmemLocation On(DeviceIndex index) {
  CUmemLocation location{};
  location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = static_cast<int>(index);
  return location;
}
CUmemAllocationProp PinnedOn(DeviceIndex index) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = On(index);
  return properties;
}

}  // namespace

#define STRATALLOC_CUDA(call, name)                     \
  do {                                                  \
    if (cudaError_t e = (call); e != cudaSuccess)       \
      return tl::unexpected(CudaError(*api_, name, e)); \
  } while (false)
#define STRATALLOC_DRIVER(call, name)                     \
  do {                                                    \
    if (CUresult e = (call); e != CUDA_SUCCESS)           \
      return tl::unexpected(DriverError(*api_, name, e)); \
  } while (false)

// In a function that returns a Status or a Result.
#define STRATALLOC_ON_DEVICE(index)     \
  const CurrentDevice on(*api_, index); \
  if (!on) return tl::unexpected(on.error())
// What was made says itself of which device it is; a default stream does not.
#define STRATALLOC_ON_DEVICE_FOR(stream, index) \
  const CurrentDevice on(*api_, index);         \
  if (!on && !IsMade(stream)) return tl::unexpected(on.error())

Result<Device> Device::Open(DeviceIndex index) {
  STRATALLOC_ASSIGN_OR_RETURN(const CudaApi* api_, CudaApi::Get());
  CUresult refused = CUDA_SUCCESS;
  if (ContextOf(*api_, index, &refused) == nullptr) {
    return tl::unexpected(
        DriverError(*api_, "cuDevicePrimaryCtxRetain", refused));
  }
  STRATALLOC_ON_DEVICE(index);
  CUdevice device = 0;
  int supported = 0;
  STRATALLOC_DRIVER(api_->cuDeviceGet(&device, static_cast<int>(index)),
                    "cuDeviceGet");
  STRATALLOC_DRIVER(
      api_->cuDeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          device),
      "cuDeviceGetAttribute");
  if (supported == 0) {
    return Device(api_, index, 0)
        .WithoutVirtualMemory("it has no virtual memory management");
  }
  const CUmemAllocationProp properties = PinnedOn(index);
  std::size_t granularity = 0;
  STRATALLOC_DRIVER(
      api_->cuMemGetAllocationGranularity(&granularity, &properties,
                                          CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "cuMemGetAllocationGranularity");
  return Device(api_, index, granularity);
}

Device Device::WithHandles(HandleKind kind, std::string why) const {
  Device device = *this;
  device.kind_ = kind;
  device.why_not_exportable_ = std::move(why);
  return device;
}

Device Device::WithoutVirtualMemory(std::string why) const {
  Device device = *this;
  device.granularity_ = 0;
  device.why_unmanaged_ = std::move(why);
  return device;
}

bool Device::SaysRdma() const {
  CUdevice device = 0;
  int says = 0;
  return api_->cuDeviceGet(&device, static_cast<int>(index_)) == CUDA_SUCCESS &&
         api_->cuDeviceGetAttribute(
             &says, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED,
             device) == CUDA_SUCCESS &&
         says != 0;
}

Result<Card> Device::Look(DeviceIndex index) {
  STRATALLOC_ASSIGN_OR_RETURN(const CudaApi* api_, CudaApi::Get());
  CUdevice device = 0;
  STRATALLOC_DRIVER(api_->cuDeviceGet(&device, static_cast<int>(index)),
                    "cuDeviceGet");
  std::size_t memory = 0;
  STRATALLOC_DRIVER(api_->cuDeviceTotalMem(&memory, device),
                    "cuDeviceTotalMem");
  int supported = 0;
  STRATALLOC_DRIVER(
      api_->cuDeviceGetAttribute(
          &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
          device),
      "cuDeviceGetAttribute");
  return Card{memory, supported != 0};
}

Result<Address> Device::Malloc(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  void* address = nullptr;
  STRATALLOC_CUDA(api_->cudaMalloc(&address, bytes), "cudaMalloc");
  return reinterpret_cast<Address>(address);
}

Status Device::FreeMalloc(Address address) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaFree(reinterpret_cast<void*>(address)), "cudaFree");
  return {};
}

Result<Address> Device::ReserveAddress(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  CUdeviceptr address = 0;
  STRATALLOC_DRIVER(api_->cuMemAddressReserve(&address, bytes, 0, 0, 0),
                    "cuMemAddressReserve");
  return static_cast<Address>(address);
}

Status Device::FreeAddress(Address address, Bytes bytes) const {
  STRATALLOC_DRIVER(api_->cuMemAddressFree(address, bytes), "cuMemAddressFree");
  return {};
}

Result<PhysicalHandle> Device::CreateHandle(Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemAllocationProp properties = PinnedOn(index_);
  properties.requestedHandleTypes =
      kind_.exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
                       : CU_MEM_HANDLE_TYPE_NONE;
  properties.allocFlags.gpuDirectRDMACapable = kind_.rdma ? 1 : 0;
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(api_->cuMemCreate(&handle, bytes, &properties, 0),
                    "cuMemCreate");
  return PhysicalHandle{handle};
}

Status Device::ReleaseHandle(PhysicalHandle handle) const {
  STRATALLOC_DRIVER(api_->cuMemRelease(Raw(handle)), "cuMemRelease");
  return {};
}

Status Device::Map(Address address, Bytes bytes, PhysicalHandle handle) const {
  STRATALLOC_DRIVER(api_->cuMemMap(address, bytes, 0, Raw(handle), 0),
                    "cuMemMap");
  return {};
}

Status Device::GrantAccess(Address address, Bytes bytes,
                           const std::vector<DeviceIndex>& peers) const {
  Status granted = GrantAccess(address, bytes, index_);
  for (DeviceIndex peer : peers) {
    if (granted) granted = GrantAccess(address, bytes, peer);
  }
  return granted;
}

Status Device::GrantAccess(Address address, Bytes bytes, DeviceIndex to) const {
  CUmemAccessDesc access{};
  access.location = On(to);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  STRATALLOC_DRIVER(api_->cuMemSetAccess(address, bytes, &access, 1),
                    "cuMemSetAccess");
  return {};
}

Status Device::Unmap(Address address, Bytes bytes) const {
  STRATALLOC_DRIVER(api_->cuMemUnmap(address, bytes), "cuMemUnmap");
  return {};
}

Result<int> Device::ExportHandle(PhysicalHandle handle) const {
  if (!kind_.exportable) {
    return Fail(
        ErrorCode::kUnsupported,
        "memory of GPU " + std::to_string(static_cast<int>(index_)) +
            " cannot be given to another process, because the driver "
            "makes no memory for that" +
            (why_not_exportable_.empty() ? "" : ": " + why_not_exportable_) +
            ". Send a copy on the CPU");
  }
  int descriptor = -1;
  STRATALLOC_DRIVER(api_->cuMemExportToShareableHandle(
                        &descriptor, Raw(handle),
                        CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
                    "cuMemExportToShareableHandle");
  return descriptor;
}

Result<PhysicalHandle> Device::ImportDescriptor(int descriptor) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(
      api_->cuMemImportFromShareableHandle(
          &handle, reinterpret_cast<void*>(std::intptr_t{descriptor}),
          CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  return PhysicalHandle{handle};
}

Result<PhysicalHandle> Device::ImportFabric(const void* fabric_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  CUmemFabricHandle fabric;
  std::memcpy(&fabric, fabric_handle, sizeof fabric);
  CUmemGenericAllocationHandle handle = 0;
  STRATALLOC_DRIVER(api_->cuMemImportFromShareableHandle(
                        &handle, &fabric, CU_MEM_HANDLE_TYPE_FABRIC),
                    "cuMemImportFromShareableHandle");
  return PhysicalHandle{handle};
}

Status Device::ExportMalloc(Address address, void* malloc_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  static_assert(sizeof(cudaIpcMemHandle_t) == kMallocHandleBytes);
  STRATALLOC_CUDA(
      api_->cudaIpcGetMemHandle(static_cast<cudaIpcMemHandle_t*>(malloc_handle),
                                reinterpret_cast<void*>(address)),
      "cudaIpcGetMemHandle");
  return {};
}

Result<Address> Device::OpenMalloc(const void* malloc_handle) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  cudaIpcMemHandle_t handle;
  std::memcpy(&handle, malloc_handle, sizeof handle);
  void* address = nullptr;
  STRATALLOC_CUDA(api_->cudaIpcOpenMemHandle(&address, handle,
                                             cudaIpcMemLazyEnablePeerAccess),
                  "cudaIpcOpenMemHandle");
  return reinterpret_cast<Address>(address);
}

Status Device::CloseMalloc(Address address) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaIpcCloseMemHandle(reinterpret_cast<void*>(address)),
                  "cudaIpcCloseMemHandle");
  return {};
}

Result<MemoryInfo> Device::GetMemoryInfo() const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  std::size_t free = 0, total = 0;
  STRATALLOC_CUDA(api_->cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return MemoryInfo{free, total};
}

Status Device::EnablePeerAccess(DeviceIndex peer) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  const cudaError_t error =
      api_->cudaDeviceEnablePeerAccess(static_cast<int>(peer), 0);
  if (error == cudaErrorPeerAccessAlreadyEnabled) {
    api_->cudaGetLastError();
    return {};
  }
  STRATALLOC_CUDA(error, "cudaDeviceEnablePeerAccess");
  return {};
}

Result<StreamId> Device::CreateStream() const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  cudaStream_t stream = nullptr;
  STRATALLOC_CUDA(
      api_->cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
      "cudaStreamCreateWithFlags");
  return StreamId{reinterpret_cast<std::uint64_t>(stream)};
}

void Device::DestroyStream(StreamId stream) const {
  CurrentDevice current(*api_, index_);
  RelaxedCapture relaxed(*api_);
  api_->cudaStreamDestroy(ToCuda(stream));
}

bool Device::IsCapturing(StreamId stream) const {
  const cudaStream_t asked = ToCuda(stream);
  if (asked == nullptr || asked == cudaStreamLegacy) return false;
  // A stream that was made says itself of which device it is; but on a thread
  // without a context the runtime would make one first.
  CurrentDevice current(*api_, DeviceOf(stream, index_));
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (api_->cudaStreamIsCapturing(asked, &status) != cudaSuccess) {
    api_->cudaGetLastError();
    return false;
  }
  return status != cudaStreamCaptureStatusNone;
}

bool Device::IsIdle(StreamId stream) const {
  if (IsCapturing(stream)) return false;  // and asking would spoil it
  CurrentDevice current(*api_, DeviceOf(stream, index_));
  if (!current && !IsMade(stream)) return false;
  RelaxedCapture relaxed(*api_);
  const bool idle = api_->cudaStreamQuery(ToCuda(stream)) == cudaSuccess;
  if (!idle) api_->cudaGetLastError();
  return idle;
}

Status Device::SynchronizeStream(StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, DeviceOf(stream, index_));
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaStreamSynchronize(ToCuda(stream)),
                  "cudaStreamSynchronize");
  return {};
}

Status Device::SynchronizeDevice(StreamId of) const {
  STRATALLOC_ON_DEVICE(DeviceOf(of, index_));
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return {};
}

Result<EventId> Device::CreateEvent(StreamId stream) const {
  STRATALLOC_ON_DEVICE(DeviceOf(stream, index_));
  cudaEvent_t event = nullptr;
  STRATALLOC_CUDA(
      api_->cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
      "cudaEventCreateWithFlags");
  return EventId{reinterpret_cast<std::uint64_t>(event)};
}

void Device::DestroyEvent(EventId event) const {
  CurrentDevice current(*api_, index_);
  api_->cudaEventDestroy(ToCuda(event));
}

Status Device::RecordEvent(EventId event, StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, DeviceOf(stream, index_));
  STRATALLOC_CUDA(api_->cudaEventRecord(ToCuda(event), ToCuda(stream)),
                  "cudaEventRecord");
  return {};
}

Status Device::StreamWaitEvent(StreamId stream, EventId event) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(api_->cudaStreamWaitEvent(ToCuda(stream), ToCuda(event), 0),
                  "cudaStreamWaitEvent");
  return {};
}

Result<bool> Device::IsEventDone(EventId event) const {
  CurrentDevice current(*api_, index_);
  RelaxedCapture relaxed(*api_);
  const cudaError_t error = api_->cudaEventQuery(ToCuda(event));
  if (error == cudaErrorNotReady) {
    api_->cudaGetLastError();
    return false;
  }
  STRATALLOC_CUDA(error, "cudaEventQuery");
  return true;
}

Status Device::SynchronizeEvent(EventId event) const {
  CurrentDevice current(*api_, index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaEventSynchronize(ToCuda(event)),
                  "cudaEventSynchronize");
  return {};
}

Status Device::CopyToHost(void* to, Address from, Bytes bytes,
                          StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(to, reinterpret_cast<const void*>(from), bytes,
                            cudaMemcpyDeviceToHost, ToCuda(stream)),
      "cudaMemcpyAsync (device to host)");
  return {};
}

Status Device::CopyToDevice(Address to, const void* from, Bytes bytes,
                            StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(reinterpret_cast<void*>(to), from, bytes,
                            cudaMemcpyHostToDevice, ToCuda(stream)),
      "cudaMemcpyAsync (host to device)");
  return {};
}

Status Device::CopyOnDevice(Address to, Address from, Bytes bytes,
                            StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(
      api_->cudaMemcpyAsync(reinterpret_cast<void*>(to),
                            reinterpret_cast<const void*>(from), bytes,
                            cudaMemcpyDeviceToDevice, ToCuda(stream)),
      "cudaMemcpyAsync (device to device)");
  return {};
}

Status Device::FillWithZeros(Address to, Bytes bytes, StreamId stream) const {
  STRATALLOC_ON_DEVICE_FOR(stream, index_);
  STRATALLOC_CUDA(api_->cudaMemsetAsync(reinterpret_cast<void*>(to), 0, bytes,
                                        ToCuda(stream)),
                  "cudaMemsetAsync");
  return {};
}

int Device::CopyPeer(Address to, DeviceIndex to_device, Address from,
                     DeviceIndex from_device, Bytes bytes, StreamId stream,
                     bool p2p_enabled) const {
  void* const dst = reinterpret_cast<void*>(to);
  const void* const src = reinterpret_cast<const void*>(from);
  // Ranges mapped through VMM are not reachable by a plain copy between
  // devices unless peer access was granted; the peer copy stages by itself.
  if (!p2p_enabled && to_device != from_device) {
    return api_->cudaMemcpyPeerAsync(dst, static_cast<int>(to_device), src,
                                     static_cast<int>(from_device), bytes,
                                     ToCuda(stream));
  }
  return api_->cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice,
                               ToCuda(stream));
}

Status Device::RegisterHost(void* address, Bytes bytes) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(
      api_->cudaHostRegister(address, bytes, cudaHostRegisterPortable),
      "cudaHostRegister");
  return {};
}

Status Device::UnregisterHost(void* address) const {
  CurrentDevice current(*api_, index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_CUDA(api_->cudaHostUnregister(address), "cudaHostUnregister");
  return {};
}

namespace {

// Modules are never unloaded, so each is loaded once per device, which must be
// current.
Result<CUmodule> ModuleOf(const CudaApi* api_, DeviceIndex device,
                          const void* fatbin) {
  struct Loaded {
    DeviceIndex device;
    const void* fatbin;
    CUmodule module;
  };
  static Mutex mutex(LockRank::kInterner);
  static auto* const all = new std::vector<Loaded>;
  MutexLock lock(mutex);
  for (const Loaded& loaded : *all) {
    if (loaded.device == device && loaded.fatbin == fatbin) {
      return loaded.module;
    }
  }
  CUmodule module = nullptr;
  STRATALLOC_DRIVER(api_->cuModuleLoadData(&module, fatbin),
                    "cuModuleLoadData");
  all->push_back({device, fatbin, module});
  return module;
}

}  // namespace

Result<void*> Device::LoadKernel(const void* fatbin, const char* name) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_ASSIGN_OR_RETURN(const CUmodule module,
                              ModuleOf(api_, index_, fatbin));
  CUfunction function = nullptr;
  STRATALLOC_DRIVER(api_->cuModuleGetFunction(&function, module, name),
                    "cuModuleGetFunction");
  return static_cast<void*>(function);
}

Result<Address> Device::LoadVariable(const void* fatbin,
                                     const char* name) const {
  STRATALLOC_ON_DEVICE(index_);
  RelaxedCapture relaxed(*api_);
  STRATALLOC_ASSIGN_OR_RETURN(const CUmodule module,
                              ModuleOf(api_, index_, fatbin));
  CUdeviceptr address = 0;
  STRATALLOC_DRIVER(api_->cuModuleGetGlobal(&address, nullptr, module, name),
                    "cuModuleGetGlobal");
  return static_cast<Address>(address);
}

Status Device::Launch(void* kernel, unsigned blocks, unsigned threads,
                      StreamId stream, void** arguments) const {
  // A stream says of which device it is, but CUDA takes no launch from
  // elsewhere.
  STRATALLOC_ON_DEVICE(index_);
  STRATALLOC_DRIVER(
      api_->cuLaunchKernel(
          static_cast<CUfunction>(kernel), blocks, 1, 1, threads, 1, 1, 0,
          reinterpret_cast<CUstream>(Raw(stream)), arguments, nullptr),
      "cuLaunchKernel");
  return {};
}

}  // namespace stratalloc
