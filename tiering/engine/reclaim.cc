// SPDX-License-Identifier: Apache-2.0
// Engine: how a malloc without memory is served, and what every thread that
// waits for room has in common: its turn, and its pins, which are suspended
// while it waits (admission.h has the order of turns).
#include <string>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/blocks/operator_thread.h"
#include "allocator/state/pin_poll.h"
#include "tiering/engine/engine.h"
#include "tiering/engine/waiting.h"

namespace stratalloc {

Admission::World Engine::LookAround() {
  const OtherThreads others = LookAtOthers();
  const std::uint64_t wanting = OperatorThread::ThisThread().wanting;
  Admission::World world{
      .others = others.any,
      .running = others.inside,
      // Its pins go when whoever waits polls, whatever the threads do.
      .under_way = PinPoll::UnderWay(),
      .progress = others.progress + unpinned_.load(std::memory_order_relaxed)};
  for (const TieredDevice* state : all_) {
    // A capture ends without a word to anybody, and until then nothing leaves
    // its device. Who lacks memory of another need not wait for that.
    const auto device =
        static_cast<unsigned>(state->allocator->device().index());
    const DeviceAllocator::OthersCaptures captures =
        state->allocator->LookAtCaptures();
    world.under_way |= captures.under_way && (wanting >> device & 1) != 0;
    world.progress += captures.times_over;
  }
  for (const TieredDevice* state : movers_) {
    world.freed += static_cast<std::uint64_t>(state->allocator->FreedCount());
    Leaver& leaver =
        *leavers_[static_cast<std::size_t>(state->allocator->device().index())];
    // Asked first: what was pending before has come free, or is still pending.
    const auto device =
        static_cast<unsigned>(state->allocator->device().index());
    world.device_busy |= (wanting >> device & 1) != 0 && !leaver.idle();
    world.progress += state->freed_unsearched.load();
  }
  world.progress += world.freed;
  return world;
}

std::uint64_t Engine::TicketOf(OperatorThread& thread) {
  // Outside operators a malloc's ticket is for that malloc alone.
  if (thread.depth() == 0) return admission_.NewTicket();
  if (thread.ticket == 0) thread.ticket = admission_.NewTicket();
  return thread.ticket;
}

std::uint64_t Engine::PinnedOn(OperatorThread& thread) const {
  std::uint64_t devices = 0;
  for (const TieredDevice* state : movers_) {
    DeviceAllocator& device = *state->allocator;
    bool pinned = false;
    thread.ForEachPin([&](HandleUse& use) {
      pinned |= device.table().RefOf(use).region != nullptr;
    });
    const auto ordinal = static_cast<unsigned>(device.device().index());
    devices |= static_cast<std::uint64_t>(pinned) << ordinal;
  }
  return devices;
}

void Engine::NotePressure(DeviceIndex device) {
  if (off()) return;
  devices_[static_cast<int>(device)].NotePressure();
}

Status Engine::Resume(OperatorThread& thread) {
  for (TieredDevice* state : movers_) {
    MutexLock arbiter(state->arbiter);
    STRATALLOC_RETURN_IF_ERROR(ResumeLocked(*state, thread));
  }
  return {};
}

Status Engine::ResumeLocked(TieredDevice& state, OperatorThread& thread) {
  DeviceAllocator& device = *state.allocator;
  std::vector<HandleRef> away;
  bool poisoned = false, arriving = false;
  std::vector<HandleRef> pinned;
  thread.ForEachPin([&](HandleUse& use) {
    const HandleRef handle = device.table().RefOf(use);
    if (handle.region != nullptr) pinned.push_back(handle);
  });
  FinishLeavingLocked(state, pinned);
  thread.ForEachPin([&](HandleUse& use) {
    const HandleRef handle = device.table().RefOf(use);
    if (handle.region == nullptr) return;
    const HandleState s = handle.state();
    // Somebody else brings it back, and ordered only its own stream.
    arriving |= s == HandleState::kCopyingIn;
    if (!IsAway(s)) return;
    poisoned |= s == HandleState::kPoisoned;
    away.push_back(handle);
  });
  if (arriving) STRATALLOC_RETURN_IF_ERROR(device.DrainArrivals());
  if (away.empty() || STRATALLOC_PLANTED(kNotBack)) return {};
  if (poisoned) {
    return Fail(ErrorCode::kCorrupt,
                "what an operator under way uses was damaged on disk while "
                "the operator waited for memory");
  }
  STRATALLOC_RETURN_IF_ERROR(
      RestoreBatchLocked(state, away, Room::kEvict, {}, /*planned=*/false));
  // The operator goes on in the middle: no event can be put in front of what
  // it launches next on streams of its own.
  if (STRATALLOC_PLANTED(kUndrainedResume)) return {};
  return device.DrainArrivals();
}

bool Engine::Reclaim(DeviceIndex index, MemoryRequest& request) {
  if (off()) return false;
  TieredDevice& state = devices_[static_cast<int>(index)];
  state.NotePressure();
  state.allocator->FollowCard();
  Waiting waiting(*this, std::uint64_t{1} << static_cast<unsigned>(index));
  while (waiting.Await()) {
    auto lack = Admission::Lack::kPins;
    if (Status resumed = waiting.Resume(); !resumed) {
      if (resumed.error().code != ErrorCode::kOutOfMemory) {
        request.Fail(resumed.error());
        return false;
      }
    } else {
      MutexLock arbiter(state.arbiter);
      state.refusal.clear();  // of an earlier request
      lower_.CollectDropped(*state.allocator);
      // The first time too: what another thread freed since the request was
      // refused came before this wait, and is no news to it.
      if (request.Take()) return true;
      while (!request.IsHopeless() &&
             (EvictVictimsLocked(state, request.Missing(), {},
                                 Evictable::kAll) > 0 ||
              state.allocator->RaiseLimit())) {
        if (request.Take()) return true;
      }
      if (request.IsHopeless()) lack = Admission::Lack::kMemory;
    }
    waiting.Refused(lack);
  }
  if (Status resumed = waiting.Stop(); !resumed) {
    request.Fail(resumed.error());
  }
  return false;
}

bool Engine::RestoreSpace(DeviceIndex index, Address address) {
  if (off()) return false;
  TieredDevice& state = devices_[static_cast<int>(index)];
  DeviceAllocator& device = *state.allocator;
  const HandleRef handle = device.table().RefOf(address);
  MutexLock arbiter(state.arbiter);
  FinishLeavingLocked(state, {&handle, 1});
  lower_.CollectDropped(device);
  // Before the first refusal nothing leaves, for this neither. It comes where
  // memory is free all the same: of a program that evicts after each step every
  // small result would take a handle of the host for ever.
  const Room room = UnderPressure(index) ? Room::kEvict : Room::kOnlyFree;
  if (!RestoreBatchLocked(state, {handle}, room, {handle.address()},
                          /*planned=*/false)) {
    return false;
  }
  return device.DrainArrivals().has_value();
}

Bytes Engine::ReclaimCold(DeviceIndex device, Bytes bytes) {
  if (off()) return 0;
  TieredDevice& state = devices_[static_cast<int>(device)];
  const std::uint32_t now = state.allocator->use_clock().load();
  if (static_cast<std::int32_t>(now - state.relief_from.load()) < 0) return 0;
  MutexLock arbiter(state.arbiter);
  lower_.CollectDropped(*state.allocator);
  return EvictVictimsLocked(state, bytes, {}, Evictable::kCold);
}

}  // namespace stratalloc
