// SPDX-License-Identifier: Apache-2.0
// Engine: how handles leave the device. The order of steps is design rule 1:
// mark, fence, check or copy, wait for the copy, unmap.
//
// Nobody waits for operators of other threads here. What an operator uses it
// pins, its results included, until it returns; what it noted of a handle (its
// stream) is there before the pin goes; so a handle without a pin has nothing
// about to be launched on it, and its fence covers what was. Waiting until
// every thread had left its operator, as the first version did, stood still
// while one of them waited for the device in `.item()`, or for us.
#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/workspaces.h"
#include "tiering/engine/engine.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

constexpr std::size_t kMaxBatch = DeviceChecksum::kMost;
// Ticks until a relief that found nothing cold looks again, if nothing it saw
// will be cold sooner: milliseconds, where a look takes some 20 us.
constexpr std::uint32_t kLookAgainAfter = 1 << 12;
constexpr char kStays[] = "cannot evict, the bytes stay on the device: ";
constexpr char kCaptured[] = "nothing leaves while a CUDA graph is captured";
constexpr char kTablesBusy[] =
    "torch's tables of cuBLAS workspaces are being changed, so nobody can tell "
    "what may leave";

// What an eviction may choose from: candidate i is handles[i].
struct Victims {
  std::vector<HandleRef> handles;
  std::vector<Candidate> candidates;
  // Ticks until something that is not cold yet will be.
  std::uint32_t next_cold = kLookAgainAfter;
};

Victims LookAtCandidates(DeviceAllocator& device,
                         const std::vector<Address>& workspaces,
                         const std::set<Address>& not_these, bool only_cold,
                         std::uint32_t now) {
  Victims choice;
  for (const EvictableHandle& one : device.Candidates(workspaces)) {
    if (not_these.contains(one.handle.address())) continue;
    const Candidate candidate{.id = choice.handles.size(),
                              .bytes = one.handle.bytes(),
                              .last_use = one.last_use,
                              .intervals = one.intervals,
                              .clean = one.clean};
    if (only_cold && !IsCold(candidate, now)) {
      if (const std::uint32_t after = ColdAfter(candidate); after != 0) {
        choice.next_cold =
            std::min(choice.next_cold, candidate.last_use + after + 1 - now);
      }
      continue;
    }
    choice.handles.push_back(one.handle);
    choice.candidates.push_back(candidate);
  }
  return choice;
}

}  // namespace

Bytes Engine::EvictVictimsLocked(DeviceState& state, Bytes target,
                                 const std::vector<Address>& keep, Whom whom) {
  DeviceAllocator& device = *state.allocator;
  std::set<Address> not_these(keep.begin(), keep.end());
  const auto workspaces = LibraryWorkspaces::Addresses();
  if (!workspaces) {
    state.refusal = kTablesBusy;
    return 0;
  }
  PinPoll::Run();
  std::string why;
  Bytes freed = 0;
  bool drained = false;
  state.refusal.clear();
  while (freed < target) {
    const std::uint32_t now = device.use_clock().load();
    Victims choice = LookAtCandidates(device, *workspaces, not_these,
                                      whom == Whom::kCold, now);
    const std::vector<Candidate> chosen =
        ChooseVictims(std::move(choice.candidates), now, target - freed);
    if (whom == Whom::kCold && chosen.empty()) {
      // Asked again when something may have turned cold.
      state.relief_from = now + choice.next_cold;
      break;
    }
    if (chosen.empty() && !drained) {
      // What has just arrived can leave again once its copy is complete.
      drained = true;
      if (device.DrainArrivals()) continue;
    }
    // Addresses that data_ptr() gave away stay as long as nobody lacks room.
    if (chosen.empty() && whom == Whom::kAnybody &&
        device.DropOldPointers(0, 0)) {
      continue;
    }
    if (chosen.empty()) {
      state.refusal = why;
      break;
    }
    std::vector<HandleRef> victims;
    for (const Candidate& candidate : chosen) {
      if (victims.size() == kMaxBatch) break;
      victims.push_back(choice.handles[candidate.id]);
    }
    // A batch that came to nothing because of pins is no reason to stop; one
    // that a tier refused is.
    state.refusal.clear();
    const Bytes batch = EvictBatchLocked(state, victims);
    if (!state.refusal.empty()) why = state.refusal;
    freed += batch;
    // Whoever could not leave now will not in the next round either.
    for (HandleRef victim : victims) not_these.insert(victim.address());
    if (batch == 0 && !state.refusal.empty()) break;
  }
  return freed;
}

