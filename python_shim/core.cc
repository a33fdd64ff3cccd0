// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "accounting/ledger.h"
#include "allocator/base/check.h"

extern "C" {
uint64_t stratalloc_evictable_lo = 0;
uint64_t stratalloc_evictable_hi = 0;
}

namespace stratalloc {

namespace {

// The guard reads these without a lock: a lower `lo` first, so that no
// published `hi` ever stands with a `lo` that hides a device.
void Publish(Address lo, Address hi) {
  const Address old_lo =
      __atomic_load_n(&stratalloc_evictable_lo, __ATOMIC_RELAXED);
  const Address old_hi =
      __atomic_load_n(&stratalloc_evictable_hi, __ATOMIC_RELAXED);
  __atomic_store_n(&stratalloc_evictable_lo,
                   old_lo == 0 ? lo : std::min(old_lo, lo), __ATOMIC_RELEASE);
  __atomic_store_n(&stratalloc_evictable_hi, std::max(old_hi, hi),
                   __ATOMIC_RELEASE);
}

void Unpublish() {
  __atomic_store_n(&stratalloc_evictable_hi, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&stratalloc_evictable_lo, 0, __ATOMIC_RELEASE);
}

}  // namespace

constinit std::atomic<DeviceAllocator*> Core::fast_devices_[kMaxDevices]{};

Core& Core::Get() {
  static Core* core = new Core;
  return *core;
}

Status Core::Configure(CoreConfig config) {
  MutexLock lock(mutex_);
  if (initialized_.load()) {
    return Fail(ErrorCode::kInvalidArgument,
                "CUDA is initialised already: configure stratalloc before the "
                "first CUDA call");
  }
  config_ = std::move(config);
  return {};
}

Status Core::Init(int device_count) {
  {
    MutexLock lock(mutex_);
    if (initialized_.load()) return {};
    if (config_.tiering && config_.host_budget == 0) {
      Log(LogLevel::kWarning,
          "host_budget is 0: nothing can be evicted, tiering is off; the disk "
          "tier too copies through two buffers of it, each as large as a "
          "handle "
          "(2 MiB or more)");
      config_.tiering = false;
    }
    if (config_.tiering && engine_.load() == nullptr) {
      Engine::Options options;
      options.lower.host_budget = config_.host_budget;
      options.lower.disk_budget = config_.disk_budget;
      options.lower.disk_dir = config_.disk_dir;
      options.lower.cpu_offload_threshold = config_.cpu_offload_threshold;
      options.gpu_offload_threshold = config_.gpu_offload_threshold;
      options.gpu_reload_threshold = config_.gpu_reload_threshold;
      options.under_pressure = config_.eager_offload;
      engine_.store(new Engine(options), std::memory_order_release);
      SetScopeListener(engine_.load());
    }
  }
  DeviceAllocator::Options options;
  options.tiering = config_.tiering;
  options.gpu_limit = config_.gpu_limit;
  options.host_budget = config_.host_budget;
  options.emergency_threshold = config_.gpu_emergency_threshold;
  Engine* engine = engine_.load();
  STRATALLOC_RETURN_IF_ERROR(Allocator::Get().Init(
      device_count, options, [&](DeviceAllocator& device) -> Status {
        device.SetObserver(&Ledger::Get());
        if (engine == nullptr) return {};
        if (!device.tiering()) {
          Log(LogLevel::kWarning,
              "device " +
                  std::to_string(static_cast<int>(device.device().index())) +
                  " has no virtual memory management: its memory comes from "
                  "cudaMalloc and nothing of it can be evicted (tiering is off "
                  "there; tiering:off says so beforehand)");
          return {};
        }
        if (Status added = engine->AddDevice(device); !added) {
          Log(LogLevel::kWarning,
              "nothing can be evicted from device " +
                  std::to_string(static_cast<int>(device.device().index())) +
                  ": " + added.error().message);
          return {};
        }
        Publish(device.table().base(), device.table().evictable_end());
        return {};
      }));
  static std::atomic<bool> once{false};
  if (!once.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] {
      Core& core = Core::Get();
      core.abandoned_.store(true, std::memory_order_relaxed);
      for (auto& device : fast_devices_) device.store(nullptr);
      Unpublish();
      if (Engine* e = core.engine()) e->AbandonAfterFork();
    });
    // Registered after CUDA's own handlers, so it runs before them.
    std::atexit([] {
      if (Engine* e = Core::Get().engine()) e->StopBackground();
    });
  }
  for (int i = 0; i < device_count && !abandoned(); ++i) {
    fast_devices_[i].store(Allocator::Get().Find(static_cast<DeviceIndex>(i)),
                           std::memory_order_release);
  }
  initialized_.store(true, std::memory_order_release);
  return {};
}

Status Core::NotInAFork() const {
  if (!abandoned()) return {};
  return Fail(ErrorCode::kShutdown,
              "CUDA memory cannot be used in a forked process; use the 'spawn' "
              "start method");
}

Result<DeviceAllocator*> Core::Device(int index) const {
  STRATALLOC_RETURN_IF_ERROR(NotInAFork());
  DeviceAllocator* device =
      Allocator::Get().Find(static_cast<DeviceIndex>(index));
  if (device == nullptr) {
    return Fail(ErrorCode::kInvalidArgument,
                "no device " + std::to_string(index) + ": " +
                    std::to_string(Allocator::Get().device_count()) +
                    " initialised");
  }
  return device;
}

int ToC(const Error& error, stratalloc_error* out) {
  if (out != nullptr) {
    out->code = static_cast<int>(error.code);
    const std::size_t n =
        std::min(error.message.size(), sizeof(out->message) - 1);
    std::memcpy(out->message, error.message.data(), n);
    out->message[n] = '\0';
  }
  return static_cast<int>(error.code);
}

char* ToC(const std::string& text) { return strdup(text.c_str()); }

}  // namespace stratalloc
