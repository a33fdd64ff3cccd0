// SPDX-License-Identifier: Apache-2.0
// The copies that handles have below the device: pinned host buffers and
// chunks of the spill file, and what to give up when a tier is full.
//
// Who may call: the holder of the arbiter, without a device lock except where
// a method says so. Every method may wait for disk or for copies in flight.
// Lifetime: the engine's.
// Invariants: a handle whose state is kHost, kHostAndDisk or kDisk has
// exactly the copies its state names; a handle with has_copy has at least one
// copy of generation `generation`; host used = sum of buffers here.
#ifndef STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_
#define STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "allocator/device_allocator.h"
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
  };

  explicit LowerCopies(Options options)
      : options_(std::move(options)), disk_codec_(options_.disk_codec) {}

  // The first device decides the context that registers host memory.
  // `chunk_bytes` is its large handle: the size of the staging buffers.
  Status Open(const Device& device, Bytes chunk_bytes);
  bool is_open() const { return host_ != nullptr; }

  LowerCopy* Find(Address handle);
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
  // Drop, and forget the record.
  void Forget(HandleRef handle);

  // A host buffer of `bytes`, after demoting or dropping colder copies; those
  // that a rule keeps off the disk are not demoted. Never
  // touches the copies of handles that are kCopyingOut. `now`: the clock.
  Result<HostBuffer> TakeHost(Bytes bytes, std::uint32_t now);
  void PutHost(HostBuffer buffer) { host_->Free(buffer); }
  // While open, TakeHost may use the last chunk's worth of the host budget or,
  // where that holds fewer than four, WriteToDisk that of the disk's. That much
  // is kept back from evictions, so that a restore can always swap, all else
  // full: one handle out into the reserve, one in, and the copy of the one that
  // came in refills the reserve (its chunk of a full disk makes room for
  // another's).
  void OpenReserve(bool open) { reserve_open_ = open; }
  bool reserve_is_open() const { return reserve_open_; }
  // Gives up copies of resident handles until the reserve is whole again.
  void RefillReserve(std::uint32_t now);
  // Only if there is room below the threshold: keeping a copy is optional.
  HostBuffer TakeSpareHost(Bytes bytes);

  // Writes page-aligned `data` to the spill file for `copy`; gives up chunks
  // of resident handles when the quota is spent.
  Status WriteToDisk(LowerCopy& copy, const void* data);
  // Where a disk has no room but for what gets smaller, the first chunk that
  // does not get in is the last that is compressed for it, until there is room
  // or another batch begins, which calls this.
  void TryDiskAgain() { crowded_out_.reset(); }
  // Of what is written from now on. Any thread.
  void SetDiskCodec(DiskCodec codec) {
    disk_codec_.store(codec, std::memory_order_relaxed);
  }
  Status ReadFromDisk(const LowerCopy& copy, void* to);

  // One of two pinned buffers of a large handle's size, used in turn. Waits
  // until the copy that last read it is complete. nullptr without a disk.
  Result<void*> TakeStaging();
  // The buffer taken last is read by copies on `stream` until they are done.
  Status MarkStaging(DeviceAllocator& device, StreamId stream);

  // The staging events go back to their devices. Before those are destroyed.
  void Close();

  // Bytes of handles that could leave before both tiers are full, the reserve
  // kept. Copies of resident handles count as room. In one piece or not.
  // Of both tiers, or of one.
  Bytes Room(bool host = true, bool disk = true) const;
  bool disk_allowed() const { return options_.disk_budget > 0; }
  DiskTier* disk() const { return disk_.get(); }
  HostTier* host() const { return host_.get(); }
  const Options& options() const { return options_; }
  Bytes written_bytes() const { return written_bytes_; }  // to disk, ever
  Bytes stored_bytes() const { return stored_bytes_; }    // it was stored in
  Bytes read_bytes() const { return read_bytes_; }        // from disk, ever
  const std::map<Address, LowerCopy>& all() const { return copies_; }
  std::map<Address, LowerCopy>& all() { return copies_; }

 private:
  Status OpenDisk();
  Status MakeCoder(Bytes chunk_bytes);
  Status MakeStaging(const Device& device, Bytes chunk_bytes);
  // The part of the budget that may be used now.
  Bytes HostRoom() const;
  // Makes room for one buffer of `bytes`; false if nothing could be given up.
  bool GiveUpHostCopy(Bytes bytes, std::uint32_t now, Error* why);
  bool GiveUpChunk();
  void FreeChunk(LowerCopy& copy);
  // In the part of the disk's budget that may be used now.
  bool DiskHasRoom(Bytes bytes) const;

  const Options options_;
  std::atomic<DiskCodec> disk_codec_;
  Bytes chunk_bytes_ = 0;
  Bytes reserve_bytes_ = 0;       // of the host budget
  Bytes disk_reserve_bytes_ = 0;  // of the disk's, if there is none of the host
  bool reserve_open_ = false;
  std::unique_ptr<HostTier> host_;
  // Beside the host budget. The disk's ring holds these buffers: they go after
  // it, and are replaced before there is one.
  std::unique_ptr<HostTier> staging_memory_;
  HostBuffer staging_[2];
  std::shared_ptr<ChunkCodec> coder_;  // the disk's, before there is one
  std::unique_ptr<DiskTier> disk_;
  struct StagingUse {
    EventId event = kNoEvent;
    DeviceAllocator* device = nullptr;  // whose pool the event came from
  };
  StagingUse staging_use_[2];
  int staging_next_ = 0;
  Bytes written_bytes_ = 0, stored_bytes_ = 0, read_bytes_ = 0;
  std::uint64_t packed_ = 0;          // chunks that lie there compressed
  std::optional<Error> crowded_out_;  // see TryDiskAgain
  std::map<Address, LowerCopy> copies_;
  // What the allocator reported and CollectDropped has yet to drop.
  struct Dropped {
    const DeviceAllocator* device;
    HandleRef handle;
    std::uint32_t generation;
  };
  std::vector<Dropped> dropped_;
  Told undrained_;  // copies that arrive do not complete
};

}  // namespace stratalloc

#endif  // STRATALLOC_TIERING_ENGINE_LOWER_COPIES_H_