// Keeps captures off the other devices while these are waited for.
class Engine::FencingElsewhere {
 public:
  FencingElsewhere() = default;
  ~FencingElsewhere() {
    for (DeviceAllocator* device : held_) device->EndFencing();
  }
  FencingElsewhere(const FencingElsewhere&) = delete;
  FencingElsewhere& operator=(const FencingElsewhere&) = delete;

  // False if something captures there.
  bool Hold(DeviceAllocator& device) {
    if (!device.BeginFencing()) return false;
    held_.push_back(&device);
    return true;
  }

 private:
  std::vector<DeviceAllocator*> held_;
};

bool Engine::HoldOthers(DeviceAllocator& device, FencingElsewhere& elsewhere) {
  for (const DeviceState* state : all_) {
    DeviceAllocator& other = *state->allocator;
    if (&other == &device) continue;
    if (other.SomeCapture(~std::uint64_t{0}) || !other.AwaitRoutes() ||
        !elsewhere.Hold(other)) {
      return false;
    }
  }
  return true;
}

Status Engine::FenceLocked(DeviceState& state, std::uint64_t streams,
                           std::uint64_t may_wait_for) {
  DeviceAllocator& device = *state.allocator;
  if (STRATALLOC_PLANTED(kMissingEvent)) return {};
  const StreamId copy_out = STRATALLOC_PLANTED(kOtherDevice)
                                ? (*movers_.begin())->copy_out
                                : state.copy_out;
  streams = device.streams().MayAsk(streams);
  // A stream turned external since it was asked about captures.
  if ((streams & ~may_wait_for) != 0) {
    return Fail(ErrorCode::kUnsupported, kCaptured);
  }
  // More streams than bits, or those of a graph: rule 8, this thread may wait.
  if (streams >> StreamTable::kOverflowBit & 1) {
    STRATALLOC_RETURN_IF_ERROR(device.device().SynchronizeDevice());
  }
  if (streams >> StreamTable::kGraphBit & 1) {
    for (const DeviceState* one : all_) {
      STRATALLOC_RETURN_IF_ERROR(one->allocator->device().SynchronizeDevice());
    }
  }
  if (streams >> StreamTable::kOverflowBit != 0) return {};
  for (int bit = 0; bit < StreamTable::kOverflowBit; ++bit) {
    if ((streams >> bit & 1) == 0) continue;
    const StreamId stream = device.streams().StreamOf(bit);
    if (IsElsewhere(stream)) {  // rare, and no event of this device: wait
      STRATALLOC_RETURN_IF_ERROR(device.device().SynchronizeStream(stream));
      continue;
    }
    const EventId event = device.TakeEvent();
    if (event == kNoEvent) return device.device().SynchronizeDevice();
    Status status = device.device().RecordEvent(event, stream);
    // A capture that torch did not begin may have begun since it was asked for:
    // then this event is the capture's, and whoever waits for it spoils that.
    if (stream != kDefaultStream && device.device().IsCapturing(stream)) {
      device.PutEvent(event);
      return Fail(ErrorCode::kUnsupported, kCaptured);
    }
    if (status) {
      status = device.device().StreamWaitEvent(copy_out, event);
    }
    device.PutEvent(event);
    // A stream that was destroyed cannot be asked; the whole device can.
    if (!status) return device.device().SynchronizeDevice();
  }
  return {};
}

Status Engine::SumLocked(DeviceState& state,
                         std::span<Departure* const> handles) {
  std::vector<DeviceChecksum::Range> ranges;
  for (const Departure* leaving : handles) {
    ranges.push_back({leaving->handle.address(), leaving->handle.bytes()});
  }
  STRATALLOC_RETURN_IF_ERROR(
      state.checksum->Launch(ranges, state.checksum_words, state.copy_out));
  return state.allocator->device().SynchronizeStream(state.copy_out);
}

