// SPDX-License-Identifier: Apache-2.0
// The copies that handles have below the device: pinned host buffers and
// chunks of the spill file, and what to give up when a tier is full.
//
// Thread-safety: the copies of a device belong to the holder of its arbiter,
// which calls without a device lock. Tiers, budgets and staging buffers are
// shared by all devices. Room that only a copy of another device can give is
// had if its arbiter is free at that moment: a thread waits for no other
// device's. Every method may wait for the disk or for copies in flight but
// where a method says so. Locks: kLower, for budgets; it is not held across
// I/O, but the first write opens the file under it. Lifetime: the engine's.
// Invariants: a handle whose state is kHost, kHostAndDisk or kDisk has
// exactly the copies its state names; a handle with has_copy has at least one
// copy of generation `generation`; host used = sum of buffers here.
#ifndef STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_
#define STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/device_allocator.h"
#include "tiering/engine/reserves.h"
#include "tiering/engine/staging.h"
#include "tiering/engine/told.h"
#include "tiering/host/host_tier.h"
#include "tiering/io/disk_tier.h"

namespace stratalloc {

// What lies below one handle. `checksum` is the device's own (tiering/gpu) of
// the bytes that the copies hold.
struct LowerCopy {
  DeviceAllocator* device = nullptr;
  HandleRef handle;
  HostBuffer host;
  DiskChunk disk;
  std::uint64_t checksum = 0;
  std::uint32_t generation = 0;
};

class LowerCopies {
 public:
  struct Options {
    Bytes host_budget = 0;  // 0: copies go to the disk alone
    // The budget is the user's word, not worked out from the machine: what the
    // machine has left does not overrule it.
    bool host_budget_is_given = false;
    Bytes disk_budget = 0;
    std::string disk_dir;
    DiskCodec disk_codec = DiskCodec::kOff;
    double cpu_offload_threshold = 0.90;
    WrapIo wrap_io = {};  // see DiskTier::Options
    std::chrono::nanoseconds disk_deadline = DiskTier::Options{}.deadline;
  };

  explicit LowerCopies(Options options)
      : options_(std::move(options)),
        disk_codec_(options_.disk_codec),
        reserves_(options_.host_budget, options_.disk_budget,
                  DiskTier::FileBytes(Bytes{0})) {}

  // The device's copies belong to the holder of `arbiter`. The first device
  // decides the context that registers host memory. `chunk_bytes` is its large
  // handle: the size of the staging buffers. One call at a time.
  Status Open(DeviceAllocator& device, Mutex& arbiter, Bytes chunk_bytes);
  bool is_open() const { return host_ != nullptr; }

  LowerCopy* Find(const DeviceAllocator& device, Address handle);
  LowerCopy& At(DeviceAllocator& device, HandleRef handle);
  // Drops what the allocator reported: handles whose last block was freed.
  void CollectDropped(DeviceAllocator& device);
  // The host copy of one handle goes, to the disk first if there is no other;
  // its chunk, false if it must stay. Where it lies meanwhile may change.
  // REQUIRES: it has one, and is not on its way out.
  Status GiveUpHost(LowerCopy& copy);
  bool GiveUpChunkOf(LowerCopy& copy);
  // The same to the disk in two steps, so that several go down or none: a chunk
  // beside the only copy, which is the host's until GiveUpHost or TakeBeside.
  // REQUIRES: its state is kHost.
  Status WriteBeside(LowerCopy& copy) {
    return WriteToDisk(copy, copy.host.data);
  }
  void TakeBeside(LowerCopy& copy);
  // Gives back the copies of one handle: its bytes changed or are no more.
  void Drop(LowerCopy& copy);
  // The copies of all of a device's pages go. REQUIRES: each is resident.
  Status GiveUpAll(const DeviceAllocator& device);
  // Drop, and forget the record.
  void Forget(const DeviceAllocator& device, HandleRef handle);

  // The arbiter of another device, whose copies might have given the room that
  // was lacked last; nullptr: there is none. It is reported once.
  Mutex* TakeMissed(const DeviceAllocator& device) {
    return std::exchange(Of(device).missed, nullptr);
  }

  // A host buffer of `bytes`, after demoting or dropping colder copies; those
  // that a rule keeps off the disk are not demoted. Never
  // touches the copies of handles that are kCopyingOut. For `device`.
  Result<HostBuffer> TakeHost(DeviceAllocator& device, Bytes bytes);
  // The same of one that a failed read was to fill: as long as the disk does
  // not answer it is the kernel's.
  void PutUnread(HostBuffer buffer) EXCLUDES(mutex_);
  // While open, TakeHost may use the last chunk's worth of the host budget or,
  // where that holds fewer than four, WriteToDisk that of the disk's. That much
  // is kept back from evictions, so that a restore can always swap, all else
  // full: one handle out into the reserve, one in, and the copy of the one that
  // came in refills the reserve (its chunk of a full disk makes room for
  // another's). Each device has one, as far as the budget allows.
  void OpenReserve(const DeviceAllocator& device, bool open);
  bool reserve_is_open(const DeviceAllocator& device) const {
    return Of(device).reserve_open;
  }
  // Gives up copies of resident handles until the reserve is whole again.
  void RefillReserve(DeviceAllocator& device);
  // Only if there is room below the threshold: keeping a copy is optional.
  HostBuffer TakeSpareHost(Bytes bytes);

