// SPDX-License-Identifier: Apache-2.0
// The allocator of one device: blocks out of segments out of handles.
//
// Malloc takes a block that was freed just now or is cached (fast_path.cc), or
// climbs the ladder (SlowMalloc; ladder.h has it in words, rung by rung). Each
// search on the way looks, in this order, at: a cached block that fits best;
// whole handles that the stream's other classes have free (take_over.cc); free
// address space that needs memory ("Before memory grows" in README.md), as far
// as that search may take any.
//
// Thread-safety: every method. One lock per device (kDevice); it is dropped
// for every rung that waits. Methods ending in Locked need it held.
// Lifetime: as long as the process; the destructor is for tests.
// Invariants (CheckInvariants): those of block_heap.h, handle_pool.h and
// block_pins.h; allocated <= active <= reserved, each the sum of what is on
// the device; reserved = sum of mapped handles, of which a position that merely
// keeps a mapping (device/handle_pool.h) is none; in evictable regions each
// handle's `live` = live blocks over it.
#ifndef STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_
#define STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "allocator/base/condition.h"
#include "allocator/base/mutex.h"
#include "allocator/block_heap.h"
#include "allocator/block_pins.h"
#include "allocator/block_traces.h"
#include "allocator/captures.h"
#include "allocator/charge_account.h"
#include "allocator/checkpoints.h"
#include "allocator/deferred_frees.h"
#include "allocator/device/device.h"
#include "allocator/device_limit.h"
#include "allocator/event_pool.h"
#include "allocator/free_handles.h"
#include "allocator/handle_table.h"
#include "allocator/history.h"
#include "allocator/ipc.h"
#include "allocator/live_blocks.h"
#include "allocator/live_counters.h"
#include "allocator/malloc_request.h"
#include "allocator/page_store.h"
#include "allocator/placement.h"
#include "allocator/plain_segments.h"
#include "allocator/pool.h"
#include "allocator/pool_routes.h"
#include "allocator/private_pools.h"
#include "allocator/recent_accounts.h"
#include "allocator/reclaimer.h"
#include "allocator/residency.h"
#include "allocator/slow_reasons.h"
#include "allocator/stats.h"
#include "allocator/staying.h"
#include "allocator/views.h"

namespace stratalloc {

struct OperatorThread;

// One handle that may leave, at one moment.
struct EvictableHandle {
  HandleRef handle;
  HandleState state = HandleState::kResident;
  bool lives = false;  // a live block lies over it
  bool pinned = false;
  bool clean = false;  // as far as the guard knows
  bool has_copy = false;
  std::uint32_t last_use = 0;
  std::array<std::uint32_t, HandleEntry::kIntervals> intervals{};
};

// One handle of an operator, as the guard sees it.
struct GuardedHandle {
  HandleRef handle;
  bool written = false;
};

// How full a device is, at one moment.
struct Occupancy {
  Bytes limit = 0;
  Bytes allocated = 0;
  bool some_away = false;
};

class DeviceAllocator {
 public:
  struct Options {
    bool tiering = true;
    Bytes gpu_limit = 0;  // 0 = the card's memory
    // What of it may lie below; 0 = no such tier. Handles are not larger than
    // these want them.
    Bytes host_budget = 0;
    Bytes disk_budget = 0;
    double emergency_threshold = 0.95;
    // Address space of a segment, at least; smaller ones meet sooner.
    Bytes segment_least = 64 * kMiB;
  };
  static Result<std::unique_ptr<DeviceAllocator>> Create(
      Device device, const Options& options);
  ~DeviceAllocator();

  // Plugged in before the first Malloc; may be nullptr.
  void SetAccounts(ChargeAccounts* accounts) { accounts_.Use(accounts); }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  // Why there is none, for who is refused memory. Before the device is found.
  void SetWhyNoReclaimer(std::string why) {
    why_no_reclaimer_ = std::move(why);
  }

  // ---- a driver that is not ready (kNotReady) -----------------------------

  // Some drivers answer a change of mappings with that now and then while the
  // device has work to do. It is tried again once that work is over, because a
  // job must not die of it; and an answer that does not end is a kDevice.
  // `call` takes the locks it needs itself, since nobody waits for the device
  // under one.
  template <typename Call>
  std::invoke_result_t<Call&> WhenReady(Call&& call) EXCLUDES(mutex_) {
    auto answer = call();
    for (int i = 0; i < kSettles && IsNotReady(answer); ++i) {
      Settle();
      answer = call();
    }
    if (!IsNotReady(answer)) return answer;
    return Fail(ErrorCode::kDevice, answer.error().message + ", " +
                                        std::to_string(kSettles + 1) +
                                        " times in a row");
  }

