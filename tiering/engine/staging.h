// SPDX-License-Identifier: Apache-2.0
// Two pinned buffers through which bytes pass between a device and the disk,
// where the host tier has no place for them. They lie beside the host budget,
// which may be full or 0.
//
//   Take -> fill and write, or read and copy -> (ReadUntil) -> the Taken ends
//
// Thread-safety: every method. Locks: its own (kLower), without which Take
// waits for a copy that still reads a buffer. Errors: Open as the host tier;
// Take with kHostOutOfMemory where there are no buffers, or as the driver.
// Lifetime: a Taken ends before Close; Close before the devices are destroyed.
// Invariants: a buffer belongs to one Taken at most; the buffers are not
// replaced while one is taken.
#ifndef STRATALLOC_TIERING_ENGINE_STAGING_H_
#define STRATALLOC_TIERING_ENGINE_STAGING_H_

#include <array>
#include <memory>
#include <utility>

#include "allocator/base/condition.h"
#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/host/host_tier.h"

namespace stratalloc {

class Staging {
 public:
  static constexpr int kBuffers = 2;

  // One buffer, the calling thread's until it ends.
  class Taken {
   public:
    Taken(Staging& owner, int index) : owner_(&owner), index_(index) {}
    Taken(Taken&& other) noexcept
        : owner_(std::exchange(other.owner_, nullptr)), index_(other.index_) {}
    Taken& operator=(Taken&&) = delete;
    ~Taken() {
      if (owner_ != nullptr) owner_->Put(index_);
    }
    void* data() const { return owner_->data(index_); }
    // Copies on `stream` read it: the next Take waits for them.
    Status ReadUntil(DeviceAllocator& device, StreamId stream);

   private:
    Staging* owner_;
    const int index_;
  };

  // Makes them of `bytes` each, or larger ones in their place. Fails, and then
  // they are as they were.
  Status Open(const Device& device, Bytes bytes, bool is_given);
  // Waits until one is free and is read no more.
  Result<Taken> Take() EXCLUDES(mutex_);
  void* data(int index) const {
    return buffers_[static_cast<std::size_t>(index)].memory.data;
  }
  // The events go back to their devices.
  void Close();

 private:
  struct Buffer {
    HostBuffer memory;
    bool taken = false;
    EventId event = kNoEvent;           // copies that read it end before
    DeviceAllocator* device = nullptr;  // whose pool the event came from
  };
  Buffer& At(int index) { return buffers_[static_cast<std::size_t>(index)]; }
  void Put(int index) EXCLUDES(mutex_);

  Mutex mutex_{LockRank::kLower};
  Condition put_;
  std::unique_ptr<HostTier> memory_;
  std::array<Buffer, kBuffers> buffers_;
  int next_ GUARDED_BY(mutex_) = 0;
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_STAGING_H_
