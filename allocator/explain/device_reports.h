// SPDX-License-Identifier: Apache-2.0
// What is told of one device: statistics, snapshots, single blocks, why bytes
// stay where they are (staying.h), and whether its sums hold. DeviceAllocator
// offers it as its own.
//
// Thread-safety: every method; they take the device lock. Lifetime: the
// device's. Nothing is changed but for bins that are emptied and free parts
// that are counted. Fails: kNotFound for an address that is no block's.
#ifndef STRATALLOC_ALLOCATOR_EXPLAIN_DEVICE_REPORTS_H_
#define STRATALLOC_ALLOCATOR_EXPLAIN_DEVICE_REPORTS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "allocator/explain/explanation.h"
#include "allocator/explain/heap_copy.h"
#include "allocator/explain/site_bytes.h"
#include "allocator/explain/staying.h"
#include "allocator/explain/tier_rooms.h"
#include "allocator/explain/trials.h"
#include "allocator/heap/fragmentation.h"
#include "allocator/requests/device_parts.h"
#include "allocator/values/malloc_request.h"
#include "allocator/values/reclaimer.h"
#include "allocator/values/views.h"

namespace stratalloc {

class DeviceReports {
 public:
  explicit DeviceReports(DeviceParts& parts) : p_(parts) {}

  // ---- statistics and snapshots
  // ----------------------------------------------

  DeviceStats Stats() EXCLUDES(p_.mutex);
  void ResetPeakStats() EXCLUDES(p_.mutex);
  void ResetAccumulatedStats() EXCLUDES(p_.mutex);
  // Adds what was counted before the device was opened.
  void CountSynchronisations(std::int64_t number) EXCLUDES(p_.mutex);
  std::vector<SegmentView> Snapshot() EXCLUDES(p_.mutex);
  // All of one moment; `order`: the number of the device's newest event in the
  // event rings (history.h) by then.
  struct Moment {
    std::vector<SegmentView> segments;
    DeviceStats stats;
    std::uint64_t order = 0;
  };
  Moment Now() EXCLUDES(p_.mutex);

  Bytes LargestCached() EXCLUDES(p_.mutex);
  // What is looked at every few seconds while a program runs. Of blocks only
  // the free ones are looked at that are as large as a handle, so that the lock
  // is held for microseconds; what lies where is Fragments()'. Where handles
  // are on their way, they count as stranded.
  struct Usage {
    DeviceStats stats;
    Bytes limit = 0;         // DeviceAllocator::limit()
    Bytes largest_free = 0;  // LargestCached()
    // As fragmentation.h has them.
    Bytes pending = 0, stranded = 0, releasable = 0, in_private_pools = 0;
  };
  Usage Used() EXCLUDES(p_.mutex);
  // Those of block_heap.h, handle_pool.h and block_pins.h; allocated <= active
  // <= reserved, each the sum of what is on the device; reserved = sum of
  // mapped handles, of which a position that merely keeps a mapping
  // (device/handle_pool.h) is none; in evictable regions each handle's `live` =
  // live blocks over it. kInvalidArgument, and which of them does not hold.
  Status CheckInvariants() EXCLUDES(p_.mutex);

  // ---- single blocks -------------------------------------------------------

  // Is it the base of an allocated block?
  bool Owns(Address address) EXCLUDES(p_.mutex);
  // A live block's charge and rounded size, for reports of misuse.
  bool FindLive(Address address, BlockView* out) EXCLUDES(p_.mutex);
  // How a live block lies, for who would give its bytes another place.
  struct Placed {
    LifetimeClass lifetime = LifetimeClass::kUnknown;
    Charge charge;
    // Somebody has its address beyond an operator: a pin says so (all but that
    // of data_ptr()) or a graph reads it. Of what stays by its class nobody
    // notes the graphs, so it counts as held once anything was captured here.
    bool held = false;
    StreamId stream{};               // whose pool it is of
    std::vector<StreamId> recorded;  // besides: freed, it waits for these
  };
  // False: no live block of ours holds the address.
  bool FindPlaced(Address address, Placed* out) EXCLUDES(p_.mutex);
  // Was any CUDA graph captured with memory of the device?
  bool HasCaptured() const { return p_.routes.times_over() != 0; }
  // The contiguous mapped range around the block that holds `address`.
  Result<SegmentView> BaseAllocation(Address address) EXCLUDES(p_.mutex);

