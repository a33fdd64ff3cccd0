// SPDX-License-Identifier: Apache-2.0
// The memory of one device as positions have it: which physical handle is
// mapped at which position of the reservation, who gave it up, what peers may
// do. Knows handles and streams, no blocks: whoever calls says which positions
// are wanted and which are done with.
//
// Memory that is used nowhere is kept for the next position, and so are its
// mappings (device/handle_pool.h). Unmanaged segments, whose memory somebody
// else makes, are counted here, because the limit speaks of both.
//
// Thread-safety: the caller holds the device lock. Lifetime: the device's.
// Fails as the driver does; a call that fails has changed nothing, but for
// mappings that the driver did not take back, which are kept.
// Invariants (CheckInvariants): created = mapped + free + taken, in bytes, and
// those of the handle pool.
#ifndef STRATALLOC_ALLOCATOR_MEMORY_PAGE_STORE_H_
#define STRATALLOC_ALLOCATOR_MEMORY_PAGE_STORE_H_

#include <optional>
#include <set>
#include <span>
#include <vector>

#include "allocator/cuda/device.h"
#include "allocator/cuda/handle_pool.h"
#include "allocator/memory/handle_table.h"

namespace stratalloc {

class PageStore {
 public:
  // Who wants memory, as far as its earlier users matter: the stream whose work
  // is in order (as a bit, or 0) and who is asked about the others.
  struct User {
    std::uint64_t own = 0;
    const StreamsIdle& idle;
  };
  enum class Mapped {
    kYes,
    kNoMemory,
    kPlaceBusy,  // a mapping that is kept there may still be in use
  };
  struct Answer {
    Mapped mapped = Mapped::kNoMemory;
    std::vector<HandleRef> arrived;  // kYes: resident now, and were not
    Bytes lacking = 0;               // kNoMemory: at least
    std::optional<Error> error;      // of the driver, for no want of memory
  };

  explicit PageStore(const Device& device)
      : device_(device), physical_(device) {}

  // ---- how much ----------------------------------------------------------

  // In use, unmanaged segments included: what the limit speaks of.
  Bytes used_bytes() const {
    return physical_.used_bytes() + unmanaged_bytes();
  }
  // What the driver gave us, used or not.
  Bytes ours() const { return physical_.created_bytes() + unmanaged_bytes(); }
  Bytes free_bytes() const { return physical_.free_bytes(); }
  Bytes unmanaged_bytes() const { return unmanaged_bytes_ + fetching_bytes_; }
  Bytes unmanaged_segment_bytes() const { return unmanaged_bytes_; }
  // An unmanaged segment is asked for, has come or was refused; has gone.
  void BeginFetch(Bytes bytes) { fetching_bytes_ += bytes; }
  void EndFetch(Bytes bytes, bool came) {
    fetching_bytes_ -= bytes;
    if (came) unmanaged_bytes_ += bytes;
  }
  void NoteUnmanagedGone(Bytes bytes) { unmanaged_bytes_ -= bytes; }
  // Has the driver had no memory for us since this was asked last?
  bool TakeRefused() { return physical_.TakeRefused(); }
  // Gives free memory whose streams are idle back to the driver.
  Bytes ReleaseFree(const StreamsIdle& idle) {
    return physical_.ReleaseFree(idle);
  }

  // ---- positions get memory, and give it up --------------------------------

  // Memory for every position in [lo, hi) that is kUnmapped: what is mapped
  // there still, else free memory, else the driver's while used_bytes() stays
  // within `limit`. `keeps`: a position there that is done with keeps its
  // mapping.
  Answer Map(HandleRegion& region, Address lo, Address hi, Bytes limit,
             bool keeps, const User& user);
  // The position no longer has `memory`, its own so far, and is kUnmapped.
  // `used_streams`: streams that may still use it. Never fails.
  void GiveUp(HandleRef handle, PhysicalMemory* memory,
              std::uint64_t used_streams, bool keeps);
  // Unmaps what positions in [lo, hi) keep; false if work may still use it, or
  // the driver refuses.
  bool DropKept(HandleRegion& region, Address lo, Address hi,
                const StreamsIdle& idle);
  // Everything on the streams `used_streams` that was enqueued before Put
  // number `until` has run.
  void Fenced(std::uint64_t used_streams, std::uint64_t until) {
    physical_.Fenced(used_streams, until);
  }
  std::uint64_t used_streams() const { return physical_.used_streams(); }
  std::uint64_t last_put() const { return physical_.last_put(); }

  // ---- bytes leave and return ------------------------------------------

  // What the slots have is mapped there no longer; see HandlePool::Unmap.
  Status Unmap(std::vector<PhysicalMemory**> slots) {
    return physical_.Unmap(std::move(slots));
  }
  // For a restore, used by nobody any more; within `limit` as above. Either
  // mapped by MapTaken, or put back.
  Result<PhysicalMemory*> Take(Bytes bytes, Bytes limit,
                               const StreamsIdle& idle);
  void PutTaken(PhysicalMemory* memory);
  // Adjacent positions, each with its memory: rights cost one call. On failure
  // the memory is still the caller's.
  Status MapTaken(std::span<const HandleRef> run,
                  std::span<PhysicalMemory* const> memory);

  // ---- other devices and processes ----------------------------------------

  const std::vector<DeviceIndex>& peers() const { return peers_; }
  bool IsPeer(DeviceIndex peer) const;
  // Rights for what is mapped in [lo, hi), kept mappings included: they come
  // into use again without a grant.
  Status GrantPeer(HandleRegion& region, Address lo, Address hi,
                   DeviceIndex peer);
  void AddPeer(DeviceIndex peer) { peers_.push_back(peer); }
  bool HasDescriptor(HandleRef handle) const;
  // REQUIRES: the handle is on the device.
  Result<int> Descriptor(HandleRef handle) {
    return physical_.Descriptor(*handle.entry().physical);
  }
  void CloseDescriptors(const std::set<PhysicalHandle>& keep) {
    physical_.CloseDescriptors(keep);
  }

  // May what is mapped at the position be used?
  bool IsGranted(HandleRef handle) const;
  // `mapped`: bytes of the positions that are on the device, unmanaged ones
  // too.
  const char* CheckInvariants(Bytes mapped) const;

 private:
  class Mapping;  // one Map

  Device device_;
  HandlePool physical_;
  std::vector<DeviceIndex> peers_;
  Bytes unmanaged_bytes_ = 0;
  Bytes fetching_bytes_ = 0;  // asked for, not there yet
  Bytes taken_bytes_ = 0;     // neither mapped nor back yet
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_MEMORY_PAGE_STORE_H_