Status Engine::ChecksumLocked(DeviceState& state,
                              std::vector<Departure>& batch) {
  std::vector<Departure*> all;
  for (Departure& leaving : batch) all.push_back(&leaving);
  STRATALLOC_RETURN_IF_ERROR(SumLocked(state, all));
  for (std::size_t i = 0; i < batch.size(); ++i) {
    batch[i].checksum = state.checksum_words[i];
    if (!batch[i].clean) continue;
    const LowerCopy* copy = lower_.Find(batch[i].handle.address());
    if (copy->checksum != batch[i].checksum) {
      // Written past the dispatcher: the guard saw no write, the bytes did
      // change. The copy below is stale.
      batch[i].clean = false;
      ++counters_.dirty_by_checksum;
    }
  }
  return {};
}

Error Engine::Changed(DeviceAllocator& device, HandleRef handle) {
  return {ErrorCode::kCorrupt,
          "something wrote to " + OwnersOf(device, handle) +
              " while it was copied out, past PyTorch's operators; pin() what "
              "other code writes"};
}

void Engine::RefuseLocked(DeviceState& state, Departure& leaving,
                          const Error& why) {
  leaving.stays = true;
  // A disk that fails and a foreign writer get a line, once for each reason;
  // the program goes on while memory lasts. A spent budget is told by whoever
  // runs out.
  if (why.code == ErrorCode::kIo || why.code == ErrorCode::kCorrupt) {
    state.refused.Tell(LogLevel::kWarning, why.message, kStays + why.message);
  }
  state.refusal = why.message;
}

Status Engine::CopyToDiskLocked(DeviceState& state, Departure& leaving,
                                LowerCopy& copy) {
  DeviceAllocator& device = *state.allocator;
  Result<void*> staging = lower_.TakeStaging();
  if (!staging) {
    RefuseLocked(state, leaving, staging.error());
    return {};
  }
  STRATALLOC_RETURN_IF_ERROR(
      device.device().CopyToHost(*staging, leaving.handle.address(),
                                 leaving.handle.bytes(), state.copy_out));
  leaving.to = HandleState::kDisk;
  Departure* const alone[] = {&leaving};
  STRATALLOC_RETURN_IF_ERROR(SumLocked(state, alone));
  if (state.checksum_words[0] != leaving.checksum) {
    RefuseLocked(state, leaving, Changed(device, leaving.handle));
  } else if (Status written = lower_.WriteToDisk(copy, *staging); !written) {
    RefuseLocked(state, leaving, written.error());
  }
  return {};
}

Status Engine::CopyOutLocked(DeviceState& state,
                             std::vector<Departure>& batch) {
  DeviceAllocator& device = *state.allocator;
  const std::uint32_t now = device.use_clock().load();
  std::vector<Departure*> copied;
  for (Departure& leaving : batch) {
    if (leaving.clean) continue;
    LowerCopy& copy = lower_.At(device, leaving.handle);
    lower_.Drop(copy);
    copy.checksum = leaving.checksum;
    copy.generation = leaving.generation;
    const Bytes bytes = leaving.handle.bytes();
    if (Result<HostBuffer> buffer = lower_.TakeHost(bytes, now)) {
      copy.host = *buffer;
      leaving.to = HandleState::kHost;
      STRATALLOC_RETURN_IF_ERROR(device.device().CopyToHost(
          copy.host.data, leaving.handle.address(), bytes, state.copy_out));
      copied.push_back(&leaving);
      continue;
    } else if (!lower_.disk_allowed() ||
               buffer.error().code == ErrorCode::kIo) {
      RefuseLocked(state, leaving, buffer.error());
      continue;
    }
    // No buffer to be had: through a staging buffer straight to the disk.
    STRATALLOC_RETURN_IF_ERROR(CopyToDiskLocked(state, leaving, copy));
  }
  if (copied.empty()) return {};
  // Summed again behind the copies: what did not change meanwhile is what left.
  STRATALLOC_RETURN_IF_ERROR(SumLocked(state, copied));
  for (std::size_t i = 0; i < copied.size(); ++i) {
    if (state.checksum_words[i] != copied[i]->checksum) {
      RefuseLocked(state, *copied[i], Changed(device, copied[i]->handle));
    }
  }
  return {};
}

