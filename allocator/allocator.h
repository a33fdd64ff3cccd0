// SPDX-License-Identifier: Apache-2.0
// The allocator of the process: one DeviceAllocator per device, made when the
// device is used first, found by device index or by address.
//
// Thread-safety: Init, Open and what is set take the kOpening lock, under which
// a device is opened, with all the driver and the plugged-in rooms do for it;
// finding takes none. Settings hold for devices that are opened later.
// Fails: a device that cannot be opened is an error for each who asks, tried
// again each time, and nothing to the others.
// Lifetime: the process's is never destroyed. One of a test's own closes its
// devices, of which every block must have been freed.
#ifndef STRATALLOC_ALLOCATOR_ALLOCATOR_H_
#define STRATALLOC_ALLOCATOR_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <span>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "allocator/opened_devices.h"

namespace stratalloc {

class Allocator {
 public:
  // `plug` is called for a device before it can be found, `opened` when it can.
  struct Hooks {
    std::function<Status(DeviceAllocator&)> plug;
    std::function<void(DeviceAllocator&)> opened;
  };

  static Allocator& Get();  // of opened_devices

  // Opens devices into `opened`, which is empty.
  explicit Allocator(OpenedDevices& opened);
  ~Allocator();
  Allocator(const Allocator&) = delete;
  Allocator& operator=(const Allocator&) = delete;

  // There are devices [0, count), none of them opened. Idempotent: a later call
  // may only add devices.
  Status Init(int count, const DeviceAllocator::Options& options, Hooks hooks)
      EXCLUDES(mutex_);
  int device_count() const { return count_.load(std::memory_order_acquire); }

  // Opens the device, once. kInvalidArgument if there is none.
  Result<DeviceAllocator*> Open(DeviceIndex device) EXCLUDES(mutex_);
  // nullptr for a device that is not opened.
  DeviceAllocator* Find(DeviceIndex device) const;
  DeviceAllocator* FindByAddress(Address address) const;
  // DeviceAllocator's, of `device`. Where descriptors are short those of freed
  // blocks are closed, on every device: the limit is the process's.
  Result<SharedBlock> Share(DeviceAllocator& device, Address address);
  // In the order in which they were opened.
  std::span<DeviceAllocator* const> Opened() const { return opened_.InOrder(); }

  // DeviceAllocator's, of devices opened or not; none is opened for it.
  double Fraction(DeviceIndex device) const EXCLUDES(mutex_);
  void SetFraction(DeviceIndex device, double fraction) EXCLUDES(mutex_);
  void ConfigureHistory(const History::Options& options) EXCLUDES(mutex_);
  void NoteTracker() EXCLUDES(mutex_);
  void RecordSites(bool on) EXCLUDES(mutex_);
  // Of a device that is not opened: the counters that move without memory.
  // It has them from the start when it is opened.
  DeviceStats Stats(DeviceIndex device) EXCLUDES(mutex_);
  void ResetAccumulatedStats(DeviceIndex device) EXCLUDES(mutex_);
  // As DeviceAllocator::EmptyCache.
  Status EmptyCache(bool counted_in_routes = true) EXCLUDES(mutex_);

  // Remembers who owned a block that was freed, to explain a double free.
  static void NoteFreed(const AllocatedBlock& freed) {
    Freed& slot = freed_[(freed.address / kMinBlockSize) % kRemembered];
    slot.charge.store(std::uint64_t{Raw(freed.charge.scope)} << 8 |
                          Raw(freed.charge.category),
                      std::memory_order_relaxed);
    slot.address.store(freed.address, std::memory_order_relaxed);
  }
  bool LastOwner(Address address, Charge* charge) const;

 private:
  mutable Mutex mutex_{LockRank::kOpening};
  DeviceAllocator::Options options_ GUARDED_BY(mutex_);
  Hooks hooks_ GUARDED_BY(mutex_);
  std::array<double, kMaxDevices> fractions_ GUARDED_BY(mutex_);
  std::array<std::int64_t, kMaxDevices> synchronisations_ GUARDED_BY(mutex_){};
  std::optional<History::Options> history_ GUARDED_BY(mutex_);
  bool sites_ GUARDED_BY(mutex_) = false;
  std::atomic<int> count_{0};
  OpenedDevices& opened_;
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
