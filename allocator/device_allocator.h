// SPDX-License-Identifier: Apache-2.0
// The allocator of one device: blocks out of segments out of handles.
//
// It owns the lock of the device and the parts below it (device_parts.h), takes
// the one and asks the others. What is asked by one kind of caller has a header
// of its own, and is offered here too:
//
//   pool_requests.h    private pools, routes and captures
//   transactions.h     what tiering moves
//   device_reports.h   statistics, snapshots, what stays, invariants
//
// Malloc takes a block that was freed just now or is cached (fast_path.cc), or
// climbs the ladder (SlowMalloc; ladder.h has it in words, rung by rung), whose
// searches are Placement's.
//
// Thread-safety: every method. One lock per device (kDevice); it is dropped
// for every rung that waits. Methods ending in Locked need it held.
// Lifetime: as long as the process; the destructor is for tests.
// Invariants: see DeviceReports::CheckInvariants.
#ifndef STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_
#define STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "allocator/base/mutex.h"
#include "allocator/blocks/block_pins.h"
#include "allocator/cuda/device.h"
#include "allocator/explain/device_reports.h"
#include "allocator/heap/history.h"
#include "allocator/ipc.h"
#include "allocator/requests/device_parts.h"
#include "allocator/requests/device_waits.h"
#include "allocator/requests/pool_requests.h"
#include "allocator/requests/transactions.h"
#include "allocator/values/charge_account.h"
#include "allocator/values/malloc_request.h"
#include "allocator/values/reclaimer.h"

