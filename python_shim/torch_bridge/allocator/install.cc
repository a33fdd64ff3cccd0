// SPDX-License-Identifier: Apache-2.0
#include "python_shim/torch_bridge/allocator/install.h"

#include <c10/core/Allocator.h>

#include <cstring>
#include <string>
#include <typeinfo>

#include "python_shim/torch_bridge/allocator/torch_allocator.h"
#include "python_shim/torch_bridge/allocator/torch_history.h"
#include "python_shim/torch_bridge/allocator/torch_layout.h"
#include "python_shim/torch_bridge/autograd/backward_scopes.h"
#include "python_shim/torch_bridge/base/entry_point.h"
#include "python_shim/torch_bridge/collectives/collectives_under_way.h"

namespace stratalloc {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

// name() is no proof: ours says "native" too.
constexpr char kNativeType[] =
    "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

// Highest there is: nothing of torch's or anyone's registers over it.
constexpr uint8_t kPriority = 255;

bool IsNative(CUDAAllocator* allocator) {
  return allocator != nullptr &&
         std::strcmp(typeid(*allocator).name(), kNativeType) == 0;
}

std::string TypeName(CUDAAllocator* allocator) {
  return allocator == nullptr ? "none" : typeid(*allocator).name();
}

CUDAAllocator* native_allocator = nullptr;  // set once, before the swap

void RememberNative() {
  if (native_allocator != nullptr) return;
  CUDAAllocator* current = c10::cuda::CUDACachingAllocator::get();
  if (!IsNative(current)) {
    // The plugin is in the atomic; the registry still knows native.
    current =
        dynamic_cast<CUDAAllocator*>(c10::GetAllocator(c10::DeviceType::CUDA));
  }
  if (IsNative(current)) native_allocator = current;
}

}  // namespace

TorchAllocator* BridgeAllocator() {
  static auto* const allocator = new TorchAllocator;
  return allocator;
}

void SwapInAllocator() {
  RememberNative();
  CollectivesUnderWay::BuryBeforeMemoryIsTaken();
  TorchAllocator* ours = BridgeAllocator();
  c10::cuda::CUDACachingAllocator::allocator.store(ours);
  c10::SetAllocator(c10::DeviceType::CUDA, ours, kPriority);
}

bool IsCurrentAllocator() {
  return c10::cuda::CUDACachingAllocator::get() == BridgeAllocator();
}

CUDAAllocator* NativeAllocator() {
  RememberNative();
  return native_allocator;
}

}  // namespace stratalloc

using stratalloc::BridgeAllocator;
using stratalloc::NativeAllocator;
using stratalloc::RunEntryPoint;

int stratalloc_torch_built_for(void) { return 200 + TORCH_MINOR; }

int stratalloc_torch_check(char* message, int bytes) {
  return RunEntryPoint(message, bytes, [] {
    // nullptr: another allocator is in its place, which install() refuses.
    stratalloc::CheckTorch(stratalloc::TorchVersion(), NativeAllocator());
  });
}

int stratalloc_torch_install(char* message, int bytes) {
  return RunEntryPoint(message, bytes, [] {
    if (stratalloc::IsCurrentAllocator()) return;
    auto* current = c10::cuda::CUDACachingAllocator::get();
    TORCH_CHECK(stratalloc::IsNative(current),
                "stratalloc cannot replace an allocator other than PyTorch's "
                "native one; the current one is ",
                stratalloc::TypeName(current),
                ". Remove the other change_current_allocator() call or the "
                "backend: option of PYTORCH_ALLOC_CONF.");
    TORCH_CHECK(!current->initialized(),
                "CUDA was initialised before stratalloc: its native allocator "
                "already owns memory. Move stratalloc.enable() before the "
                "first CUDA tensor, torch.cuda.init() or .to(\"cuda\").");
    stratalloc::SwapInAllocator();
    stratalloc::FollowBackward();
  });
}

int stratalloc_torch_is_current(void) {
  return stratalloc::IsCurrentAllocator() ? 1 : 0;
}

void stratalloc_torch_note_settings(void) {
  stratalloc::TorchAllocator::NoteSettings();
}

void stratalloc_torch_note_telemetry(void) { stratalloc::ApplyTelemetry(); }

void* stratalloc_torch_native(void) { return NativeAllocator(); }

int stratalloc_torch_native_init(int device_count, char* message, int bytes) {
  return RunEntryPoint(message, bytes, [&] {
    auto* native = NativeAllocator();
    TORCH_CHECK(native != nullptr, "the native allocator was not found");
    if (!native->initialized()) native->init(device_count);
  });
}

int stratalloc_torch_check_as(uint64_t version, void* native, char* message,
                              int bytes) {
  return RunEntryPoint(message, bytes,
                       [&] { stratalloc::CheckTorch(version, native); });
}

int stratalloc_torch_cache_info(int device, uint64_t* largest, char* message,
                                int bytes) {
  return RunEntryPoint(message, bytes, [&] {
    size_t found = *largest;
    c10::cuda::CUDACachingAllocator::cacheInfo(
        static_cast<c10::DeviceIndex>(device), &found);
    *largest = found;
  });
}

double stratalloc_torch_config_fraction(void) {
  return c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig::
      per_process_memory_fraction();
}

int stratalloc_torch_deleter_is_plain(uint64_t size, char* message, int bytes) {
  int plain = 0;
  const int failed = RunEntryPoint(message, bytes, [&] {
    auto* allocator = c10::cuda::CUDACachingAllocator::get();
    const c10::DataPtr data = allocator->allocate(size);
    plain = data.get_deleter() == allocator->raw_deleter() &&
            data.get_context() == data.get() && data.device().is_cuda() &&
            (data.get() == nullptr) == (size == 0) &&
            allocator->is_simple_data_ptr(data);
  });
  return failed == 0 ? plain : 0;
}
