// SPDX-License-Identifier: Apache-2.0
// The allocator of the process: one DeviceAllocator per device, found by
// device index or by address.
//
// Thread-safety: Init once (kRegistry lock); everything else from any thread
// without a lock. Lifetime: never destroyed.
#ifndef STRATALLOC_ALLOCATOR_ALLOCATOR_H_
#define STRATALLOC_ALLOCATOR_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

class Allocator {
 public:
  static Allocator& Get();

  // Creates the devices [0, count). Idempotent; a failure leaves those that
  // were created. `plug` is called for each before it can be found.
  Status Init(int count, const DeviceAllocator::Options& options,
              const std::function<Status(DeviceAllocator&)>& plug);
  int device_count() const { return count_.load(std::memory_order_acquire); }
  // nullptr for a device that is not initialised.
  DeviceAllocator* Find(DeviceIndex device) const;
  DeviceAllocator* FindByAddress(Address address) const;

  // Remembers who owned a block that was freed, to explain a double free.
  static void NoteFreed(const AllocatedBlock& freed) {
    Freed& slot = freed_[(freed.address / kMinBlockSize) % kRemembered];
    slot.charge.store(std::uint64_t{Raw(freed.charge.scope)} << 8 |
                          Raw(freed.charge.category),
                      std::memory_order_relaxed);
    slot.address.store(freed.address, std::memory_order_relaxed);
  }
  bool LastOwner(Address address, Charge* charge) const;

  // For tests: every block must have been freed.
  void ShutdownForTesting();

 private:
  Allocator() = default;

  mutable Mutex mutex_{LockRank::kRegistry};
  std::atomic<int> count_{0};
  std::array<std::atomic<DeviceAllocator*>, kMaxDevices> devices_{};
  // A ring of the last frees: lossy and lock-free, read only for reports.
  static constexpr std::size_t kRemembered = 4096;
  struct Freed {
    std::atomic<Address> address{0};
    std::atomic<std::uint64_t> charge{0};
  };
  static std::array<Freed, kRemembered> freed_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_ALLOCATOR_H_
