// SPDX-License-Identifier: Apache-2.0
// One CUDA device as the rest of the product sees it: address space, physical
// handles, mappings, streams, events, copies, pinned host memory, one kernel
// launch. A thin, stateless layer over CudaApi in our own types, so that no
// other room includes a CUDA header.
//
// Thread-safety: every method may be called from any thread; each borrows the
// device's primary context for its own calls and leaves the thread as it was:
// the same context current, the same device, and no context made on that one.
// Captures: no call here spoils another stream's capture, in whatever mode and
// of whatever device; on a stream that captures only IsCapturing is to be
// asked. Locks: takes none. Driver calls here may block for microseconds; the
// ones that wait for the device (Synchronize*, *Synchronous) say so and must
// not be called under a device lock. Fails: with kOutOfMemory where CUDA says
// so, kNotReady where the driver says that of mapping memory (some do so now
// and then while work is pending), else kDevice naming the call.
#ifndef STRATALLOC_ALLOCATOR_CUDA_DEVICE_H_
#define STRATALLOC_ALLOCATOR_CUDA_DEVICE_H_

#include <cstddef>
#include <string>
#include <vector>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/values/memory_info.h"

namespace stratalloc {

struct CudaApi;

// A physical allocation (CUmemGenericAllocationHandle).
enum class PhysicalHandle : std::uint64_t {};
inline constexpr PhysicalHandle kNoHandle{0};

// What a device says of itself to whoever does not use it.
struct Card {
  Bytes memory = 0;
  bool virtual_memory = false;
};

// How handles are made. See handle_probe.h for who finds out.
struct HandleKind {
  bool exportable = false;  // to other processes, as a file descriptor
  bool rdma = false;        // network cards may reach them (GPUDirect RDMA)
};

class Device {
 public:
  // Looks CUDA up, asks `index` for its mapping granularity and makes its
  // primary context, if nobody has, which stays to the end of the process.
  static Result<Device> Open(DeviceIndex index);
  // Makes no context.
  static Result<Card> Look(DeviceIndex index);

  DeviceIndex index() const { return index_; }
  // False on a few devices and virtual machines: they have Malloc and
  // FreeMalloc, and nothing of reservations, handles and mappings.
  bool has_virtual_memory() const { return granularity_ != 0; }
  // "it has ...": why not; "" if it has.
  const std::string& why_no_virtual_memory() const { return why_unmanaged_; }
  // The same device, which makes handles of that kind, or none. `why`: those of
  // it cannot be exported.
  Device WithHandles(HandleKind kind, std::string why) const;
  Device WithoutVirtualMemory(std::string why) const;
  HandleKind handles() const { return kind_; }
  // Does the driver say that handles can be made for GPUDirect RDMA?
  bool SaysRdma() const;
  // Mapping granularity: 2 MiB on every device so far. 0 without virtual
  // memory management.
  Bytes granularity() const { return granularity_; }

  // cudaMalloc and cudaFree.
  Result<Address> Malloc(Bytes bytes) const;
  Status FreeMalloc(Address address) const;  // waits for the device

  Result<Address> ReserveAddress(Bytes bytes) const;
  Status FreeAddress(Address address, Bytes bytes) const;
  Result<PhysicalHandle> CreateHandle(Bytes bytes) const;  // of handles()
  Status ReleaseHandle(PhysicalHandle handle) const;
  // Without access rights.
  Status Map(Address address, Bytes bytes, PhysicalHandle handle) const;
  // Grants read and write access to a range of whole mappings, in one call of
  // the driver: to this device and `peers`. Again is no error.
  Status GrantAccess(Address address, Bytes bytes,
                     const std::vector<DeviceIndex>& peers) const;
  Status Unmap(Address address, Bytes bytes) const;
  // A file descriptor that stands for the handle in another process and holds
  // its memory while it is open; the caller's to close. kUnsupported, saying
  // why, unless handles() are exportable.
  Result<int> ExportHandle(PhysicalHandle handle) const;
  // The handle behind a descriptor or behind the 64 bytes of a fabric handle.
  Result<PhysicalHandle> ImportDescriptor(int descriptor) const;
  Result<PhysicalHandle> ImportFabric(const void* fabric_handle) const;
  // The memory of another process's cudaMalloc, by its 64-byte handle.
  static constexpr std::size_t kMallocHandleBytes = 64;
  Status ExportMalloc(Address address, void* malloc_handle) const;
  Result<Address> OpenMalloc(const void* malloc_handle) const;
  Status CloseMalloc(Address address) const;
  Result<MemoryInfo> GetMemoryInfo() const;
  Status EnablePeerAccess(DeviceIndex peer) const;

  Result<StreamId> CreateStream() const;  // non-blocking
  void DestroyStream(StreamId stream) const;
  // True while `stream` captures a graph (always false if CUDA cannot say, and
  // for the default stream, which cannot capture: nobody is asked).
  bool IsCapturing(StreamId stream) const;
  // Has this thread's last failed call of the runtime, whose error it has not
  // read yet, found a capture that is spoilt or whose streams did not join? So
  // it is behind a cudaStreamEndCapture that made no graph. Keeps the error.
  bool LastErrorIsOfACapture() const;
  // Has everything enqueued on `stream` run? False if CUDA cannot say, and
  // while it captures.
  bool IsIdle(StreamId stream) const;
  Status SynchronizeStream(StreamId stream) const;  // waits for the device
  // Waits for the device, or for the other device that `of` is of.
  Status SynchronizeDevice(StreamId of = kDefaultStream) const;
  // Timing disabled. For streams of the device that `stream` is of.
  Result<EventId> CreateEvent(StreamId stream = kDefaultStream) const;
  void DestroyEvent(EventId event) const;
  Status RecordEvent(EventId event, StreamId stream) const;
  Status StreamWaitEvent(StreamId stream, EventId event) const;
  Result<bool> IsEventDone(EventId event) const;  // never waits
  Status SynchronizeEvent(EventId event) const;   // waits for the device

  Status CopyToHost(void* to, Address from, Bytes bytes,
                    StreamId stream) const;  // asynchronous for pinned memory
  Status CopyToDevice(Address to, const void* from, Bytes bytes,
                      StreamId stream) const;
  Status CopyOnDevice(Address to, Address from, Bytes bytes,
                      StreamId stream) const;
  Status FillWithZeros(Address to, Bytes bytes, StreamId stream) const;
  // cudaMemcpyAsync between any two addresses (direction from the pointers), on
  // the caller's current device, since a stream of 0 is that one's default.
  // The raw CUDA error is returned for torch's memcpyAsync contract.
  int CopyPeer(Address to, DeviceIndex to_device, Address from,
               DeviceIndex from_device, Bytes bytes, StreamId stream,
               bool p2p_enabled) const;

  Status RegisterHost(void* address, Bytes bytes) const;
  Status UnregisterHost(void* address) const;

  // Loads a fatbin, once, and finds a kernel or a variable in it; both live as
  // long as the process.
  Result<void*> LoadKernel(const void* fatbin, const char* name) const;
  Result<Address> LoadVariable(const void* fatbin, const char* name) const;
  Status Launch(void* kernel, unsigned blocks, unsigned threads,
                StreamId stream, void** arguments) const;

 private:
  Device(const CudaApi* api, DeviceIndex index, Bytes granularity)
      : api_(api), index_(index), granularity_(granularity) {}

  const CudaApi* api_;  // process-wide, never null
  DeviceIndex index_;
  Bytes granularity_;
  HandleKind kind_;
  std::string why_not_exportable_;
  std::string why_unmanaged_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_DEVICE_H_
