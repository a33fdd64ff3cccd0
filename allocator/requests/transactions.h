// SPDX-License-Identifier: Apache-2.0
// What tiering asks of one device: who may leave, and the steps of residency.h,
// each under one hold of the device lock; memory and events for them.
// DeviceAllocator offers it as its own.
//
// Thread-safety: every method; they take the device lock. Lifetime: the
// device's. Fails: as the driver does, and then nothing has changed.
#ifndef STRATALLOC_ALLOCATOR_REQUESTS_TRANSACTIONS_H_
#define STRATALLOC_ALLOCATOR_REQUESTS_TRANSACTIONS_H_

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "allocator/requests/device_parts.h"
#include "allocator/requests/device_waits.h"

namespace stratalloc {

// One handle that may leave, at one moment.
struct EvictableHandle {
  HandleRef handle;
  HandleState state = HandleState::kResident;
  bool lives = false;  // a live block lies over it
  bool pinned = false;
  bool clean = false;  // as far as the guard knows
  bool has_copy = false;
  std::uint32_t last_use = 0;
  std::array<std::uint32_t, HandleUse::kIntervals> intervals{};
  TierRule rule = {};  // where that is asked for
};

// One handle of an operator, as the guard sees it.
struct GuardedHandle {
  HandleRef handle;
  bool written = false;
};

class Transactions {
 public:
  Transactions(DeviceParts& parts, DeviceWaits& waits)
      : p_(parts), waits_(waits) {}

  // ---- who may leave -------------------------------------------------------

  // Every handle with memory, or bytes away, of what may leave, in address
  // order.
  std::vector<EvictableHandle> Evictable() EXCLUDES(p_.mutex);
  // Those that an eviction may choose from now, what has arrived included.
  // `library`: blocks that libraries keep as workspaces, which stay.
  std::vector<EvictableHandle> Candidates(const std::vector<Address>& library)
      EXCLUDES(p_.mutex);
  // Where the bytes of the block at this address may lie below the device from
  // now on, and the rule it had; nothing for what is no live block that may
  // leave.
  std::optional<TierRule> SetRule(Address address, TierRule rule)
      EXCLUDES(p_.mutex);
  // The same of a handle: of all that lives over it.
  TierRule RuleOf(HandleRef handle) EXCLUDES(p_.mutex);
  // Of the live blocks over the handle.
  std::vector<std::pair<Charge, Bytes>> LiveOver(HandleRef handle)
      EXCLUDES(p_.mutex);
  // Those of them that are away and not lost.
  std::vector<HandleRef> AwayOf(std::span<const HandleRef> handles)
      EXCLUDES(p_.mutex);

  // ---- leaving, and returning -----------------------------------------------

  // Around the events of an eviction that are recorded without the lock: no
  // route is set meanwhile, so no capture begins. False, and nothing is begun,
  // if bytes may not leave now.
  bool BeginFencing() EXCLUDES(p_.mutex);
  void EndFencing() EXCLUDES(p_.mutex);

  // The steps of residency.h. Those of `handles` that may leave.
  std::vector<Claim> ChooseLeaving(std::span<const HandleRef> handles)
      EXCLUDES(p_.mutex);
  // Those of them that nothing has used since, marked.
  std::vector<Departure> MarkLeaving(std::span<const Claim> claims)
      EXCLUDES(p_.mutex);
  // `users`: the streams that were looked at. Handles that may not go, or of
  // which a library's block knows by now, are taken out and stay. If any are
  // left, EndFencing is owed.
  void BeginEvict(std::vector<Departure>* marked, std::uint64_t users,
                  const std::vector<Address>& library, bool may_leave)
      EXCLUDES(p_.mutex);
  void CommitEvict(std::vector<Departure>* departures, const MoveEvents& events)
      EXCLUDES(p_.mutex);
  // Maps `memory` where the first of `handles` were, as many as lie side by
  // side, once the driver is ready. Returns their number: 0 if the first one
  // was freed meanwhile. The other memory stays the caller's, and all of it
  // where this fails.
  Result<std::size_t> BeginRestore(std::span<const HandleRef> handles,
                                   std::span<PhysicalMemory* const> memory)
      EXCLUDES(p_.mutex);
  // `event` is ours from here on.
  void CommitRestore(std::vector<HandleRef> handles, EventId event)
      EXCLUDES(p_.mutex);
  void AbortRestore(HandleRef handle, HandleState to) EXCLUDES(p_.mutex);
  // Makes `stream` wait for those of this device's `handles` that are on their
  // way, unless it captures. `use` is called of each that it may use, under the
  // lock. False if others are away, leave, or are not enqueued yet. REQUIRES:
  // they are pinned.
  Result<bool> Await(StreamId stream, std::span<const GuardedHandle> handles,
                     const std::function<void(const GuardedHandle&)>& use)
      EXCLUDES(p_.mutex);
  // Waits until every outstanding arrival is complete. During a capture too.
  Status DrainArrivals() EXCLUDES(p_.mutex);

  // Physical memory for a restore: recycled, created, or traded from cached
  // blocks (which may wait: drops and retakes the lock).
  Result<PhysicalMemory*> TakePhysical(Bytes bytes) EXCLUDES(p_.mutex);
  // The same of memory that is free or can be created, and waits for nothing.
  Result<PhysicalMemory*> TakeFree(Bytes bytes) EXCLUDES(p_.mutex);
  void PutPhysical(PhysicalMemory* memory) EXCLUDES(p_.mutex);
  // residency.h. The caller drops the copies.
  std::vector<std::pair<HandleRef, std::uint32_t>> TakeDropped()
      EXCLUDES(p_.mutex);
  // See page_changes.h. Without the device lock.
  bool SomePageChanges() const STRATALLOC_TS(no_thread_safety_analysis);
  std::vector<PageChange> TakePageChanges()
      STRATALLOC_TS(no_thread_safety_analysis);
  void NoteHostCopyGone(HandleRef handle, bool written, bool on_disk,
                        const MoveEvents& events) EXCLUDES(p_.mutex);
  bool NoteChunkGone(HandleRef handle, bool in_host) EXCLUDES(p_.mutex);
  // Bytes of [address, address + bytes), which is ours, by tier.
  std::array<Bytes, kTiers> TiersOf(Address address, Bytes bytes)
      EXCLUDES(p_.mutex);
  EventId TakeEvent() EXCLUDES(p_.mutex);  // pooled; kNoEvent if none to be had
  void PutEvent(EventId event) EXCLUDES(p_.mutex);

 private:
  std::vector<EvictableHandle> EvictableLocked() REQUIRES(p_.mutex);

  DeviceParts& p_;
  DeviceWaits& waits_;
};

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_REQUESTS_TRANSACTIONS_H_