  // ---- blocks -----------------------------------------------------------

  // REQUIRES: request.size > 0. May wait for events, copies and disk, without
  // lock.
  Result<AllocatedBlock> Malloc(const MallocRequest& request) EXCLUDES(mutex_) {
    if (AllocatedBlock block;
        !request.raw && FastMalloc(request.size, request.stream,
                                   request.lifetime, request.charge, &block)) {
      return block;
    }
    return SlowMalloc(request);
  }
  // The two halves of them, for callers that count nanoseconds. Fast: a block
  // out of a bin or of free memory that is mapped, or into a bin; false if this
  // call must take the whole way, and nothing anybody can see has changed then.
  // Slow: the whole way.
  bool FastMalloc(Bytes size, StreamId stream, LifetimeClass lifetime,
                  Charge charge, AllocatedBlock* out) EXCLUDES(mutex_);
  bool FastFree(Address address, AllocatedBlock* out) EXCLUDES(mutex_);
  Result<AllocatedBlock> SlowMalloc(const MallocRequest& request)
      EXCLUDES(mutex_);
  Result<AllocatedBlock> SlowFree(Address address) EXCLUDES(mutex_);
  // kNotFound if `address` is not the base of an allocated block. Never
  // waits: memory whose events or copies are outstanding is freed later.
  Result<AllocatedBlock> Free(Address address) EXCLUDES(mutex_) {
    if (AllocatedBlock freed; FastFree(address, &freed)) return freed;
    return SlowFree(address);
  }
  bool Owns(Address address) EXCLUDES(mutex_);
  bool Contains(Address address) const {
    return address >= table_.base() && address < table_.end();
  }
  // The same for memory of pools with an allocator of their own, which lies
  // anywhere.
  bool ContainsPlain(Address address) EXCLUDES(mutex_);
  // May the block at this address leave the device, as far as its class goes?
  // REQUIRES: it lives, if it is this allocator's. No lock.
  bool MayLeave(Address address) {
    if (!Contains(address) || address >= table_.evictable_end()) return false;
    HandleRegion& region = *table_.RegionOf(address);
    return !region.entries[region.IndexOf(address)].stays.load(
        std::memory_order_relaxed);
  }
  Status RecordStream(Address address, StreamId stream) EXCLUDES(mutex_);
  // The contiguous mapped range around the block that holds `address`.
  Result<SegmentView> BaseAllocation(Address address) EXCLUDES(mutex_);
  // Gives cached memory back to the driver; waits for the streams involved.
  Status EmptyCache() EXCLUDES(mutex_);
  // The same but for what waits for events: the driver needs memory of the card
  // for page tables. Returns the bytes; 0 while a stream captures.
  Bytes GiveToDriver() EXCLUDES(mutex_);
  Bytes LargestCached() EXCLUDES(mutex_);
  void Relabel(Address address, Bytes bytes, Charge charge, bool keep_category)
      EXCLUDES(mutex_);
  // Access for `peer` to every mapped range, now and later.
  Status EnablePeer(DeviceIndex peer) EXCLUDES(mutex_);
  std::vector<DeviceIndex> peers() EXCLUDES(mutex_);
  // A handle by which another process maps the allocated block at `address`
  // (ipc.h has its format), and where the block begins in what it maps. The
  // block stays on the device from now on, until it is freed.
  // REQUIRES: its bytes are on the device (pinned by an operator, say).
  // kUnsupported: it would take too many file descriptors beside those that all
  // devices have open (Allocator::Share makes room), or none can be made.
  Result<SharedBlock> Share(Address address) EXCLUDES(mutex_);
  // Closes the descriptors of memory that no shared block has any more. They
  // stay open till then, because the same memory should travel under the same
  // number.
  void CloseDescriptors() EXCLUDES(mutex_);

  // ---- pins that outlast an operator (block_pins.h) ----------------------

  BlockPin PinBlock(Address address, PinReason reason) EXCLUDES(mutex_);
  bool UnpinBlock(const BlockPin& pin, bool unobserved) EXCLUDES(mutex_);
  bool IsPinned(const BlockPin& pin) EXCLUDES(mutex_);
  bool KeepsPointer(Address address) EXCLUDES(mutex_);
  bool DropOldPointers(Bytes bytes, std::size_t count) EXCLUDES(mutex_);
  std::vector<PinnedBytes> Pinned() EXCLUDES(mutex_);

