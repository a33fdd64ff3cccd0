// SPDX-License-Identifier: Apache-2.0
//
// The driver's streams and events; those as in the runtime are stream_calls.inc
// in its words.

#include <cuda.h>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/ordering.h"

using cudasim::kBroken;
using cudasim::Number;
using cudasim::driver::Answer;

namespace {

using Stream = CUstream;
using Event = CUevent;

constexpr auto kWaitExternal = CU_EVENT_WAIT_EXTERNAL;
constexpr auto kRecordExternal = CU_EVENT_RECORD_EXTERNAL;

}  // namespace

#include "tests/simulator/cudasim/stream_calls.inc"

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

}  // extern "C"
#pragma GCC visibility pop