namespace stratalloc {

// How full a device is, at one moment.
struct Occupancy {
  Bytes limit = 0;
  Bytes allocated = 0;
  bool some_away = false;
};

class DeviceAllocator : public PoolRequests,
                        public Transactions,
                        public DeviceReports {
 public:
  using Options = DeviceOptions;
  static Result<std::unique_ptr<DeviceAllocator>> Create(
      Device device, const Options& options);
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;
  ~DeviceAllocator();

  // Plugged in before the first Malloc; may be nullptr.
  void SetAccounts(ChargeAccounts* accounts) EXCLUDES(p_.mutex) {
    MutexLock lock(p_.mutex);
    p_.accounts.Use(accounts);
  }
  // `change` limits scopes of the accounts or takes limits away, while nothing
  // is charged; it returns whether some are limited then.
  void ChangeScopeLimits(const std::function<bool()>& change)
      EXCLUDES(p_.mutex) {
    MutexLock lock(p_.mutex);
    p_.slow.Set(SlowReason::kScopeLimits, change());
  }
  void SetReclaimer(Reclaimer* reclaimer) { reclaimer_ = reclaimer; }
  // From now on no request is served by an eviction. Blocks lie as they did.
  void EndTiering() { p_.tiering_ended.store(true); }
  Result<Explanation> Explain(const MallocRequest& request) {
    return DeviceReports::Explain(request, Asked());
  }
  Result<std::vector<Tried>> Try(const RefusedRequest& refused,
                                 std::span<const Trial> trials) {
    return DeviceReports::Try(refused, trials, Asked());
  }
  // Why there is none, for who is refused memory. Before the device is found.
  void SetWhyNoReclaimer(std::string why) {
    why_no_reclaimer_ = std::move(why);
  }

  const Device& device() const { return p_.device; }
  HandleTable& table() { return p_.table; }
  StreamTable& streams() { return p_.streams; }
  Bytes capacity() const { return p_.capacity; }
  // What moved between its tiers, and who waited for that.
  MoveCounts& moves() { return p_.moves; }
  // The clock of uses: moves on by HandleUse::kTick for every guarded access.
  std::atomic<std::uint32_t>& use_clock() { return p_.use_clock; }

  // ---- blocks -----------------------------------------------------------

  // REQUIRES: request.size > 0. May wait for events, copies and disk, without
  // lock.
  Result<AllocatedBlock> Malloc(const MallocRequest& request)
      EXCLUDES(p_.mutex) {
    if (AllocatedBlock block;
        !request.raw && FastMalloc(request.size, request.stream,
                                   request.lifetime, request.charge, &block)) {
      return block;
    }
    return SlowMalloc(request);
  }
  // The block that begins at `address`, out of free memory that the request's
  // stream and pool have cached there. kNotFound: there is none; no memory is
  // taken and nothing leaves for it. kLimited: as Malloc; the scope must also
  // be allowed the free bytes in front, which are handed out and freed at once.
  Result<AllocatedBlock> MallocAt(const MallocRequest& request, Address address)
      EXCLUDES(p_.mutex);
  // The two halves of them, for callers that count nanoseconds. Fast: a block
  // out of a bin or of free memory that is mapped, or into a bin; false if this
  // call must take the whole way, and nothing anybody can see has changed then.
  bool FastMalloc(Bytes size, StreamId stream, LifetimeClass lifetime,
                  Charge charge, AllocatedBlock* out) EXCLUDES(p_.mutex);
  bool FastFree(Address address, AllocatedBlock* out) EXCLUDES(p_.mutex);
  Result<AllocatedBlock> SlowMalloc(const MallocRequest& request)
      EXCLUDES(p_.mutex);
  Result<AllocatedBlock> SlowFree(Address address) EXCLUDES(p_.mutex);
  // kNotFound if `address` is not the base of an allocated block. Never
  // waits: memory whose events or copies are outstanding is freed later.
  Result<AllocatedBlock> Free(Address address) EXCLUDES(p_.mutex) {
    if (AllocatedBlock freed; FastFree(address, &freed)) return freed;
    return SlowFree(address);
  }
  bool Contains(Address address) const {
    return address >= p_.table.base() && address < p_.table.end();
  }
  // The same for unmanaged segments, which lie anywhere.
  bool ContainsUnmanaged(Address address) EXCLUDES(p_.mutex);
  // May the block at this address leave the device, as far as its class goes?
  // REQUIRES: it lives, if it is this allocator's. No lock.
  bool MayLeave(Address address) {
    if (!Contains(address) || address >= p_.table.evictable_end()) return false;
    return !p_.table.RefOf(address).stays();
  }
  Status RecordStream(Address address, StreamId stream) EXCLUDES(p_.mutex);
  void Relabel(Address address, Bytes bytes, Charge charge, bool keep_category)
      EXCLUDES(p_.mutex);
  void EndFrame(FrameId id) EXCLUDES(p_.mutex);
  // Gives cached memory back to the driver; waits for the streams involved.
  // `counted_in_routes`: that wait counts while an allocation route is open.
  Status EmptyCache(bool counted_in_routes = true) EXCLUDES(p_.mutex);
  // The same but for what waits for events: the driver needs memory of the card
  // for page tables. Returns the bytes; 0 while a stream captures.
  Bytes GiveToDriver() EXCLUDES(p_.mutex) { return waits_.GiveToDriver(); }
  // DeviceWaits has it.
  template <typename Call>
  auto WhenReady(Call&& call) EXCLUDES(p_.mutex) {
    return waits_.WhenReady(std::forward<Call>(call));
  }

  // ---- other devices and processes (share.cc) -----------------------------

  // Access for `peer` to every mapped range, now and later.
  Status EnablePeer(DeviceIndex peer) EXCLUDES(p_.mutex);
  std::vector<DeviceIndex> peers() EXCLUDES(p_.mutex);
  // A handle by which another process maps the allocated block at `address`
  // (ipc.h has its format), and where the block begins in what it maps. The
  // block stays on the device from now on, until it is freed.
  // REQUIRES: its bytes are on the device (pinned by an operator, say).
  // kUnsupported: it would take too many file descriptors beside those that all
  // devices have open (Allocator::Share makes room), or none can be made.
  Result<SharedBlock> Share(Address address) EXCLUDES(p_.mutex);
  // Closes the descriptors of memory that no shared block has any more. They
  // stay open till then, because the same memory should travel under the same
  // number.
  void CloseDescriptors() EXCLUDES(p_.mutex);

  // ---- pins that outlast an operator (block_pins.h) ----------------------

  BlockPin PinBlock(Address address, PinReason reason) EXCLUDES(p_.mutex);
  bool UnpinBlock(const BlockPin& pin, bool unobserved) EXCLUDES(p_.mutex);
  bool IsPinned(const BlockPin& pin) EXCLUDES(p_.mutex);
  bool KeepsPointer(Address address) EXCLUDES(p_.mutex);
  bool DropOldPointers(Bytes bytes, std::size_t count) EXCLUDES(p_.mutex);
  std::vector<PinnedBytes> Pinned() EXCLUDES(p_.mutex);

  // ---- how much (limits.cc) -------------------------------------------------

  double fraction() EXCLUDES(p_.mutex);
  void SetFraction(double fraction) EXCLUDES(p_.mutex);
  // What reserved bytes may reach: capacity or gpu_limit, times the fraction,
  // and once the card has refused memory what it has for us (card_room.h).
  Bytes limit() EXCLUDES(p_.mutex);
  // The same with the headroom: no larger request can be served.
  Bytes most() EXCLUDES(p_.mutex);
  // Memory is short: looks at what the card has for us, if that is due.
  void FollowCard() EXCLUDES(p_.mutex);
  // Somebody would be refused for the limit: takes the headroom, and looks
  // whether others gave memory back since the last look. True if the limit is
  // higher now.
  bool RaiseLimit() EXCLUDES(p_.mutex);
  // Not more than `most()`, after a look at the card if it is less.
  bool CouldHold(Bytes bytes) EXCLUDES(p_.mutex);
  // Would so many bytes not fit if everything that may leave had left? Never
  // true where they might: what is free, waits for events or is evictable
  // counts as gone.
  bool CannotFit(Bytes bytes) EXCLUDES(p_.mutex);
  // Allocated bytes that are on the device now.
  Bytes Allocated() EXCLUDES(p_.mutex);
  // Bytes of the device's memory that are in use or cached.
  Bytes Reserved() EXCLUDES(p_.mutex);
  Occupancy Occupied() EXCLUDES(p_.mutex);
  // Blocks freed so far: whoever waits for room sees by it that others get on.
  std::int64_t FreedCount() EXCLUDES(p_.mutex);
  // What OnPressure is called above may have changed: the next malloc asks.
  void LookAtPressure() EXCLUDES(p_.mutex);

  // ---- history (history.h) ------------------------------------------------

  void ConfigureHistory(const History::Options& options) EXCLUDES(p_.mutex);
  // History::SetTracker was called, or EventRecorder was started or stopped.
  void NoteTracker() EXCLUDES(p_.mutex);
  std::vector<TraceEvent> Traces() EXCLUDES(p_.mutex);
  // Of this thread, whose malloc would have been charged so. Returns the
  // rounded size, which native reports.
  Bytes RecordOutOfMemory(StreamId stream, Bytes bytes, Charge charge,
                          Bytes free_bytes) EXCLUDES(p_.mutex);
  void RecordSnapshot(PoolId pool, Bytes active) EXCLUDES(p_.mutex);
  // Where the allocated block that begins at `address` was asked for; nullptr
  // if there is none, or if nothing was recorded of it.
  HistoryContext ContextOf(Address address) EXCLUDES(p_.mutex);
  // An event with `label`, of the allocated block that begins at `address`.
  // False if there is none.
  bool Annotate(Address address, const std::string& label) EXCLUDES(p_.mutex);
  // For the event rings: what is allocated and reserved at this moment.
  void RecordTotals() EXCLUDES(p_.mutex);

  // A block that is handed out keeps the site of its thread (thread_site.h)
  // until it is freed, whatever moves it or pays for it. Off at first; blocks
  // from before it was switched on have none, and Sites() tells of none while
  // it is off.
  void RecordSites(bool on) EXCLUDES(p_.mutex);

 private:
  friend class DeviceAllocatorTestPeer;
  DeviceAllocator(Device device, const Options& options, Bytes capacity,
                  HandleTable table);

  // device_ladder.cc
  class ForLadder;
  // SlowMalloc as far as the driver is ready: kNotReady.
  Result<AllocatedBlock> ClimbLadder(const MallocRequest& request)
      EXCLUDES(p_.mutex);

  // malloc.cc
  // How far a growth by `size` would go beyond garbage_collection_threshold; 0
  // without a fraction.
  Bytes AboveCollectionThreshold(Bytes size) EXCLUDES(p_.mutex);
  // `hopeless`: eviction could not have been enough. kDevice if the device
  // answers nobody.
  Error OutOfMemory(Bytes requested, bool hopeless = false) EXCLUDES(p_.mutex);
  void MaybeSignalPressureLocked() REQUIRES(p_.mutex);

  // fast_path.cc
  // FastMalloc when no bin has a block of the size.
  bool FastFitLocked(Pool& pool, Bytes size, Bytes requested, Charge charge,
                     AllocatedBlock* out) REQUIRES(p_.mutex);
  AllocatedBlock HandedOutLocked(const Block& block, Bytes size, Charge charge)
      REQUIRES(p_.mutex);
  // What a malloc or a free answers about a block, now that it is done.
  AllocatedBlock AnswerLocked(Address address, Bytes size, Charge charge) const
      REQUIRES(p_.mutex) {
    return {address, size, p_.live.allocated_bytes(),
            static_cast<Bytes>(p_.stats.reserved_bytes.stats[0].current),
            charge};
  }

  // limits.cc, share.cc
  bool CannotFitLocked(Bytes size) REQUIRES(p_.mutex);
  bool CouldHoldLocked(Bytes bytes) REQUIRES(p_.mutex);
  Status EnablePeerLocked(DeviceIndex peer) REQUIRES(p_.mutex);
  // Are the descriptors of all devices, with those that the handles of `block`
  // lack, below a quarter of the process's limit on open files?
  Status CheckDescriptorsLocked(const Block& block) REQUIRES(p_.mutex);

  DeviceParts p_;
  DeviceWaits waits_;
  // The reclaimer, if a request may be served by an eviction.
  Reclaimer* Asked() const {
    return p_.options.tiering && !p_.tiering_ended.load() ? reclaimer_
                                                          : nullptr;
  }

  Reclaimer* reclaimer_ = nullptr;
  std::string why_no_reclaimer_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_DEVICE_ALLOCATOR_H_
