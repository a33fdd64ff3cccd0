// SPDX-License-Identifier: Apache-2.0
// The composition root: plugs accounting and tiering into the allocator of
// every device, and knows the configuration. Two thin faces are on it:
// bridge_api/ for the torch bridge, c_api.h for Python.
//
// Init opens no device: Device does, at the first allocation there. Whoever
// only asks or sets something asks Opened, or the Allocator, which keeps
// settings for devices to come.
//
// Thread-safety: every method. Lifetime: as long as the process.
// After fork: in the child everything is off (design rule 14): no device is
// found any more, so frees do nothing, mallocs fail; the spill file's ring is
// closed unsubmitted.
#ifndef STRATALLOC_PYTHON_SHIM_CORE_CORE_H_
#define STRATALLOC_PYTHON_SHIM_CORE_CORE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "allocator/allocator.h"
#include "allocator/base/mutex.h"
#include "python_shim/core/config.h"
#include "tiering/engine/engine.h"

namespace stratalloc {

class Core {
 public:
  static Core& Get();

  // kInvalidArgument after Init: the tiers exist by then.
  Status Configure(Config config);
  // Once: after a success a later call does nothing. What fails (more devices
  // than kMaxDevices) fails again, and leaves CUDA not initialised to us.
  Status Init(int device_count);
  bool initialized() const {
    return initialized_.load(std::memory_order_acquire);
  }
  // True in the child of a fork of an initialised process.
  bool abandoned() const { return abandoned_.load(std::memory_order_relaxed); }

  // Stable after Init, but for what has a method of its own.
  const Config& config() const { return config_; }
  TelemetryLevel telemetry() const {
    return telemetry_.load(std::memory_order_relaxed);
  }
  // At any time; nothing in the child of a fork.
  void SetTelemetry(TelemetryLevel level);
  // nullptr while tiering is off or CUDA is not initialised.
  Engine* engine() const { return engine_.load(std::memory_order_acquire); }
  // Why there is none. "" if there is.
  std::string WhyNoEngine() const {
    return why_no_engine_.load(std::memory_order_acquire);
  }
  // Functions that find the line that the calling thread runs, and its stack
  // (c_api.h); nullptr: none.
  using SiteFinder = int (*)(char* text, int room);
  using StackFinder = std::uint32_t (*)();
  SiteFinder site_finder() const {
    return site_finder_.load(std::memory_order_acquire);
  }
  StackFinder stack_finder() const {
    return stack_finder_.load(std::memory_order_acquire);
  }
  void UseFinders(SiteFinder find_site, StackFinder find_stack) {
    site_finder_.store(find_site, std::memory_order_release);
    stack_finder_.store(find_stack, std::memory_order_release);
  }
  // The device, opened if it is not, or an error that names it.
  Result<DeviceAllocator*> Device(int index) const;
  // The same, but nullptr for one that is not opened, which stays so.
  Result<DeviceAllocator*> Opened(int index) const;
  // The device that holds `address`; nullptr if none does, and in a forked
  // child.
  DeviceAllocator* OwnerOf(Address address) const {
    return abandoned() ? nullptr : Allocator::Get().FindByAddress(address);
  }
  // CUDA's side of the device: a context is made, no allocator.
  Result<stratalloc::Device> Cuda(int index) const;
  // Engine::SwitchOff, and then no operand is evictable any more. Empties the
  // caches if evicted bytes have no room else.
  Result<Bytes> SwitchTieringOff();
  // kShutdown in the child of a fork of an initialised process.
  Status NotInAFork() const;

 private:
  Core() = default;  // no tiers, until configured

  void UseTelemetry(TelemetryLevel level) REQUIRES(mutex_);
  // While a device is opened: the rooms are plugged in.
  Status Plug(DeviceAllocator& device);
  // Once it can be found.
  static void StopAtExit();

  Mutex mutex_{LockRank::kRegistry};
  Config config_;
  std::atomic<TelemetryLevel> telemetry_{TelemetryLevel::kCounters};
  std::atomic<bool> initialized_{false};
  std::atomic<bool> abandoned_{false};
  std::atomic<Engine*> engine_{nullptr};
  std::atomic<SiteFinder> site_finder_{nullptr};
  std::atomic<StackFinder> stack_finder_{nullptr};
  std::atomic<const char*> why_no_engine_{"CUDA is not initialised yet"};
};

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_CORE_CORE_H_