  // ---- private pools (private_pool.h) -----------------------------------

  // One more use of the pool, which is made if it is not there: with memory of
  // `source`, if there is one. A pool keeps the source it was made with.
  void CreateOrUsePool(PoolId id,
                       std::shared_ptr<const MemorySource> source = nullptr)
      EXCLUDES(mutex_);
  // One more use, and a route to the pool. kInvalidArgument if it has one. May
  // wait, for the events of an eviction. `current`: the caller's stream; a
  // filter that accepts it already is no capture's, which has yet to begin.
  Status BeginAllocateToPool(PoolId id, std::function<bool(StreamId)> filter,
                             StreamId current = kDefaultStream)
      EXCLUDES(mutex_);
  Status EndAllocateToPool(PoolId id) EXCLUDES(mutex_);  // takes the route away
  Status ReleasePool(PoolId id) EXCLUDES(mutex_);        // one use less
  int PoolUseCount(PoolId id) EXCLUDES(mutex_);          // 0: no such pool
  Status SetUseOnOom(PoolId id, bool use_on_oom) EXCLUDES(mutex_);
  Status SetNoSplit(PoolId id) EXCLUDES(mutex_);
  // False: no stream captures into a private pool here, and no other capture is
  // known of. No lock, no driver.
  bool MayCapture() const { return routes_.MayCapture(); }
  // The same, after a look at the captures that it knows, since one that torch
  // could not end may be over. Waits as AwaitRoutes does.
  bool MayCaptureStill() EXCLUDES(mutex_);
  bool IsCapturing(StreamId stream) const {
    return MayCapture() && device_.IsCapturing(stream);
  }
  // If `stream` captures into a pool of this device: `operands`, which the
  // caller has pinned, stay where they are until the pool has no use left, and
  // true. They may be another device's.
  bool KeepForGraph(StreamId stream, std::span<HandleEntry* const> operands)
      EXCLUDES(mutex_);
  // The same of a pool into which a capture has yet to begin. False if there is
  // no such pool.
  bool KeepForPool(PoolId id, std::span<HandleEntry* const> operands)
      EXCLUDES(mutex_);
  // A look at the captures of other threads, for who waits until bytes may
  // leave. Asks the driver, and waits for nothing.
  using OthersCaptures = Captures::Others;
  OthersCaptures LookAtCaptures() EXCLUDES(mutex_);
  // Does one of these streams of streams() capture? All that it has, if they
  // mean the whole device. Asks the driver.
  bool SomeCapture(std::uint64_t streams) const {
    return captures_.Some(streams);
  }
  // Does one of this device's own streams capture that may be asked?
  bool SomeOwnCapture() const { return captures_.SomeOwn(); }
  // If `stream` captures (captures.h), captures are looked for here until
  // it is over.
  void NoteCapture(StreamId stream) EXCLUDES(mutex_);
  // What such a capture uses, which the caller has pinned, stays until it is
  // freed: there is no pool whose end would say that its graph is gone.
  // REQUIRES: the entry is of this device.
  void KeepUntilFreed(HandleEntry& operand) EXCLUDES(mutex_);
  // Base addresses of the pool's allocated blocks.
  Result<std::vector<Address>> AllocatedIn(PoolId id) EXCLUDES(mutex_);
  // Allocated bytes of all private pools.
  Bytes PrivateAllocated() EXCLUDES(mutex_);
  Result<Checkpoint> TakeCheckpoint(PoolId id) EXCLUDES(mutex_);
  // Frees what the pool has allocated and allocates what it had, at the same
  // addresses. On failure nothing changed.
  Result<CheckpointDelta> GoBackTo(const Checkpoint& checkpoint)
      EXCLUDES(mutex_);
  // Gives back the cached memory of a pool that has no use left.
  Status EmptyPool(PoolId id) EXCLUDES(mutex_);

  double fraction() EXCLUDES(mutex_);
  void SetFraction(double fraction) EXCLUDES(mutex_);
  // What reserved bytes may reach: capacity or gpu_limit, times the fraction,
  // and once the card has refused memory what it has for us (card_room.h).
  Bytes limit() EXCLUDES(mutex_);
  // The same with the headroom: no larger request can be served.
  Bytes most() EXCLUDES(mutex_);
  // Memory is short: looks at what the card has for us, if that is due.
  void FollowCard() EXCLUDES(mutex_);
  // Somebody would be refused for the limit: takes the headroom, and looks
  // whether others gave memory back since the last look. True if the limit is
  // higher now.
  bool RaiseLimit() EXCLUDES(mutex_);
  // Not more than `most()`, after a look at the card if it is less.
  bool CouldHold(Bytes bytes) EXCLUDES(mutex_);

