// SPDX-License-Identifier: Apache-2.0
// Engine: how handles return, at the same address. All physical memory is
// taken first (all or nothing, rule 4); only then do copies start, and from
// there on nothing is evicted or given up, so no buffer moves under a copy.
#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "accounting/category.h"
#include "accounting/scope_table.h"
#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "tiering/engine/engine.h"

namespace stratalloc {
namespace {

// A concurrent malloc may take what an eviction freed; after so many rounds
// the restore is refused rather than fight on.
constexpr int kRoomAttempts = 32;

}  // namespace

std::string Engine::OwnersOf(DeviceAllocator& device, HandleRef handle) {
  std::string owners;
  for (const auto& [charge, bytes] : device.LiveOver(handle)) {
    const std::string name =
        ScopeName(charge.scope) + " (" + CategoryName(charge.category) + ")";
    if (owners.find(name) != std::string::npos) continue;
    owners += (owners.empty() ? "" : ", ") + name;
  }
  return owners.empty() ? "(freed)" : owners;
}

void Engine::SettleCopies(DeviceState& state, StreamId stream) {
  const Device& device = state.allocator->device();
  Status status = device.SynchronizeStream(stream);
  if (!status) status = device.SynchronizeDevice();
  if (status) {
    state.unsettled.Over();
    return;
  }
  const std::string& why = status.error().message;
  state.unsettled.Tell(LogLevel::kError, why,
                       "the device does not synchronise any more: " + why);
}

Status Engine::CopyInLocked(DeviceState& state, HandleRef handle) {
  DeviceAllocator& device = *state.allocator;
  LowerCopy* copy = lower_.Find(handle.address());
  STRATALLOC_CHECK(copy != nullptr, "an away handle has a copy");
  if (!sabotage_.empty() &&
      OwnersOf(device, handle).find(sabotage_) != std::string::npos) {
    sabotage_.clear();
    const std::vector<char> zeros(handle.bytes());
    STRATALLOC_RETURN_IF_ERROR(device.device().CopyToDevice(
        handle.address(), zeros.data(), handle.bytes(), state.copy_in));
    return device.device().SynchronizeStream(state.copy_in);
  }
  const void* from = copy->host.data;
  bool staged = false;
  if (from == nullptr) {
    HostBuffer spare = lower_.TakeSpareHost(handle.bytes());
    void* to = spare.data;
    if (to == nullptr) {
      STRATALLOC_ASSIGN_OR_RETURN(to, lower_.TakeStaging());
      staged = true;
    }
    if (Status read = lower_.ReadFromDisk(*copy, to); !read) {
      if (spare) lower_.PutHost(spare);
      return read;
    }
    if (spare) copy->host = spare;
    from = to;
  }
  const Status copied = device.device().CopyToDevice(
      handle.address(), from, handle.bytes(), state.copy_in);
  if (!copied && !STRATALLOC_PLANTED(kUnheardError)) return copied;
  return staged ? lower_.MarkStaging(device, state.copy_in) : Status{};
}

Result<std::size_t> Engine::BeginRestore(
    DeviceAllocator& device, std::span<const HandleRef> handles,
    std::span<PhysicalMemory* const> memory) {
  Result<std::size_t> begun = device.BeginRestore(handles, memory);
  // Page tables take memory of the card. Nothing that is copied is given up by
  // this, and `memory` is not free.
  if (!begun && begun.error().code == ErrorCode::kOutOfMemory &&
      device.GiveToDriver() > 0) {
    begun = device.BeginRestore(handles, memory);
  }
  return begun;
}

Status Engine::RestoreBatchLocked(DeviceState& state,
                                  const std::vector<HandleRef>& handles,
                                  Room room, const std::vector<Address>& keep,
                                  bool planned) {
  DeviceAllocator& device = *state.allocator;
  for (int attempts = 0;;) {
    Restoring batch{.state = state,
                    .room = room,
                    .keep = keep,
                    .attempts = attempts,
                    .missing = device.AwayOf(handles)};
    std::sort(
        batch.missing.begin(), batch.missing.end(),
        [](HandleRef a, HandleRef b) { return a.address() < b.address(); });
    batch.missing.erase(std::unique(batch.missing.begin(), batch.missing.end()),
                        batch.missing.end());
    if (batch.missing.empty()) return {};
    TakeRoomLocked(batch);
    MoveInLocked(batch);
    for (PhysicalMemory* memory : batch.taken) {
      if (memory != nullptr) device.PutPhysical(memory);
    }
    // Empty: all of this part was freed meanwhile, or could not be mapped.
    if (!batch.arrived.empty()) CommitLocked(batch, planned);
    if (!GoesOnLocked(batch)) return batch.status;
    attempts = batch.attempts;
  }
}

void Engine::TakeRoomLocked(Restoring& batch) {
  DeviceAllocator& device = *batch.state.allocator;
  Bytes need = 0;
  for (HandleRef handle : batch.missing) need += handle.bytes();
  bool followed = false;
  lower_.OpenReserve(true);
  while (batch.taken.size() < batch.missing.size()) {
    const Bytes bytes = batch.missing[batch.taken.size()].bytes();
    Result<PhysicalMemory*> physical = device.TakePhysical(bytes);
    if (physical) {
      batch.taken.push_back(*physical);
      need -= bytes;
      continue;
    }
    const bool may_evict = physical.error().code == ErrorCode::kOutOfMemory &&
                           batch.room == Room::kEvict &&
                           ++batch.attempts <= kRoomAttempts;
    if (may_evict) {
      NotePressure(batch.state);
      // Once: a look asks for the headroom back, which is then taken again.
      if (!std::exchange(followed, true)) device.FollowCard();
    }
    if (!may_evict || (EvictVictimsLocked(batch.state, need, batch.keep,
                                          Whom::kAnybody) == 0 &&
                       !device.RaiseLimit())) {
      batch.status = tl::unexpected(physical.error());
      break;
    }
  }
  lower_.OpenReserve(false);
  // What there is room for comes first: its host copies make room for the
  // next victims when no other tier has any.
  batch.in_parts = !batch.status && !batch.taken.empty() &&
                   batch.status.error().code == ErrorCode::kOutOfMemory;
  if (batch.in_parts) {
    batch.missing.resize(batch.taken.size());
    batch.status = {};
  }
}

void Engine::MoveInLocked(Restoring& batch) {
  for (std::size_t next = 0; batch.status && next < batch.missing.size();) {
    // What is copied meanwhile hides what mapping costs: a run is no longer
    // than all before it.
    const std::size_t most =
        std::min(batch.missing.size() - next, std::max<std::size_t>(next, 1));
    const Result<std::size_t> begun = BeginRestore(
        *batch.state.allocator,
        std::span<const HandleRef>(batch.missing).subspan(next, most),
        std::span(batch.taken).subspan(next, most));
    if (!begun) {
      batch.status = tl::unexpected(begun.error());
      batch.no_page_tables = begun.error().code == ErrorCode::kOutOfMemory;
      return;
    }
    // None: freed meanwhile; its physical handle is put back by the caller.
    const std::size_t end = next + *begun;
    for (std::size_t i = next; i < end; ++i) batch.taken[i] = nullptr;
    MoveRunInLocked(batch, next, end);
    next = std::max(end, next + 1);
  }
}

void Engine::MoveRunInLocked(Restoring& batch, std::size_t first,
                             std::size_t end) {
  DeviceState& state = batch.state;
  DeviceAllocator& device = *state.allocator;
  for (std::size_t at = first; at < end; ++at) {
    const HandleRef handle = batch.missing[at];
    const LowerCopy* copy = lower_.Find(handle.address());
    const bool from_disk = copy != nullptr && !copy->host;
    const Status copied = CopyInLocked(state, handle);
    if (copied) {
      batch.arrived.push_back(handle);
      continue;
    }
    const Error& error = copied.error();
    const std::string owners = OwnersOf(device, handle);
    const bool lost = error.code == ErrorCode::kCorrupt;
    // Nothing may be copying into it when it is unmapped again.
    SettleCopies(state, state.copy_in);
    AbortRestoreLocked(device, handle, lost);
    for (std::size_t i = at + 1; i < end; ++i) {
      AbortRestoreLocked(device, batch.missing[i], /*lost=*/false);
    }
    batch.status =
        Fail(error.code, "cannot restore " + owners + " from " +
                             (lost || from_disk ? "disk: " : "host: ") +
                             error.message);
    return;
  }
}

void Engine::AbortRestoreLocked(DeviceAllocator& device, HandleRef handle,
                                bool lost) {
  // Bytes that came from the disk may have stayed in a host buffer.
  const LowerCopy* copy = lower_.Find(handle.address());
  const bool host = copy != nullptr && copy->host;
  const bool disk = copy != nullptr && copy->disk;
  device.AbortRestore(handle, lost           ? HandleState::kPoisoned
                              : host && disk ? HandleState::kHostAndDisk
                              : host         ? HandleState::kHost
                                             : HandleState::kDisk);
}

void Engine::CommitLocked(Restoring& batch, bool planned) {
  DeviceState& state = batch.state;
  DeviceAllocator& device = *state.allocator;
  EventId event = device.TakeEvent();
  if (event == kNoEvent || !device.device().RecordEvent(event, state.copy_in)) {
    // Without an event the copies are waited for here.
    if (event != kNoEvent) device.PutEvent(event);
    event = kNoEvent;
    SettleCopies(state, state.copy_in);
  }
  for (HandleRef handle : batch.arrived) {
    counters_.restored_bytes += handle.bytes();
    ++counters_.restored_handles;
    if (planned) ++counters_.planned_handles;
  }
  device.CommitRestore(std::move(batch.arrived), event);
  lower_.RefillReserve(device.use_clock().load());
}

bool Engine::GoesOnLocked(Restoring& batch) {
  if (batch.no_page_tables) {
    // More leaves with every attempt: what comes free goes to the driver.
    if (batch.room != Room::kEvict || ++batch.attempts > kRoomAttempts) {
      return false;
    }
    NotePressure(batch.state);
    return EvictVictimsLocked(batch.state,
                              static_cast<Bytes>(batch.attempts) *
                                  batch.missing.front().bytes(),
                              batch.keep, Whom::kAnybody) != 0;
  }
  if (!batch.in_parts || !batch.status) return false;
  batch.attempts = 0;
  return true;
}

}  // namespace stratalloc