Bytes Engine::EvictBatchLocked(DeviceState& state,
                               const std::vector<HandleRef>& victims) {
  DeviceAllocator& device = *state.allocator;
  if (!device.AwaitRoutes()) {
    state.refusal = kCaptured;
    return 0;
  }
  std::vector<Departure> batch = device.MarkLeaving(victims);
  if (batch.empty()) return 0;
  std::uint64_t users = 0;
  for (const Departure& leaving : batch) {
    users |= leaving.handle.use().fence.load();
  }
  // Now that they are marked: whatever entered a table before is in it.
  const auto workspaces = LibraryWorkspaces::Addresses();
  FencingElsewhere elsewhere;  // until this eviction is over
  const std::uint64_t may_ask = device.streams().MayAsk(users);
  const bool spoils = device.SomeCapture(may_ask) ||
                      ((may_ask >> StreamTable::kGraphBit & 1) != 0 &&
                       !HoldOthers(device, elsewhere));
  device.BeginEvict(&batch, users, workspaces.value_or(std::vector<Address>()),
                    /*may_leave=*/workspaces && !spoils);
  if (!workspaces) state.refusal = kTablesBusy;
  if (batch.empty()) return 0;
  learning_.store(true, std::memory_order_relaxed);
  if (!MoveOutLocked(state, batch, may_ask)) {
    for (Departure& leaving : batch) leaving.stays = true;
  }
  return EndEvictLocked(state, batch);
}

bool Engine::MoveOutLocked(DeviceState& state, std::vector<Departure>& batch,
                           std::uint64_t may_ask) {
  std::uint64_t streams = 0;
  for (const Departure& leaving : batch) streams |= leaving.fence;
  Status status = FenceLocked(state, streams, may_ask);
  state.allocator->EndFencing();
  if (status) status = ChecksumLocked(state, batch);
  if (status) status = CopyOutLocked(state, batch);
  if (status) {
    state.stopped.Over();
    state.unsettled.Over();
    return true;
  }
  // Copies may be in flight into buffers that go back when this fails.
  SettleCopies(state, state.copy_out);
  state.refusal = status.error().message;
  if (status.error().code != ErrorCode::kUnsupported) {
    // Of a broken device every call fails, now this one first, now that.
    state.stopped.Tell(LogLevel::kError,
                       std::to_string(static_cast<int>(status.error().code)),
                       "eviction stopped: " + state.refusal);
  }
  return false;
}

Bytes Engine::EndEvictLocked(DeviceState& state,
                             std::vector<Departure>& batch) {
  for (Departure& leaving : batch) {
    if (leaving.stays || !leaving.clean) continue;
    const LowerCopy& copy = *lower_.Find(leaving.handle.address());
    leaving.to = copy.host && copy.disk ? HandleState::kHostAndDisk
                 : copy.host            ? HandleState::kHost
                                        : HandleState::kDisk;
  }
  state.allocator->CommitEvict(&batch);
  Bytes freed = 0;
  std::string failed;  // to unmap
  for (const Departure& leaving : batch) {
    if (leaving.error) failed = leaving.error->message;
    if (leaving.left == Departure::Left::kStayed) {
      if (!leaving.clean) lower_.Forget(leaving.handle);
      continue;
    }
    counters_.clean_drops += leaving.clean;
    freed += leaving.handle.bytes();
    if (leaving.left == Departure::Left::kFreed) {  // while it was leaving
      lower_.Forget(leaving.handle);
      continue;
    }
    ++counters_.evicted_handles;
    counters_.evicted_bytes += leaving.handle.bytes();
  }
  if (!failed.empty()) {
    state.refusal = failed;
    state.refused.Tell(LogLevel::kError, failed, kStays + failed);
  }
  return freed;
}

}  // namespace stratalloc