  // ---- what stays ----------------------------------------------------------

  // Why each allocated byte is on the device (staying.h): the sum is the
  // current allocated_bytes. Looks at every block and asks for the libraries'
  // workspaces: for reports and errors.
  Staying Stays() EXCLUDES(p_.mutex);
  // What to tell people after an eviction came to less than was asked:
  // `refusal`, if a tier had a reason, and what is on the device by reason.
  std::string WhyNoMore(const std::string& refusal) EXCLUDES(p_.mutex);

  // What was allocated where (site_bytes.h); looks at every block.
  std::vector<SiteBytes> Sites() EXCLUDES(p_.mutex);
  // What is reserved beside what is allocated, and why (fragmentation.h).
  Fragmentation Fragments() EXCLUDES(p_.mutex);
  // What would serve a request (explanation.h); makes none. Copies every block.
  // `reclaimer`: who would evict, or nullptr. Fails as the driver does that is
  // asked for the card's memory, and with kHostOutOfMemory; kInvalidArgument
  // for 0 and for more than any card has.
  Result<Explanation> Explain(const MallocRequest& request,
                              Reclaimer* reclaimer) EXCLUDES(p_.mutex);
  // The request made again, once for each trial and on a copy of every block of
  // its own. Others wait for each copy, and for no search. Fails as Explain
  // does.
  Result<std::vector<Tried>> Try(const RefusedRequest& refused,
                                 std::span<const Trial> trials,
                                 Reclaimer* reclaimer) EXCLUDES(p_.mutex);
  // What the card's memory is made of, all of one moment. Looks at every block;
  // fails as the driver does.
  Result<MemoryParts> Parts() EXCLUDES(p_.mutex);

  // Bytes that no eviction could take now: blocks of transient and staying
  // pools, and evictable handles that are pinned or that no tier below may
  // have.
  Bytes StayingBytes() EXCLUDES(p_.mutex);

 private:
  // Bytes on the device, added up block by block and handle by handle.
  struct OnDeviceSums {
    Bytes allocated = 0, active = 0, mapped = 0;
  };
  std::vector<SegmentView> SnapshotLocked() REQUIRES(p_.mutex);
  DeviceStats StatsLocked() REQUIRES(p_.mutex);
  Bytes LargestCachedLocked() REQUIRES(p_.mutex);
  // nullptr if all is well, else what is not.
  const char* CheckHandlesLocked(OnDeviceSums* sums) REQUIRES(p_.mutex);
  const char* CheckSumsLocked(const OnDeviceSums& sums) REQUIRES(p_.mutex);
  Staying StayingLocked(const std::vector<Address>& workspaces)
      REQUIRES(p_.mutex);
  Result<Explanation> ExplainLocked(const MallocRequest& request,
                                    const Reclaimer* reclaimer,
                                    const std::vector<Address>& workspaces,
                                    const TierRooms& tiers, Explanation out)
      REQUIRES(p_.mutex);
  Result<std::unique_ptr<HeapCopy>> CopyHeapLocked() REQUIRES(p_.mutex);
  // As the ladder has it: of the pool that its stream is routed to.
  HeapCopy::Wish WishLocked(const MallocRequest& request) REQUIRES(p_.mutex);
  Doubt DoubtLocked(const PoolKey& key) REQUIRES(p_.mutex);
  // All that a trial needs of the device.
  struct TrialCopy;
  Result<std::unique_ptr<TrialCopy>> TrialCopyLocked(
      const RefusedRequest& refused, const Trial& trial,
      const Reclaimer* reclaimer, const std::vector<Address>& workspaces)
      REQUIRES(p_.mutex);
  // No lock is held.
  static Tried TryOn(TrialCopy& moment, const Trial& trial, Bytes room,
                     TierRooms tiers);
  // What may leave, in the order of `reclaimer`; and what stays for the reasons
  // of `also` (Trial::Bit), as if it might.
  std::vector<EvictableHandle> LeavingLocked(
      const Reclaimer& reclaimer, const std::vector<Address>& workspaces,
      std::uint32_t also = 0) REQUIRES(p_.mutex);

  DeviceParts& p_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_EXPLAIN_DEVICE_REPORTS_H_
