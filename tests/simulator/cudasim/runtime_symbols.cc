// SPDX-License-Identifier: Apache-2.0
//
// The runtime's variables of device code.

#include <cuda_runtime_api.h>

#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/runtime.h"
#include "tests/simulator/cudasim/variables.h"

using cudasim::Answer;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Simulator;
using cudasim::Variables;

namespace {

using Use = Variables::Use;

cudasim::Status Locate(const char* name, const void* symbol, size_t count,
                       size_t offset, Use use, uint64_t* address) {
  Simulator& sim = Simulator::Get();
  cudasim::Status status = cudasim::kOk;
  {
    Lock lock(sim.mu);
    status = Variables::Get().Locate(symbol, cudasim::ThisThread().device,
                                     count, offset, use, address);
  }
  if (status == cudasim::kNotSupported) cudasim::Unsupported(name);
  return status;
}

cudaError_t CopyTo(const char* name, const void* symbol, const void* from,
                   size_t count, size_t offset, cudaMemcpyKind kind,
                   cudaStream_t stream, bool blocking) {
  if (kind != cudaMemcpyHostToDevice && kind != cudaMemcpyDeviceToDevice &&
      kind != cudaMemcpyDefault) {
    return Answer(cudasim::kInvalidDirection);
  }
  cudasim::CopyRequest request;
  const cudasim::Status found =
      Locate(name, symbol, count, offset, Use::kWrite, &request.destination);
  if (found != cudasim::kOk) return Answer(found);
  request.source = Number(from);
  request.width = count;
  request.direction = static_cast<cudasim::Direction>(static_cast<int>(kind));
  return Answer(cudasim::Copy(name, request, Number(stream), blocking));
}

cudaError_t CopyFrom(const char* name, void* to, const void* symbol,
                     size_t count, size_t offset, cudaMemcpyKind kind,
                     cudaStream_t stream, bool blocking) {
  if (kind != cudaMemcpyDeviceToHost && kind != cudaMemcpyDeviceToDevice &&
      kind != cudaMemcpyDefault) {
    return Answer(cudasim::kInvalidDirection);
  }
  cudasim::CopyRequest request;
  const cudasim::Status found =
      Locate(name, symbol, count, offset, Use::kRead, &request.source);
  if (found != cudasim::kOk) return Answer(found);
  request.destination = Number(to);
  request.width = count;
  request.direction = static_cast<cudasim::Direction>(static_cast<int>(kind));
  return Answer(cudasim::Copy(name, request, Number(stream), blocking));
}

constexpr char kUnwritten[] =
    "cudaMemcpyFromSymbol (of a variable that nothing has written)";

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

void CUDARTAPI __cudaRegisterVar(void**, char* symbol, char*, const char* name,
                                 int, size_t bytes, int, int) {
  Variables::Get().Register(symbol, name, bytes);
}

cudaError_t CUDARTAPI cudaGetSymbolAddress(void** pointer, const void* symbol) {
  CUDASIM_ENTER("cudaGetSymbolAddress");
  if (pointer == nullptr) return Answer(cudasim::kInvalidValue);
  uint64_t address = 0;
  const cudasim::Status status =
      Locate("cudaGetSymbolAddress", symbol, 0, 0, Use::kAddress, &address);
  if (status == cudasim::kOk) *pointer = reinterpret_cast<void*>(address);
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGetSymbolSize(size_t* bytes, const void* symbol) {
  CUDASIM_ENTER("cudaGetSymbolSize");
  if (bytes == nullptr) return Answer(cudasim::kInvalidValue);
  return Answer(Variables::Get().SizeOf(symbol, bytes));
}

cudaError_t CUDARTAPI cudaMemcpyToSymbol(const void* symbol, const void* from,
                                         size_t count, size_t offset,
                                         cudaMemcpyKind kind) {
  CUDASIM_ENTER("cudaMemcpyToSymbol");
  return CopyTo("cudaMemcpyToSymbol", symbol, from, count, offset, kind,
                nullptr, true);
}

cudaError_t CUDARTAPI cudaMemcpyToSymbolAsync(const void* symbol,
                                              const void* from, size_t count,
                                              size_t offset,
                                              cudaMemcpyKind kind,
                                              cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemcpyToSymbolAsync");
  return CopyTo("cudaMemcpyToSymbolAsync", symbol, from, count, offset, kind,
                stream, false);
}

cudaError_t CUDARTAPI cudaMemcpyFromSymbol(void* to, const void* symbol,
                                           size_t count, size_t offset,
                                           cudaMemcpyKind kind) {
  CUDASIM_ENTER("cudaMemcpyFromSymbol");
  return CopyFrom(kUnwritten, to, symbol, count, offset, kind, nullptr, true);
}

cudaError_t CUDARTAPI cudaMemcpyFromSymbolAsync(void* to, const void* symbol,
                                                size_t count, size_t offset,
                                                cudaMemcpyKind kind,
                                                cudaStream_t stream) {
  CUDASIM_ENTER("cudaMemcpyFromSymbolAsync");
  return CopyFrom(kUnwritten, to, symbol, count, offset, kind, stream, false);
}

}  // extern "C"
#pragma GCC visibility pop