  DeviceStats Stats() EXCLUDES(mutex_);
  void ResetPeakStats() EXCLUDES(mutex_);
  void ResetAccumulatedStats() EXCLUDES(mutex_);
  std::vector<SegmentView> Snapshot() EXCLUDES(mutex_);

  // Why each allocated byte is on the device (staying.h): the sum is the
  // current allocated_bytes. Looks at every block and asks for the libraries'
  // workspaces: for reports and errors.
  Staying Stays() EXCLUDES(mutex_);
  // What to tell people after an eviction came to less than was asked:
  // `refusal`, if a tier had a reason, and what is on the device by reason.
  std::string WhyNoMore(const std::string& refusal) EXCLUDES(mutex_);

  // ---- history (history.h) ------------------------------------------------

  void ConfigureHistory(const History::Options& options) EXCLUDES(mutex_);
  // History::SetTracker was called.
  void NoteTracker() EXCLUDES(mutex_);
  std::vector<TraceEvent> Traces() EXCLUDES(mutex_);
  // Returns the rounded size, which native reports.
  Bytes RecordOutOfMemory(StreamId stream, Bytes bytes, Bytes free_bytes)
      EXCLUDES(mutex_);
  void RecordSnapshot(PoolId pool, Bytes active) EXCLUDES(mutex_);

  // A live block's charge and rounded size, for reports of misuse.
  bool FindLive(Address address, BlockView* out) EXCLUDES(mutex_);
  Status CheckInvariants() EXCLUDES(mutex_);

  // ---- handles, for tiering ---------------------------------------------

  const Device& device() const { return device_; }
  bool tiering() const { return options_.tiering; }
  HandleTable& table() { return table_; }
  StreamTable& streams() { return streams_; }
  Bytes capacity() const { return capacity_; }
  // Planner's clock; ticks on every scope entered and every access guarded.
  std::atomic<std::uint32_t>& use_clock() { return use_clock_; }

  // Every handle with memory, or bytes away, of what may leave, in address
  // order.
  std::vector<EvictableHandle> Evictable() EXCLUDES(mutex_);
  // Those that an eviction may choose from now, what has arrived included.
  // `library`: blocks that libraries keep as workspaces, which stay.
  std::vector<EvictableHandle> Candidates(const std::vector<Address>& library)
      EXCLUDES(mutex_);
  // Of the live blocks over the handle.
  std::vector<std::pair<Charge, Bytes>> LiveOver(HandleRef handle)
      EXCLUDES(mutex_);
  // Those of them that are away and not lost.
  std::vector<HandleRef> AwayOf(std::span<const HandleRef> handles)
      EXCLUDES(mutex_);

  // May bytes leave now (Captures::MayEvict)? Waits until it is known whether a
  // route's stream is about to capture: for microseconds, or once for a second
  // if its thread cannot tell.
  bool AwaitRoutes() EXCLUDES(mutex_);
  // Around the events of an eviction that are recorded without the lock: no
  // route is set meanwhile, so no capture begins. False, and nothing is begun,
  // if bytes may not leave now.
  bool BeginFencing() EXCLUDES(mutex_);
  void EndFencing() EXCLUDES(mutex_);

  // The steps of residency.h. Those of `handles` that may leave, marked.
  std::vector<Departure> MarkLeaving(std::span<const HandleRef> handles)
      EXCLUDES(mutex_);
  // `users`: the streams that were looked at. Handles that may not go, or of
  // which a library's block knows by now, are taken out and stay. If any are
  // left, EndFencing is owed.
  void BeginEvict(std::vector<Departure>* marked, std::uint64_t users,
                  const std::vector<Address>& library, bool may_leave)
      EXCLUDES(mutex_);
  void CommitEvict(std::vector<Departure>* departures) EXCLUDES(mutex_);
  // Maps `memory` where the first of `handles` were, as many as lie side by
  // side, once the driver is ready. Returns their number: 0 if the first one
  // was freed meanwhile. The other memory stays the caller's, and all of it
  // where this fails.
  Result<std::size_t> BeginRestore(std::span<const HandleRef> handles,
                                   std::span<PhysicalMemory* const> memory)
      EXCLUDES(mutex_);
  // `event` is ours from here on.
  void CommitRestore(std::vector<HandleRef> handles, EventId event)
      EXCLUDES(mutex_);
  void AbortRestore(HandleRef handle, HandleState to) EXCLUDES(mutex_);
  // Makes `stream` wait for those of this device's `handles` that are on their
  // way, unless it captures. `use` is called of each that it may use, under the
  // lock. False if others are away, leave, or are not enqueued yet. REQUIRES:
  // they are pinned.
  Result<bool> Await(StreamId stream, std::span<const GuardedHandle> handles,
                     const std::function<void(const GuardedHandle&)>& use)
      EXCLUDES(mutex_);
  // Waits until every outstanding arrival is complete. During a capture too.
  Status DrainArrivals() EXCLUDES(mutex_);

