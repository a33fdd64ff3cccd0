// SPDX-License-Identifier: Apache-2.0
//
// The driver's streams and events.

#include <cuda.h>

#include "tests/cudasim/ordering.h"
#include "tests/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) static_cast<CUresult>(status)

namespace {

CUresult Answer(cudasim::Status status) {
  return static_cast<CUresult>(status);
}

template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

constexpr auto kBroken = cudasim::Entry::kAllowedWhenBroken;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned flags,
                                            int priority) {
  CUDASIM_ENTER("cuStreamCreateWithPriority", kBroken);
  CUDASIM_NEEDS_CONTEXT();
  return Answer(cudasim::StreamCreate(flags, priority,
                                      reinterpret_cast<uint64_t*>(stream)));
}

CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned flags) {
  CUDASIM_ENTER("cuStreamCreate", kBroken);
  CUDASIM_NEEDS_CONTEXT();
  return Answer(
      cudasim::StreamCreate(flags, 0, reinterpret_cast<uint64_t*>(stream)));
}

CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
  CUDASIM_ENTER("cuStreamDestroy", kBroken);
  return Answer(cudasim::StreamDestroy(Number(stream)));
}

CUresult CUDAAPI cuStreamSynchronize(CUstream stream) {
  CUDASIM_ENTER("cuStreamSynchronize");
  return Answer(cudasim::StreamSynchronize(Number(stream)));
}

CUresult CUDAAPI cuStreamQuery(CUstream stream) {
  CUDASIM_ENTER("cuStreamQuery");
  return Answer(cudasim::StreamQuery(Number(stream)));
}

CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event,
                                   unsigned flags) {
  CUDASIM_ENTER("cuStreamWaitEvent", kBroken);
  if ((flags & ~CU_EVENT_WAIT_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Answer(
      cudasim::StreamWaitEvent(Number(stream), Number(event), flags != 0));
}

CUresult CUDAAPI cuStreamGetPriority(CUstream stream, int* priority) {
  CUDASIM_ENTER("cuStreamGetPriority", kBroken);
  return Answer(
      cudasim::StreamInfo(Number(stream), nullptr, priority, nullptr));
}

CUresult CUDAAPI cuStreamGetFlags(CUstream stream, unsigned* flags) {
  CUDASIM_ENTER("cuStreamGetFlags");
  return Answer(cudasim::StreamInfo(Number(stream), flags, nullptr, nullptr));
}

CUresult CUDAAPI cuStreamGetId(CUstream stream, unsigned long long* id) {
  CUDASIM_ENTER("cuStreamGetId");
  if (id != nullptr) *id = Number(stream);
  return Answer(cudasim::StreamInfo(Number(stream), nullptr, nullptr, nullptr));
}

CUresult CUDAAPI cuLaunchHostFunc(CUstream stream, CUhostFn function,
                                  void* argument) {
  CUDASIM_ENTER("cuLaunchHostFunc");
  CUDASIM_NEEDS_CONTEXT();
  return Answer(cudasim::StreamCall(Number(stream), function, argument));
}

CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned flags) {
  CUDASIM_ENTER("cuEventCreate", kBroken);
  CUDASIM_NEEDS_CONTEXT();
  return Answer(
      cudasim::EventCreate(flags, reinterpret_cast<uint64_t*>(event)));
}

CUresult CUDAAPI cuEventDestroy(CUevent event) {
  CUDASIM_ENTER("cuEventDestroy", kBroken);
  return Answer(cudasim::EventDestroy(Number(event)));
}

CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
  CUDASIM_ENTER("cuEventRecord", kBroken);
  return Answer(cudasim::EventRecord(Number(event), Number(stream)));
}

CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream,
                                        unsigned flags) {
  CUDASIM_ENTER("cuEventRecordWithFlags", kBroken);
  if ((flags & ~CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_INVALID_VALUE;
  return Answer(
      cudasim::EventRecord(Number(event), Number(stream), flags != 0));
}

CUresult CUDAAPI cuEventQuery(CUevent event) {
  CUDASIM_ENTER("cuEventQuery");
  return Answer(cudasim::EventQuery(Number(event)));
}

CUresult CUDAAPI cuEventSynchronize(CUevent event) {
  CUDASIM_ENTER("cuEventSynchronize");
  return Answer(cudasim::EventSynchronize(Number(event)));
}

CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start,
                                    CUevent end) {
  CUDASIM_ENTER("cuEventElapsedTime");
  return Answer(
      cudasim::EventElapsed(milliseconds, Number(start), Number(end)));
}

}  // extern "C"
#pragma GCC visibility pop
