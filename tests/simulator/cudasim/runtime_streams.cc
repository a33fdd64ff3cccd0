// SPDX-License-Identifier: Apache-2.0
//
// The runtime's streams and events; those as in the driver are stream_calls.inc
// in its words.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::Number;

namespace {

using Stream = cudaStream_t;
using Event = cudaEvent_t;

constexpr auto kWaitExternal = cudaEventWaitExternal;
constexpr auto kRecordExternal = cudaEventRecordExternal;

}  // namespace

#include "tests/simulator/cudasim/stream_calls.inc"

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaStreamCreate(cudaStream_t* stream) {
  CUDASIM_ENTER("cudaStreamCreate", kBroken);
  return Answer(
      cudasim::StreamCreate(0, 0, reinterpret_cast<uint64_t*>(stream)));
}

cudaError_t CUDARTAPI cudaStreamCreateWithFlags(cudaStream_t* stream,
                                                unsigned flags) {
  CUDASIM_ENTER("cudaStreamCreateWithFlags", kBroken);
  return Answer(
      cudasim::StreamCreate(flags, 0, reinterpret_cast<uint64_t*>(stream)));
}

cudaError_t CUDARTAPI cudaStreamCreateWithPriority(cudaStream_t* stream,
                                                   unsigned flags,
                                                   int priority) {
  CUDASIM_ENTER("cudaStreamCreateWithPriority", kBroken);
  return Answer(cudasim::StreamCreate(flags, priority,
                                      reinterpret_cast<uint64_t*>(stream)));
}

cudaError_t CUDARTAPI cudaStreamGetPriority(cudaStream_t stream,
                                            int* priority) {
  CUDASIM_ENTER("cudaStreamGetPriority", kBroken);
  if (priority == nullptr) return Answer(cudasim::kInvalidValue);
  return Answer(
      cudasim::StreamInfo(Number(stream), nullptr, priority, nullptr));
}

cudaError_t CUDARTAPI cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  CUDASIM_ENTER("cudaStreamGetFlags");
  if (flags == nullptr) return Answer(cudasim::kInvalidValue);
  return Answer(cudasim::StreamInfo(Number(stream), flags, nullptr, nullptr));
}

cudaError_t CUDARTAPI cudaStreamGetId(cudaStream_t stream,
                                      unsigned long long* id) {
  CUDASIM_ENTER("cudaStreamGetId");
  *id = Number(stream);
  return Answer(cudasim::StreamInfo(Number(stream), nullptr, nullptr, nullptr));
}

cudaError_t CUDARTAPI cudaStreamGetDevice(cudaStream_t stream, int* device) {
  CUDASIM_ENTER("cudaStreamGetDevice");
  return Answer(cudasim::StreamInfo(Number(stream), nullptr, nullptr, device));
}

cudaError_t CUDARTAPI cudaLaunchHostFunc(cudaStream_t stream,
                                         cudaHostFn_t function,
                                         void* argument) {
  CUDASIM_ENTER("cudaLaunchHostFunc");
  return Answer(cudasim::StreamCall(Number(stream), function, argument));
}

cudaError_t CUDARTAPI cudaStreamAddCallback(cudaStream_t stream,
                                            cudaStreamCallback_t function,
                                            void* argument, unsigned flags) {
  CUDASIM_ENTER("cudaStreamAddCallback");
  if (function == nullptr || flags != 0) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(cudasim::StreamCallback(
      Number(stream), [function, stream, argument](cudasim::Status status) {
        function(stream, static_cast<cudaError_t>(status), argument);
      }));
}

cudaError_t CUDARTAPI cudaEventCreate(cudaEvent_t* event) {
  CUDASIM_ENTER("cudaEventCreate", kBroken);
  return Answer(cudasim::EventCreate(0, reinterpret_cast<uint64_t*>(event)));
}

cudaError_t CUDARTAPI cudaEventCreateWithFlags(cudaEvent_t* event,
                                               unsigned flags) {
  CUDASIM_ENTER("cudaEventCreateWithFlags", kBroken);
  return Answer(
      cudasim::EventCreate(flags, reinterpret_cast<uint64_t*>(event)));
}

}  // extern "C"
#pragma GCC visibility pop
