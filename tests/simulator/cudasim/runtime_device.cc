// SPDX-License-Identifier: Apache-2.0
//
// The runtime's devices, errors and questions.

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>

#include "tests/simulator/cudasim/device_model.h"
#include "tests/simulator/cudasim/driver_entry.h"
#include "tests/simulator/cudasim/error_text.h"
#include "tests/simulator/cudasim/launches.h"
#include "tests/simulator/cudasim/limits.h"
#include "tests/simulator/cudasim/ordering.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::IsDevice;
using cudasim::kBroken;
using cudasim::kQuestion;
using cudasim::Simulator;
using cudasim::ThisThread;

namespace {

// A broken device's error stays, whatever the program does.
cudaError_t LastError() {
  int error = ThisThread().last_error;
  Simulator& sim = Simulator::Get();
  if (error == cudasim::kOk && sim.config.devices > 0) {
    cudasim::Lock lock(sim.mu);
    error = sim.sticky[ThisThread().device];
  }
  return static_cast<cudaError_t>(error);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaGetDeviceCount(int* count) {
  CUDASIM_ENTER("cudaGetDeviceCount", kQuestion);
  if (count == nullptr) return Answer(cudasim::kInvalidValue);
  *count = Simulator::Get().config.devices;
  return *count > 0 ? cudaSuccess : Answer(cudasim::kNoDevice);
}

cudaError_t CUDARTAPI cudaGetDevice(int* device) {
  CUDASIM_ENTER("cudaGetDevice", kQuestion);
  if (device == nullptr) return Answer(cudasim::kInvalidValue);
  *device = ThisThread().device;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaSetDevice(int device) {
  // As a question: it makes a context on the new device, not on the old.
  CUDASIM_ENTER("cudaSetDevice", kQuestion);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  Simulator::Get().used.store(true);
  if (const cudasim::Status opened =
          Simulator::Get().OpenContext(device, cudasim::KeepPrimaryContext);
      opened != cudasim::kOk) {
    return Answer(opened);
  }
  ThisThread().device = device;
  ThisThread().selected = device;
  ThisThread().no_context = false;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceSynchronize() {
  CUDASIM_ENTER("cudaDeviceSynchronize");
  return Answer(cudasim::DeviceSynchronize());
}

cudaError_t CUDARTAPI cudaDriverGetVersion(int* version) {
  CUDASIM_ENTER("cudaDriverGetVersion", kQuestion);
  if (version == nullptr) return Answer(cudasim::kInvalidValue);
  *version = cudasim::kDriverVersion;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
  CUDASIM_ENTER("cudaRuntimeGetVersion", kQuestion);
  if (version == nullptr) return Answer(cudasim::kInvalidValue);
  *version = cudasim::kDriverVersion;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetLastError() {
  const cudaError_t error = LastError();
  ThisThread().last_error = cudasim::kOk;
  return error;
}

cudaError_t CUDARTAPI cudaPeekAtLastError() { return LastError(); }

const char* CUDARTAPI cudaGetErrorName(cudaError_t error) {
  const char* text = cudasim::RuntimeErrorName(error);
  return text != nullptr ? text : "unrecognized error code";
}

const char* CUDARTAPI cudaGetErrorString(cudaError_t error) {
  // The driver has codes that the runtime does not know.
  const char* text = cudasim::RuntimeErrorName(error) != nullptr
                         ? cudasim::Launches::Get().ErrorSentence(error)
                         : nullptr;
  return text != nullptr ? text : "unrecognized error code";
}

cudaError_t CUDARTAPI cudaDeviceGetAttribute(int* value, cudaDeviceAttr which,
                                             int device) {
  CUDASIM_ENTER("cudaDeviceGetAttribute", kQuestion);
  if (value == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  return cudasim::DeviceAttribute(cudasim::CardOf(device), which, device, value)
             ? cudaSuccess
             : Answer(cudasim::kInvalidValue);
}

cudaError_t CUDARTAPI cudaGetDeviceProperties(cudaDeviceProp* prop,
                                              int device) {
  CUDASIM_ENTER("cudaGetDeviceProperties", kQuestion);
  if (prop == nullptr) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  std::memset(prop, 0, sizeof(*prop));
  const cudasim::Card& card = cudasim::CardOf(device);
  std::snprintf(prop->name, sizeof(prop->name), "%s", card.name.c_str());
  cudasim::DeviceUuid(device, prop->uuid.bytes);
  {
    Simulator& sim = Simulator::Get();
    cudasim::Lock lock(sim.mu);
    prop->totalGlobalMem = sim.extents.memory(device).capacity;
  }
  prop->sharedMemPerBlock = card.shared_per_block;
  prop->sharedMemPerBlockOptin = card.shared_per_block_optin;
  prop->sharedMemPerMultiprocessor = card.shared_per_multiprocessor;
  prop->reservedSharedMemPerBlock = 1024;
  prop->regsPerBlock = 65536;
  prop->regsPerMultiprocessor = 65536;
  prop->warpSize = 32;
  prop->memPitch = 0x7fffffff;
  prop->maxThreadsPerBlock = card.threads_per_block;
  prop->maxThreadsDim[0] = prop->maxThreadsDim[1] = card.threads_per_block;
  prop->maxThreadsDim[2] = 64;
  prop->maxGridSize[0] = 0x7fffffff;
  prop->maxGridSize[1] = prop->maxGridSize[2] = 65535;
  prop->totalConstMem = 65536;
  prop->major = card.compute_major;
  prop->minor = card.compute_minor;
  prop->textureAlignment = card.texture_alignment;
  prop->texturePitchAlignment = 32;
  prop->multiProcessorCount = card.multiprocessors;
  prop->canMapHostMemory = 1;
  prop->concurrentKernels = 1;
  prop->pciBusID = device + 1;
  prop->asyncEngineCount = card.copy_engines;
  prop->ECCEnabled = card.ecc;
  prop->unifiedAddressing = 1;
  prop->memoryBusWidth = card.bus_width;
  prop->l2CacheSize = card.l2_bytes;
  prop->maxThreadsPerMultiProcessor = card.threads_per_multiprocessor;
  prop->maxBlocksPerMultiProcessor = card.blocks_per_multiprocessor;
  prop->persistingL2CacheMaxSize = card.persisting_l2_bytes;
  prop->streamPrioritiesSupported = 1;
  prop->globalL1CacheSupported = 1;
  prop->localL1CacheSupported = 1;
  prop->computePreemptionSupported = 1;
  prop->canUseHostPointerForRegisteredMem = 1;
  prop->cooperativeLaunch = 1;
  prop->hostRegisterSupported = 1;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  CUDASIM_ENTER("cudaDeviceGetLimit");
  return Answer(cudasim::GetLimit(limit, value));
}

cudaError_t CUDARTAPI cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  CUDASIM_ENTER("cudaDeviceSetLimit");
  return Answer(cudasim::SetLimit(limit, value));
}

cudaError_t CUDARTAPI cudaDeviceGetPCIBusId(char* text, int bytes, int device) {
  CUDASIM_ENTER("cudaDeviceGetPCIBusId", kQuestion);
  if (text == nullptr || bytes < 1) return Answer(cudasim::kInvalidValue);
  if (!IsDevice(device)) return Answer(cudasim::kInvalidDevice);
  std::snprintf(text, bytes, "0000:%02x:00.0", device + 1);
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaDeviceGetStreamPriorityRange(int* least,
                                                       int* greatest) {
  CUDASIM_ENTER("cudaDeviceGetStreamPriorityRange", kQuestion);
  if (least != nullptr) *least = cudasim::kLowestPriority;
  if (greatest != nullptr) *greatest = cudasim::kHighestPriority;
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaGetDriverEntryPointByVersion(
    const char* symbol, void** function, unsigned version, unsigned long long,
    cudaDriverEntryPointQueryResult* status) {
  CUDASIM_ENTER("cudaGetDriverEntryPointByVersion", kQuestion);
  if (symbol == nullptr || function == nullptr ||
      version > cudasim::kDriverVersion) {
    return Answer(cudasim::kInvalidValue);
  }
  *function = cudasim::FindDriverFunction(symbol);
  auto found = *function != nullptr ? cudaDriverEntryPointSuccess
                                    : cudaDriverEntryPointSymbolNotFound;
  if (*function != nullptr && version < cudasim::IntroducedIn(symbol)) {
    *function = nullptr;
    found = cudaDriverEntryPointVersionNotSufficent;
  }
  if (status != nullptr) *status = found;
  // As the real one: an unknown name is an answer, not an error.
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaProfilerStart() {
  CUDASIM_ENTER("cudaProfilerStart");
  return cudaSuccess;
}

cudaError_t CUDARTAPI cudaProfilerStop() {
  CUDASIM_ENTER("cudaProfilerStop");
  return cudaSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