  // Physical memory for a restore: recycled, created, or traded from cached
  // blocks (which may wait: drops and retakes the lock).
  Result<PhysicalMemory*> TakePhysical(Bytes bytes) EXCLUDES(mutex_);
  void PutPhysical(PhysicalMemory* memory) EXCLUDES(mutex_);
  // residency.h. The caller drops the copies.
  std::vector<std::pair<HandleRef, std::uint32_t>> TakeDropped()
      EXCLUDES(mutex_);
  void NoteHostCopyGone(HandleRef handle, bool written, bool on_disk)
      EXCLUDES(mutex_);
  bool NoteChunkGone(HandleRef handle, bool in_host) EXCLUDES(mutex_);
  // Allocated bytes that are on the device now.
  Bytes Allocated() EXCLUDES(mutex_);
  Occupancy Occupied() EXCLUDES(mutex_);
  // Bytes of [address, address + bytes), which is ours, by tier.
  std::array<Bytes, kTiers> TiersOf(Address address, Bytes bytes)
      EXCLUDES(mutex_);
  // Blocks freed so far: whoever waits for room sees by it that others get on.
  std::int64_t FreedCount() EXCLUDES(mutex_);
  // What OnPressure is called above may have changed: the next malloc asks.
  void LookAtPressure() EXCLUDES(mutex_);
  // Would so many bytes not fit if everything that may leave had left? Never
  // true where they might: what is free, waits for events or is evictable
  // counts as gone.
  bool CannotFit(Bytes bytes) EXCLUDES(mutex_);
  // Bytes that no eviction could take now: blocks of transient pools, and
  // evictable handles that are pinned.
  Bytes StayingBytes() EXCLUDES(mutex_);

  EventId TakeEvent() EXCLUDES(mutex_);  // pooled; kNoEvent if none to be had
  void PutEvent(EventId event) EXCLUDES(mutex_);

 private:
  friend class DeviceAllocatorTestPeer;
  DeviceAllocator(Device device, const Options& options, Bytes capacity,
                  HandleTable table);

  // ladder_device.cc
  class ForLadder;
  // SlowMalloc as far as the driver is ready: kNotReady.
  Result<AllocatedBlock> ClimbLadder(const MallocRequest& request)
      EXCLUDES(mutex_);

  // malloc.cc
  static constexpr int kSettles = 8;
  template <typename R>
  static bool IsNotReady(const R& answer) {
    return !answer && answer.error().code == ErrorCode::kNotReady;
  }
  // Waits for the work of the device; not while a stream captures, whose
  // capture that would spoil.
  void Settle() EXCLUDES(mutex_);
  // How far a growth by `size` would go beyond garbage_collection_threshold; 0
  // without a fraction.
  Bytes AboveCollectionThreshold(Bytes size) EXCLUDES(mutex_);
  // `hopeless`: eviction could not have been enough. kDevice if the device
  // answers nobody.
  Error OutOfMemory(Bytes requested, bool hopeless = false) EXCLUDES(mutex_);
  void MaybeSignalPressureLocked() REQUIRES(mutex_);
  Bytes AllocatedLocked() REQUIRES(mutex_);
  bool CannotFitLocked(Bytes size) REQUIRES(mutex_);
  bool CouldHoldLocked(Bytes bytes) REQUIRES(mutex_);

  // fast_path.cc
  // FastMalloc when no bin has a block of the size.
  bool FastFitLocked(Pool& pool, Bytes size, Bytes requested, Charge charge,
                     AllocatedBlock* out) REQUIRES(mutex_);
  AllocatedBlock HandedOutLocked(const Block& block, Bytes size, Charge charge)
      REQUIRES(mutex_);
  // What a malloc or a free answers about a block, now that it is done.
  AllocatedBlock AnswerLocked(Address address, Bytes size, Charge charge) const
      REQUIRES(mutex_) {
    return {address, size, live_.allocated_bytes(),
            static_cast<Bytes>(stats_.reserved_bytes.stats[0].current), charge};
  }