  // Writes page-aligned `data` to the spill file for `copy`; gives up chunks
  // of resident handles when the quota is spent.
  Status WriteToDisk(LowerCopy& copy, const void* data);
  // Where a disk has no room but for what gets smaller, the first chunk that
  // does not get in is the last that is compressed for it, until there is room
  // or another batch begins, which calls this.
  void TryDiskAgain() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    crowded_out_.reset();
  }
  // Of what is written from now on. Any thread.
  void SetDiskCodec(DiskCodec codec) {
    disk_codec_.store(codec, std::memory_order_relaxed);
  }
  Status ReadFromDisk(const LowerCopy& copy, void* to);

  // A staging buffer, for bytes on their way to or from the disk. Fails while
  // the disk does not answer: a late read may still fill one.
  Result<Staging::Taken> TakeStaging();

  // The staging events go back to their devices. Before those are destroyed.
  void Close() { staging_.Close(); }

  // Bytes of handles that could leave before both tiers are full, the reserve
  // kept. Copies of resident handles count as room. In one piece or not.
  // Of both tiers, or of one. Called without an arbiter: it takes each.
  Bytes Room(bool host = true, bool disk = true);
  bool disk_allowed() const { return options_.disk_budget > 0; }
  // nullptr until the first write. Any thread; never waits.
  DiskTier* disk() const { return opened_.load(std::memory_order_acquire); }
  HostTier* host() const { return host_.get(); }
  const Options& options() const { return options_; }
  Bytes written_bytes() const { return written_bytes_; }  // to disk, ever
  Bytes stored_bytes() const { return stored_bytes_; }    // it was stored in
  Bytes read_bytes() const { return read_bytes_; }        // from disk, ever
  using Copies = std::map<Address, LowerCopy>;
  Copies& all(const DeviceAllocator& device) { return Of(device).copies; }

 private:
  // What the allocator reported and CollectDropped has yet to drop.
  struct Dropped {
    HandleRef handle;
    std::uint32_t generation;
  };
  // Of one device: its arbiter's holder's.
  struct Below {
    std::atomic<Mutex*> arbiter{nullptr};  // nullptr: it has not joined
    bool reserve_open = false;
    Mutex* missed = nullptr;  // an arbiter that was not free, at the last look
    Copies copies;
    std::vector<Dropped> dropped;
    Told undrained;  // copies that arrive do not complete
  };
  Below& Of(const DeviceAllocator& device) {
    return below_[static_cast<std::size_t>(device.device().index())];
  }
  const Below& Of(const DeviceAllocator& device) const {
    return below_[static_cast<std::size_t>(device.device().index())];
  }
  // The copies that the holder of one device's arbiter may give up.
  class Reach;

  // Opens it at the first call.
  Result<DiskTier*> Disk() EXCLUDES(mutex_);
  Status MakeCoder(Bytes chunk_bytes);
  Status OpenFor(const Device& device, Bytes chunk_bytes) EXCLUDES(mutex_);
  void FreeUnread() EXCLUDES(mutex_);
  // The part of the budget that may be used now.
  Bytes HostRoom(const DeviceAllocator& device) const;
  // Makes room for one buffer of `bytes`; false if nothing could be given up.
  bool GiveUpHostCopy(DeviceAllocator& device, Bytes bytes, Error* why);
  bool GiveUpChunk(const DeviceAllocator& device);
  void FreeChunk(LowerCopy& copy);
  // In the part of the disk's budget that may be used now.
  bool DiskHasRoom(const DeviceAllocator& device, const DiskTier& disk,
                   Bytes bytes) const;
  Error DiskIsFull(const DiskTier& disk, Bytes bytes, Bytes kept) const;
  // Where the budget has no room for it raw: why it is not worth a try.
  std::optional<Error> CrowdedOut() EXCLUDES(mutex_);

  const Options options_;
  std::atomic<DiskCodec> disk_codec_;
  Reserves reserves_;
  std::unique_ptr<HostTier> host_;  // made before the first device joins
  // The disk's ring holds its buffers: it goes after the disk.
  Staging staging_;
  std::array<Below, kMaxDevices> below_;
  std::atomic<Bytes> written_bytes_{0}, stored_bytes_{0}, read_bytes_{0};
  std::atomic<std::uint64_t> packed_{0};  // chunks that lie there compressed
  std::atomic<DiskTier*> opened_{nullptr};

  Mutex mutex_{LockRank::kLower};
  std::optional<Error> crowded_out_ GUARDED_BY(mutex_);  // see TryDiskAgain
  // A read that came too late may still fill them.
  std::vector<HostBuffer> unread_ GUARDED_BY(mutex_);
  // The disk's, before there is one.
  std::shared_ptr<ChunkCodec> coder_ GUARDED_BY(mutex_);
  std::unique_ptr<DiskTier> disk_ GUARDED_BY(mutex_);
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_
