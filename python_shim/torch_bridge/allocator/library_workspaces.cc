// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/library_workspaces.h"

#include <ATen/cuda/CUDAContextLight.h>
#include <dlfcn.h>
#include <sched.h>
#include <time.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <shared_mutex>
#include <string_view>

#include "python_shim/torch_bridge/base/torch_minor.h"

namespace stratalloc {
namespace {

// Whoever holds the lock needs it for microseconds, or has lost its core.
constexpr int kYields = 64;
constexpr int kPauses = 1000;
constexpr timespec kPause{0, 100'000};

bool List(at::cuda::WorkspaceMapWithMutex& table,
          void (*each)(void* context, void* address), void* context) {
  std::shared_lock lock(table.mutex, std::try_to_lock);  // a mutex of torch
  for (int i = 0; !lock.owns_lock(); ++i) {
    if (i == kYields + kPauses) return false;
    if (i < kYields) {
      sched_yield();
    } else {
      nanosleep(&kPause, nullptr);
    }
    (void)lock.try_lock();
  }
  for (const auto& [key, memory] : table.map) {
    if (void* const address = WorkspaceMemory(memory).get()) {
      each(context, address);
    }
  }
  return true;
}

// Where memory is asked for that becomes a storage's. Kernels and what they
// call ask from other libraries.
constexpr std::array<std::string_view, 3> kMakeStorages = {
    "libtorch_cpu.so", "libtorch_python.so", "libc10.so"};
// The one function of libtorch_cuda that does it for a tensor.
constexpr std::string_view kResize = "resize_bytes_cuda";

bool AskMakesStorages(const void* caller) {
  Dl_info info;
  // Unknown code may do anything.
  if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) return true;
  std::string_view file(info.dli_fname);
  file.remove_prefix(file.rfind('/') + 1);  // npos + 1 is 0
  for (const std::string_view library : kMakeStorages) {
    if (file == library) return true;
  }
  return info.dli_sname != nullptr &&
         std::string_view(info.dli_sname).find(kResize) !=
             std::string_view::npos;
}

// The same, asked once per place in the program: looking through the symbols of
// libtorch is two million instructions, as much as a thousand mallocs.
bool MakesStorages(const void* caller) {
  // The address, and the answer in its place's lowest bit.
  static std::array<std::atomic<uintptr_t>, 256> answers;
  const auto address = reinterpret_cast<uintptr_t>(caller);
  std::atomic<uintptr_t>& place =
      answers[(address ^ address >> 12) % answers.size()];
  const uintptr_t known = place.load(std::memory_order_relaxed);
  if (known >> 1 == address) return (known & 1) != 0;
  const bool makes = AskMakesStorages(caller);
  place.store(address << 1 | (makes ? 1 : 0), std::memory_order_relaxed);
  return makes;
}

}  // namespace

namespace {

// torch 2.12 declares its own function and has it in no library: there, the
// wish of CUBLAS_WORKSPACE_CONFIG (":KiB:count" once or more), else torch's
// default.
size_t ChosenWorkspaceSize() {
#if TORCH_MINOR == 12
  size_t wished = 0;
  const char* text = std::getenv("CUBLAS_WORKSPACE_CONFIG");
  while (text != nullptr && *text == ':') {
    char* end = nullptr;
    const size_t kib = std::strtoul(text + 1, &end, 10);
    if (*end != ':') break;
    wished += kib * 1024 * std::strtoul(end + 1, &end, 10);
    text = end;
  }
  if (wished > 0) return wished;
  const int major = at::cuda::getCurrentDeviceProperties()->major;
  return major == 9 || major == 10 ? size_t{32} << 20
                                   : (size_t{8} << 20) + (size_t{128} << 10);
#else
  return at::cuda::getChosenWorkspaceSize();
#endif
}

}  // namespace

bool IsWorkspaceInTheMaking(size_t size, const void* caller) {
  static const std::array sizes{ChosenWorkspaceSize(),
                                at::cuda::getCUDABlasLtWorkspaceSize()};
  return (size == sizes[0] || size == sizes[1]) && !MakesStorages(caller);
}

int ListLibraryWorkspaces(void (*each)(void* context, void* address),
                          void* context) {
  return List(at::cuda::cublas_handle_stream_to_workspace(), each, context) &&
         List(at::cuda::cublaslt_handle_stream_to_workspace(), each, context);
}

}  // namespace stratalloc
