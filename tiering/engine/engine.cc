// SPDX-License-Identifier: Apache-2.0
// Engine: set-up, the Reclaimer's face, evict and restore by name, counters.
#include "tiering/engine/engine.h"

#include <algorithm>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/state/pin_poll.h"
#include "tiering/engine/overlaps.h"

namespace stratalloc {

Engine::Engine(Options options)
    : options_(std::move(options)),
      admission_([this] {
        Admission::Options waiting{.look = [this] { return LookAround(); },
                                   .poll =
                                       [] {
                                         if (PinPoll::UnderWay()) {
                                           PinPoll::Run();
                                         }
                                       },
                                   .now_ns = options_.now_ns};
        if (options_.quiet_ns != 0) waiting.quiet_ns = options_.quiet_ns;
        if (options_.running_ns != 0) waiting.running_ns = options_.running_ns;
        if (options_.busy_ns != 0) waiting.busy_ns = options_.busy_ns;
        return waiting;
      }()),
      lower_(options_.lower) {}

Engine::~Engine() {
  for (auto& thread : threads_) thread.reset();
  for (TieredDevice* state : movers_) {
    MutexLock arbiter(state->arbiter);
    state->allocator->SetReclaimer(nullptr);
    LeaverOf(*state).Stop();
    // Copies in flight read the buffers that go now.
    state->Settle(state->copy_in);
    state->allocator->DrainArrivals();
  }
  lower_.Close();
  for (TieredDevice* state : all_) state->Close();
}

TieredDevice* Engine::StateOf(const DeviceAllocator& device) {
  return &devices_[static_cast<int>(device.device().index())];
}

Status Engine::AddDevice(DeviceAllocator& device, Bytes largest_handle) {
  MutexLock joining(joining_);
  TieredDevice& state = *StateOf(device);
  const auto index = static_cast<std::size_t>(device.device().index());
  if (switched_off()) {
    state.allocator = &device;
    device.EndTiering();
    all_.Add(&state);
    return {};
  }
  state.under_pressure = options_.under_pressure;
  Status prepared = state.Prepare(device);
  if (prepared) {
    const HandleRegion& large = device.table().region(true, PoolKind::kLarge);
    prepared = lower_.Open(device, state.arbiter,
                           std::max(large.handle_bytes, largest_handle));
  }
  host_.store(lower_.host(), std::memory_order_release);
  if (!prepared) state.Refuse(prepared.error());
  all_.Add(&state);
  if (!prepared) return prepared;
  leavers_[index] =
      std::make_unique<Leaver>(Eviction::Parts{state, lower_, all_});
  planners_[index] = std::make_unique<Planner>(device);
  if (options_.background) {
    threads_[index] = std::make_unique<MoverThread>(
        [this, &state] { RelievePressure(state); },
        [this, &state] { return MoveAhead(state); });
  }
  device.SetReclaimer(this);
  movers_.Add(&state);
  return {};
}

Result<Bytes> Engine::MoveAll(
    const std::function<Result<Bytes>(DeviceAllocator&)>& verb) {
  if (movers_.empty() && !all_.empty()) {
    return tl::unexpected((*all_.begin())->CheckTakesPart().error());
  }
  Result<Bytes> moved = Bytes{0};
  for (TieredDevice* state : movers_) {
    Result<Bytes> here = verb(*state->allocator);
    if (moved && here) {
      *moved += *here;
    } else if (moved) {
      moved = std::move(here);
    }
  }
  return moved;
}

Result<Bytes> Engine::EvictAll(Below below) {
  return MoveAll([this, below](DeviceAllocator& device) {
    return Evict(device, {}, below);
  });
}
Result<Bytes> Engine::RestoreAll() {
  return MoveAll(
      [this](DeviceAllocator& device) { return Restore(device, {}); });
}

const char* Engine::LastRefusal(DeviceIndex device) {
  static thread_local std::string copy;
  if (off()) return "";
  TieredDevice& state = devices_[static_cast<int>(device)];
  MutexLock arbiter(state.arbiter);
  copy = state.refusal;
  return copy.c_str();
}

Result<Bytes> Engine::Evict(DeviceAllocator& device,
                            std::span<const AddressRange> ranges, Below below) {
  STRATALLOC_RETURN_IF_ERROR(CheckOn());
  TieredDevice& state = *StateOf(device);
  STRATALLOC_RETURN_IF_ERROR(state.CheckTakesPart());
  if (below == Below::kDisk && !lower_.disk_allowed()) {
    return Fail(ErrorCode::kUnsupported,
                "nothing goes to disk: no disk is used; set a disk_budget "
                "before CUDA is initialised");
  }
  if (below == Below::kHost && lower_.options().host_budget == 0) {
    return Fail(ErrorCode::kUnsupported,
                "nothing goes to host memory: the host_budget is 0; set one "
                "before CUDA is initialised");
  }
  PinPoll::Run();
  MutexLock arbiter(state.arbiter);
  PlannerOf(state).Pause();
  FinishLeavingLocked(state);
  lower_.CollectDropped(device);
  STRATALLOC_RETURN_IF_ERROR(device.DrainArrivals());
  std::vector<HandleRef> handles;
  for (const EvictableHandle& one : device.Evictable()) {
    if (one.state == HandleState::kResident && one.lives &&
        Overlaps(one.handle, ranges)) {
      handles.push_back(one.handle);
    }
  }
  Bytes moved = 0;
  state.refusal.clear();
  // 32 handles a batch: the host copies of one are being made while those of
  // the one before may already be demoted to disk.
  constexpr std::size_t kBatch = 32;
  for (std::size_t i = 0; i < handles.size(); i += kBatch) {
    const std::size_t end = std::min(handles.size(), i + kBatch);
    moved +=
        EvictTheseLocked(state,
                         {handles.begin() + static_cast<std::ptrdiff_t>(i),
                          handles.begin() + static_cast<std::ptrdiff_t>(end)},
                         below);
  }
  if (below == Below::kDisk) moved += LowerLocked(state, ranges, handles);
  if (state.refusal.empty()) {
    state.refused.Over();
  } else if (!state.stopped.lasts()) {
    state.refused.Tell(
        LogLevel::kWarning, state.refusal,
        "evict: " + FormatBytes(moved) +
            " left the device, not all: " + device.WhyNoMore(state.refusal));
  }
  return moved;
}

Result<Bytes> Engine::Restore(DeviceAllocator& device,
                              std::span<const AddressRange> ranges) {
  if (switched_off()) return Bytes{0};  // everything is on the device
  STRATALLOC_RETURN_IF_ERROR(CheckOn());
  TieredDevice& state = *StateOf(device);
  STRATALLOC_RETURN_IF_ERROR(state.CheckTakesPart());
  MutexLock arbiter(state.arbiter);
  FinishLeavingLocked(state);
  lower_.CollectDropped(device);
  std::vector<HandleRef> handles;
  std::vector<Address> keep;
  for (const EvictableHandle& one : device.Evictable()) {
    if (!Overlaps(one.handle, ranges)) continue;
    keep.push_back(one.handle.address());
    if (IsAway(one.state)) handles.push_back(one.handle);
  }
  const Bytes before = state.counters.restored_bytes;
  state.refusal.clear();
  // By name: others make room. Everything: as much as there is room for.
  const Room room = ranges.empty() ? Room::kOnlyFree : Room::kEvict;
  Status status = RestoreBatchLocked(state, handles, room, keep, false);
  const bool no_room =
      !status && status.error().code == ErrorCode::kOutOfMemory;
  if (no_room && !ranges.empty()) {
    const Bytes named =
        keep.size() * device.table().RegionOf(keep[0])->handle_bytes;
    return Fail(ErrorCode::kOutOfMemory,
                "CUDA out of memory. restore: no room on GPU " +
                    std::to_string(static_cast<int>(device.device().index())) +
                    " for all of what was named, about " + FormatBytes(named) +
                    " in whole handles; " +
                    FormatBytes(state.counters.restored_bytes - before) +
                    " came back now and the rest stays where it is: " +
                    status.error().message + "; " +
                    device.WhyNoMore(state.refusal) +
                    ". Name less (a module's gradients count with it), or "
                    "let operators bring back what they need");
  }
  if (!status && !no_room) return tl::unexpected(status.error());
  for (HandleRef handle : handles) {
    if (ranges.empty()) break;
    if (handle.state() != HandleState::kPoisoned) continue;
    return Fail(ErrorCode::kCorrupt,
                "the bytes of " + OwnersOf(device, handle) +
                    " on disk were damaged and are lost; free it: assign "
                    "new tensors, as load_state_dict(assign=True) does");
  }
  STRATALLOC_RETURN_IF_ERROR(device.DrainArrivals());
  return state.counters.restored_bytes - before;
}

void Engine::CollectDropped() {
  if (off()) return;
  for (TieredDevice* state : movers_) {
    MutexLock arbiter(state->arbiter);
    lower_.CollectDropped(*state->allocator);
  }
}

Bytes Engine::RoomBelow() {
  CollectDropped();  // room of blocks that were freed
  if (off()) return 0;
  return lower_.Room();
}

Bytes Engine::RoomOn(TierId tier) {
  if (off()) return 0;
  return lower_.Room(/*host=*/tier == TierId::kHost,
                     /*disk=*/tier == TierId::kDisk);
}

void Engine::OnEmptyCache(DeviceIndex device) {
  if (off()) return;
  TieredDevice& state = devices_[static_cast<int>(device)];
  MutexLock arbiter(state.arbiter);
  lower_.CollectDropped(*state.allocator);
  // The program gives memory back to others: pinned slabs without copies, too.
  if (lower_.host() != nullptr) lower_.host()->Trim();
}

EngineCounters Engine::Counters() const {
  // A report may wait for a step; it never sees half of one.
  EngineCounters counters;
  for (const TieredDevice* state : movers_) {
    MutexLock arbiter(state->arbiter);
    counters.Add(state->counters);
  }
  counters.to_disk_bytes = lower_.written_bytes();
  counters.from_disk_bytes = lower_.read_bytes();
  counters.stored_bytes = lower_.stored_bytes();
  for (const TieredDevice* state : all_) {
    counters.stalls += state->allocator->moves().stalls();
    counters.stall_ns += state->allocator->moves().stall_ns();
  }
  return counters;
}

Bytes Engine::HostUsed() const {
  const HostTier* const host = host_.load(std::memory_order_acquire);
  return host != nullptr ? host->used() : 0;
}
Bytes Engine::HostPeak() const {
  const HostTier* const host = host_.load(std::memory_order_acquire);
  return host != nullptr ? host->peak() : 0;
}
Bytes Engine::HostReserved() const {
  const HostTier* const host = host_.load(std::memory_order_acquire);
  return host != nullptr ? host->reserved() : 0;
}
Bytes Engine::HostReservedPeak() const {
  const HostTier* const host = host_.load(std::memory_order_acquire);
  return host != nullptr ? host->reserved_peak() : 0;
}
Bytes Engine::DiskUsed() const {
  DiskTier* disk = lower_.disk();
  return disk != nullptr ? disk->used() : 0;
}
std::string Engine::DiskMode() const {
  DiskTier* disk = lower_.disk();
  return disk != nullptr ? disk->Mode() : "not opened";
}

Status Engine::CheckInvariants(DeviceAllocator& device) {
  TieredDevice& state = *StateOf(device);
  MutexLock arbiter(state.arbiter);
  if (state.why_not.empty()) FinishLeavingLocked(state);
  lower_.CollectDropped(device);
  if (lower_.is_open()) {
    STRATALLOC_RETURN_IF_ERROR(lower_.host()->CheckInvariants());
  }
  std::string broken;
  for (const EvictableHandle& one : device.Evictable()) {
    const HandleState s = one.state;
    const LowerCopy* copy = lower_.Find(device, one.handle.address());
    const bool host = copy != nullptr && copy->host;
    const bool disk = copy != nullptr && copy->disk;
    const bool agrees = s == HandleState::kHost          ? host && !disk
                        : s == HandleState::kHostAndDisk ? host && disk
                        : s == HandleState::kDisk        ? disk && !host
                                                         : true;
    const TierRule rule = device.RuleOf(one.handle);
    if ((host && !rule.host) || (disk && !rule.disk)) {
      broken = "a copy lies where a rule keeps it off";
    }
    if (!agrees) {
      broken = std::string("a handle that is ") + HandleStateName(s) +
               " has other copies";
    }
    if (one.has_copy && !host && !disk) broken = "has_copy without a copy";
  }
  if (!broken.empty()) {
    return Fail(ErrorCode::kInvalidArgument, "invariant broken: " + broken);
  }
  return {};
}

void Engine::StopBackground() {
  for (auto& thread : threads_) {
    if (thread != nullptr) thread->Stop();
  }
}

void Engine::AbandonAfterFork() {
  // No lock: its holder may be a thread that does not exist here.
  off_.store(Off::kInFork, std::memory_order_relaxed);
  if (lower_.disk() != nullptr) lower_.disk()->AbandonAfterFork();
  // The workers stayed in the parent.
  for (auto& thread : threads_) (void)thread.release();
}

}  // namespace stratalloc
