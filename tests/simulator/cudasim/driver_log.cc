// SPDX-License-Identifier: Apache-2.0
//
// The driver's log callbacks, and the switches of a profiler that nobody
// attached.

#include "tests/simulator/cudasim/driver_log.h"

#include <cuda.h>
#include <cudaProfiler.h>

#include <vector>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/simulator.h"

namespace cudasim {

DriverLog& DriverLog::Get() {
  static DriverLog& log = *new DriverLog;
  return log;
}

uint64_t DriverLog::Register(Callback callback, void* data) {
  std::lock_guard<std::mutex> lock(mu_);
  listeners_[++last_] = {callback, data};
  return last_;
}

bool DriverLog::Unregister(uint64_t token) {
  std::lock_guard<std::mutex> lock(mu_);
  return listeners_.erase(token) != 0;
}

void DriverLog::Error(const std::string& text) {
  std::vector<Listener> listeners;
  {
    std::lock_guard<std::mutex> lock(mu_);
    for (const auto& [token, listener] : listeners_) {
      listeners.push_back(listener);
    }
  }
  std::string line = text;
  for (const Listener& listener : listeners) {
    listener.callback(listener.data, 0, line.data(), line.size());
  }
}

}  // namespace cudasim

namespace {

constexpr auto kQuestion = cudasim::Entry::kQuestion;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuLogsRegisterCallback(CUlogsCallback callback, void* data,
                                        CUlogsCallbackHandle* handle) {
  CUDASIM_ENTER("cuLogsRegisterCallback", kQuestion);
  if (callback == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t token = cudasim::DriverLog::Get().Register(
      reinterpret_cast<cudasim::DriverLog::Callback>(callback), data);
  if (handle != nullptr) {
    *handle = reinterpret_cast<CUlogsCallbackHandle>(token);
  }
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  CUDASIM_ENTER("cuLogsUnregisterCallback", kQuestion);
  return cudasim::DriverLog::Get().Unregister(
             reinterpret_cast<uint64_t>(handle))
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuProfilerStart() {
  CUDASIM_ENTER("cuProfilerStart", kQuestion);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuProfilerStop() {
  CUDASIM_ENTER("cuProfilerStop", kQuestion);
  return CUDA_SUCCESS;
}

}  // extern "C"
#pragma GCC visibility pop
