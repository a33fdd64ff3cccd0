// SPDX-License-Identifier: Apache-2.0
// Engine: the background half. What operators use teaches the planner what
// comes next; the mover thread has leave what the plan does not need for long,
// brings back what is used next, and evicts when a threshold was crossed. The
// thread that runs an operator never waits here: it may hold the GIL.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "allocator/base/check.h"
#include "tiering/engine/engine.h"

namespace stratalloc {
namespace {

// Adjacent pages up to so much come back as one copy. A batch has one event,
// and what uses its first page waits for its last.
constexpr Bytes kUnit = 16 * kMiB;
// Pressure ends so long after the last request that was not served at once.
constexpr std::int64_t kCalmNs = 60'000'000'000;
// Ticks after a relief that could free nothing of what is cold.
constexpr std::uint32_t kReliefPause = 1 << 13;

// How many of `handles`, from the first on, make one unit.
std::size_t UnitOf(std::span<const HandleRef> handles) {
  std::size_t count = 1;
  Bytes bytes = handles[0].bytes();
  while (count < handles.size()) {
    const HandleRef before = handles[count - 1], next = handles[count];
    if (next.region != before.region || next.index != before.index + 1 ||
        bytes + next.bytes() > kUnit) {
      break;
    }
    bytes += next.bytes();
    ++count;
  }
  return count;
}

// What pages that may leave can have beside all others.
Bytes RoomForPlan(DeviceAllocator& device) {
  Bytes pages = 0;
  for (const EvictableHandle& one : device.Evictable()) {
    if (IsOnDevice(one.state) && !one.handle.stays()) {
      pages += one.handle.bytes();
    }
  }
  const Bytes others = device.Reserved() - std::min(device.Reserved(), pages);
  return device.limit() - std::min(device.limit(), others);
}

bool SomeEvicted(DeviceAllocator& device) {
  const auto all = device.Evictable();
  return std::any_of(all.begin(), all.end(), [](const EvictableHandle& one) {
    return IsAway(one.state);
  });
}

// A probe for memory that was refused once must not have pages leave for good:
// pressure ends when nothing is evicted, and for a while nothing was refused
// and nothing left. The copies go with it, and host memory without any is
// unpinned.
void EndPressureIfCalm(TieredDevice& state, LowerCopies& lower, Bytes left,
                       std::int64_t now, std::int64_t calm_ns) {
  const std::uint64_t seen = state.pressed.load();
  DeviceAllocator& device = *state.allocator;
  if (seen + left != state.calm_events) {
    state.calm_events = seen + left;
    state.calm_since = now;
  }
  if (now - state.calm_since < calm_ns) return;
  if (SomeEvicted(device)) {
    state.calm_since = now;  // looked for again after as long
    return;
  }
  state.EndPressure(seen);
  lower.CollectDropped(device);
  // What fails keeps its copies, which are valid.
  if (lower.GiveUpAll(device) && lower.host() != nullptr) lower.host()->Trim();
}

}  // namespace

bool Engine::MoveAhead(TieredDevice& state) {
  MutexLock arbiter(state.arbiter);
  if (!CheckOn()) return false;
  Leaver& leaver = LeaverOf(state);
  const Bytes before = leaver.freed();
  bool moved = LeaveByPlanLocked(state);
  if (!CheckOn()) return false;  // it may have released the arbiter
  leaver.Step();
  moved |= FetchAhead(state);
  moved |= leaver.freed() != before;
  if (moved || !leaver.idle()) return true;
  if (!options_.under_pressure && !admission_.crowded() &&
      UnderPressure(state.allocator->device().index())) {
    EndPressureIfCalm(state, lower_, leaver.freed(), options_.now_ns(),
                      options_.calm_ns != 0 ? options_.calm_ns : kCalmNs);
  }
  return false;
}

bool Engine::LeaveByPlanLocked(TieredDevice& state) {
  Planner& planner = PlannerOf(state);
  const bool advanced = planner.Advance();
  if (!UnderPressure(state.allocator->device().index())) return advanced;
  if (advanced && planner.WantsPlan()) {
    planner.Plan(RoomForPlan(*state.allocator));
  }
  const std::vector<HandleRef> leaving = planner.Leaving();
  if (leaving.empty()) return advanced;
  // What cannot leave is marked until the plan goes on: it is no work.
  return ChooseLocked(state, leaving, Below::kEither,
                      std::make_shared<LeaveTally>()) > 0 ||
         advanced;
}

bool Engine::FetchAhead(TieredDevice& state) {
  Planner& planner = PlannerOf(state);
  // Expected pages must not take the room of threads that were refused. For
  // others they are what such a thread waits for.
  if (planner.paused() || admission_.crowded()) return false;
  DeviceAllocator& device = *state.allocator;
  const Bytes limit = device.limit();
  const std::vector<HandleRef> missing =
      planner.NextMissing(limit - std::min(limit, device.Reserved()));
  if (missing.empty()) return false;
  lower_.CollectDropped(device);
  const std::uint64_t before = state.counters.restored_handles;
  for (std::size_t at = 0; at < missing.size();) {
    const std::size_t unit = UnitOf(std::span(missing).subspan(at));
    const std::vector<HandleRef> handles(
        missing.begin() + static_cast<std::ptrdiff_t>(at),
        missing.begin() + static_cast<std::ptrdiff_t>(at + unit));
    // No room, or bytes that are lost: the guard will say so to the operator
    // that needs them.
    if (!RestoreBatchLocked(state, handles, Room::kOnlyFree, {},
                            /*planned=*/true)) {
      break;
    }
    at += unit;
  }
  state.counters.restored_before_use +=
      state.counters.restored_handles - before;
  return state.counters.restored_handles != before;
}

void Engine::OnPressure(DeviceIndex device, Bytes allocated, Bytes limit) {
  TieredDevice& state = devices_[static_cast<int>(device)];
  MoverThread* const thread = threads_[static_cast<std::size_t>(device)].get();
  if (thread == nullptr || off() ||
      !state.under_pressure.load(std::memory_order_relaxed)) {
    return;
  }
  if (static_cast<double>(allocated) <=
      options_.gpu_offload_threshold * static_cast<double>(limit)) {
    return;
  }
  // The last relief found nothing, and until then nothing can have turned cold.
  const std::uint32_t now = state.allocator->use_clock().load();
  if (static_cast<std::int32_t>(now - state.relief_from.load()) < 0) return;
  if (!state.relief_asked.exchange(true)) thread->AskRelief();
}

void Engine::RelievePressure(TieredDevice& state) {
  if (off()) return;
  DeviceAllocator& device = *state.allocator;
  // Before looking: a thread that crosses the threshold later asks again.
  state.relief_asked.store(false);
  MutexLock arbiter(state.arbiter);
  lower_.CollectDropped(device);
  const Bytes goal = static_cast<Bytes>(options_.gpu_reload_threshold *
                                        static_cast<double>(device.limit()));
  const Bytes allocated = device.Allocated();
  if (allocated <= goal) return;
  if (EvictVictimsLocked(state, allocated - goal, {}, Evictable::kCold) == 0) {
    // Cold or not, it could not leave: a tier is full, or a capture runs.
    const std::uint32_t now = device.use_clock().load();
    if (static_cast<std::int32_t>(state.relief_from.load() - now) <= 0) {
      state.relief_from = now + kReliefPause;
    }
  }
}

}  // namespace stratalloc
