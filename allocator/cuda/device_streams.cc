// SPDX-License-Identifier: Apache-2.0
// Streams and events of a device.
#include <cstdint>

#include "allocator/cuda/cuda_api.h"
#include "allocator/cuda/current_device.h"
#include "allocator/cuda/device.h"
#include "allocator/cuda/device_calls.h"

namespace stratalloc {
namespace {

// "Not ready" is an answer. Some drivers keep it as the thread's last error,
// and driver 580 does not: there the last error is the program's own.
void ForgetNotReady(const CudaApi& api) {
  if (api.cudaPeekAtLastError() == cudaErrorNotReady) api.cudaGetLastError();
}

}  // namespace

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

bool Device::LastErrorIsOfACapture() const {
  const cudaError_t last = api_->cudaPeekAtLastError();
  return last == cudaErrorStreamCaptureInvalidated ||
         last == cudaErrorStreamCaptureUnjoined;
}

bool Device::IsIdle(StreamId stream) const {
  if (IsCapturing(stream)) return false;  // and asking would spoil it
  CurrentDevice current(*api_, DeviceOf(stream, index_));
  if (!current && !IsMade(stream)) return false;
  RelaxedCapture relaxed(*api_);
  const cudaError_t error = api_->cudaStreamQuery(ToCuda(stream));
  if (error == cudaErrorNotReady) {
    ForgetNotReady(*api_);
  } else if (error != cudaSuccess) {
    api_->cudaGetLastError();
  }
  return error == cudaSuccess;
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
    ForgetNotReady(*api_);
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

}  // namespace stratalloc