  // free.cc, releases.cc
  Status SynchronizePendingFrees() EXCLUDES(mutex_);
  // Gives up wholly free handles of every pool until `wanted` bytes came free.
  // Waits for the streams that used them, without the lock. Returns the bytes.
  // `only`: of this private pool alone. Nothing while a stream captures, and
  // nothing of private pools in use.
  Bytes ReleaseCached(Bytes wanted, PoolId only = {}) EXCLUDES(mutex_);
  // Kernels that used freed memory may still be running, and memory is not
  // unmapped under them. Waits without the lock; false if these streams' work
  // may go on.
  bool WaitForStreams(std::uint64_t fence) EXCLUDES(mutex_);

  // transactions.cc, staying.cc
  void SettleArrivalsLocked() REQUIRES(mutex_);
  std::vector<EvictableHandle> EvictableLocked() REQUIRES(mutex_);
  // Addresses of the handles that overlap these allocated blocks.
  std::set<Address> HandlesUnderLocked(const std::vector<Address>& blocks)
      REQUIRES(mutex_);
  Staying StayingLocked(const std::vector<Address>& workspaces)
      REQUIRES(mutex_);

  // queries.cc, share.cc
  Status EnablePeerLocked(DeviceIndex peer) REQUIRES(mutex_);
  // Bytes on the device, added up block by block and handle by handle.
  struct OnDeviceSums {
    Bytes allocated = 0, active = 0, mapped = 0;
  };
  // nullptr if all is well, else what is not.
  const char* CheckHandlesLocked(OnDeviceSums* sums) REQUIRES(mutex_);
  const char* CheckSumsLocked(const OnDeviceSums& sums) REQUIRES(mutex_);
  // Are the descriptors of all devices, with those that the handles of `block`
  // lack, below a quarter of the process's limit on open files?
  Status CheckDescriptorsLocked(const Block& block) REQUIRES(mutex_);

  const Device device_;
  const Options options_;
  const Bytes capacity_;
  HandleTable table_;
  StreamTable streams_;
  std::atomic<std::uint32_t> use_clock_{1};
  Reclaimer* reclaimer_ = nullptr;
  std::string why_no_reclaimer_;

  // What a malloc or free out of a bin touches, together and apart from what
  // only the whole way writes.
  alignas(64) Mutex mutex_{LockRank::kDevice};
  SlowReasons slow_ GUARDED_BY(mutex_);
  Bytes pressure_at_ GUARDED_BY(mutex_) = 0;  // OnPressure above it
  LiveCounters live_ GUARDED_BY(mutex_);
  BlockHeap heap_ GUARDED_BY(mutex_);
  BlockPins pins_ GUARDED_BY(mutex_);
  RecentAccounts accounts_ GUARDED_BY(mutex_);

  SegmentStats stats_ GUARDED_BY(mutex_);
  History history_ GUARDED_BY(mutex_);
  PageStore pages_ GUARDED_BY(mutex_);
  DeviceLimit limit_ GUARDED_BY(mutex_);
  PoolRoutes routes_{device_};  // the device lock but for MayCapture, MayRoute
  PrivatePools private_pools_ GUARDED_BY(mutex_);
  EventPool events_ GUARDED_BY(mutex_);
  DeferredFrees frees_ GUARDED_BY(mutex_);
  BlockTraces traces_ GUARDED_BY(mutex_);
  Captures captures_;  // the device lock but for Some, SomeOwn
  Residency residency_ GUARDED_BY(mutex_);
  PlainSegments plain_;  // the device lock but for `some`
  LiveBlocks blocks_ GUARDED_BY(mutex_);
  FreeHandles free_handles_ GUARDED_BY(mutex_);
  Placement placement_ GUARDED_BY(mutex_);
  Checkpoints checkpoints_ GUARDED_BY(mutex_);

  int releasing_ GUARDED_BY(mutex_) = 0;  // ReleaseCached calls under way
  std::uint64_t releases_ GUARDED_BY(mutex_) = 0;  // and those that are over
  Condition released_;
  int fencing_ GUARDED_BY(mutex_) = 0;  // BeginFencing without its end
  Condition fenced_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_
