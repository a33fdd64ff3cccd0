// SPDX-License-Identifier: Apache-2.0
// State of the calling thread for one scope: the device that is current, and
// what a thread may call while a stream captures. Only methods of Device use
// it; other rooms call those.
//
// Thread-safety: an object belongs to the thread that made it.
// Locks: takes none, and may be used under any.
// Errors: a device that cannot be made current is false, and says why.
// Lifetime: the scope; the primary context stays to the end of the process.
// Invariants: the destructors leave the thread as the constructors found it.
#ifndef STRATALLOC_ALLOCATOR_CUDA_CURRENT_DEVICE_H_
#define STRATALLOC_ALLOCATOR_CUDA_CURRENT_DEVICE_H_

#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/cuda/cuda_api.h"

namespace stratalloc {

// The primary context of a device, retained at first and never let go, as the
// runtime keeps it. nullptr, and why, if it cannot be had.
CUcontext PrimaryContext(const CudaApi& api, DeviceIndex index,
                         CUresult* error);

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
    Push(index);
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
  void Push(DeviceIndex index);

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

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_CURRENT_DEVICE_H_
