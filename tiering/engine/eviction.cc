// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/eviction.h"

#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/state/workspaces.h"

namespace stratalloc {
namespace {

constexpr char kStays[] = "cannot evict, the bytes stay on the device: ";
constexpr char kCaptured[] = "nothing leaves while a CUDA graph is captured";

}  // namespace

Eviction::~Eviction() {
  for (DeviceAllocator* device : held_) device->EndFencing();
}

Bytes Eviction::Run(const std::vector<HandleRef>& victims) {
  DeviceAllocator& device = *state_.allocator;
  lower_.TryDiskAgain();
  if (!device.AwaitRoutes()) {
    state_.refusal = kCaptured;
    return 0;
  }
  batch_ = device.MarkLeaving(victims);
  if (batch_.empty()) return 0;
  std::uint64_t users = 0;
  for (const Departure& leaving : batch_) {
    users |= leaving.handle.use().used_streams.load();
  }
  // Now that they are marked: whatever entered a table before is in it.
  const auto workspaces = LibraryWorkspaces::Addresses();
  const std::uint64_t may_ask = device.streams().MayAsk(users);
  const bool spoils =
      device.SomeCapture(may_ask) ||
      ((may_ask >> StreamTable::kGraphBit & 1) != 0 && !HoldOthers());
  device.BeginEvict(&batch_, users, workspaces.value_or(std::vector<Address>()),
                    /*may_leave=*/workspaces && !spoils);
  if (!workspaces) state_.refusal = kTablesBusy;
  if (batch_.empty()) return 0;
  began_ = true;
  if (!MoveOut(may_ask)) {
    for (Departure& leaving : batch_) leaving.stays = true;
  }
  return End();
}

bool Eviction::Hold(DeviceAllocator& other) {
  if (!other.BeginFencing()) return false;
  held_.push_back(&other);
  return true;
}

bool Eviction::HoldOthers() {
  for (const TieredDevice* one : all_) {
    DeviceAllocator& other = *one->allocator;
    if (&other == state_.allocator) continue;
    if (other.SomeCapture(~std::uint64_t{0}) || !other.AwaitRoutes() ||
        !Hold(other)) {
      return false;
    }
  }
  return true;
}

bool Eviction::MoveOut(std::uint64_t may_ask) {
  std::uint64_t streams = 0;
  for (const Departure& leaving : batch_) streams |= leaving.used_streams;
  Status status = Fence(streams, may_ask);
  state_.allocator->EndFencing();
  if (status) status = Check();
  if (status) status = CopyOut();
  if (status) {
    state_.stopped.Over();
    state_.unsettled.Over();
    return true;
  }
  // Copies may be in flight into buffers that go back when this fails.
  state_.Settle(state_.copy_out);
  state_.refusal = status.error().message;
  if (status.error().code != ErrorCode::kUnsupported) {
    // Of a broken device every call fails, now this one first, now that.
    state_.stopped.Tell(LogLevel::kError,
                        std::to_string(static_cast<int>(status.error().code)),
                        "eviction stopped: " + state_.refusal);
  }
  return false;
}

Status Eviction::Fence(std::uint64_t streams, std::uint64_t may_wait_for) {
  DeviceAllocator& device = *state_.allocator;
  if (STRATALLOC_PLANTED(kMissingEvent)) return {};
  const StreamId copy_out = STRATALLOC_PLANTED(kOtherDevice)
                                ? (*all_.begin())->copy_out
                                : state_.copy_out;
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
    for (const TieredDevice* one : all_) {
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

Status Eviction::Sum(std::span<Departure* const> handles) {
  std::vector<DeviceChecksum::Range> ranges;
  for (const Departure* leaving : handles) {
    ranges.push_back({leaving->handle.address(), leaving->handle.bytes()});
  }
  STRATALLOC_RETURN_IF_ERROR(
      state_.checksum->Launch(ranges, state_.checksum_words, state_.copy_out));
  return state_.allocator->device().SynchronizeStream(state_.copy_out);
}

Status Eviction::Check() {
  std::vector<Departure*> all;
  for (Departure& leaving : batch_) all.push_back(&leaving);
  STRATALLOC_RETURN_IF_ERROR(Sum(all));
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    batch_[i].checksum = state_.checksum_words[i];
    if (!batch_[i].clean) continue;
    const LowerCopy* copy = lower_.Find(batch_[i].handle.address());
    if (below_ == Below::kHost && !copy->host) {
      batch_[i].clean = false;  // copied there
      continue;
    }
    if (copy->checksum != batch_[i].checksum) {
      // Written past the dispatcher: the guard saw no write, the bytes did
      // change. The copy below is stale.
      batch_[i].clean = false;
      ++counters_.dirty_by_checksum;
    }
  }
  return {};
}

Error Eviction::Changed(HandleRef handle) const {
  return {ErrorCode::kCorrupt,
          "something wrote to " + OwnersOf(*state_.allocator, handle) +
              " while it was copied out, past PyTorch's operators; pin() what "
              "other code writes"};
}

void Eviction::Refuse(Departure& leaving, const Error& why) {
  leaving.stays = true;
  // A disk that fails and a foreign writer get a line, once for each reason;
  // the program goes on while memory lasts. A spent budget is told by whoever
  // runs out.
  if (why.code == ErrorCode::kIo || why.code == ErrorCode::kCorrupt) {
    state_.refused.Tell(LogLevel::kWarning, why.message, kStays + why.message);
  }
  state_.refusal = why.message;
}

Status Eviction::CopyToDisk(Departure& leaving, LowerCopy& copy) {
  DeviceAllocator& device = *state_.allocator;
  Result<void*> staging = lower_.TakeStaging();
  if (!staging) {
    Refuse(leaving, staging.error());
    return {};
  }
  STRATALLOC_RETURN_IF_ERROR(
      device.device().CopyToHost(*staging, leaving.handle.address(),
                                 leaving.handle.bytes(), state_.copy_out));
  leaving.to = HandleState::kDisk;
  Departure* const alone[] = {&leaving};
  STRATALLOC_RETURN_IF_ERROR(Sum(alone));
  if (state_.checksum_words[0] != leaving.checksum) {
    Refuse(leaving, Changed(leaving.handle));
  } else if (Status written = lower_.WriteToDisk(copy, *staging); !written) {
    Refuse(leaving, written.error());
  }
  return {};
}

// Why neither tier takes it: not the host, for a rule or because the disk was
// asked for; and not the disk.
Error Eviction::NoTier(HandleRef handle) const {
  const TierRule rule = state_.allocator->RuleOf(handle);
  std::string why = below_ == Below::kDisk ? "it was to go to disk"
                                           : "a rule keeps it off the host";
  if (!rule.disk) {
    why += ", and a rule keeps it off the disk";
  } else if (below_ == Below::kHost) {
    why += ", and it was to go there alone";
  } else {
    why += ", and there is no disk_budget";
  }
  return {ErrorCode::kHostOutOfMemory, why};
}

TierRule Eviction::RuleOf(HandleRef handle) const {
  TierRule rule = state_.allocator->RuleOf(handle);
  rule.host = rule.host && below_ != Below::kDisk;
  rule.disk = rule.disk && below_ != Below::kHost;
  return rule;
}

Status Eviction::CopyOut() {
  DeviceAllocator& device = *state_.allocator;
  const std::uint32_t now = device.use_clock().load();
  std::vector<Departure*> copied;
  for (Departure& leaving : batch_) {
    if (leaving.clean) continue;
    LowerCopy& copy = lower_.At(device, leaving.handle);
    lower_.Drop(copy);
    copy.checksum = leaving.checksum;
    copy.generation = leaving.generation;
    const Bytes bytes = leaving.handle.bytes();
    const TierRule rule = RuleOf(leaving.handle);
    const bool to_disk = rule.disk && lower_.disk_allowed();
    Result<HostBuffer> buffer = HostBuffer{};
    if (rule.host) buffer = lower_.TakeHost(bytes, now);
    if (!rule.host && !to_disk) {
      Refuse(leaving, NoTier(leaving.handle));
      continue;
    }
    if (rule.host && buffer) {
      copy.host = *buffer;
      leaving.to = HandleState::kHost;
      STRATALLOC_RETURN_IF_ERROR(device.device().CopyToHost(
          copy.host.data, leaving.handle.address(), bytes, state_.copy_out));
      copied.push_back(&leaving);
      continue;
    }
    if (!buffer && (!to_disk || buffer.error().code == ErrorCode::kIo)) {
      Refuse(leaving, buffer.error());
      continue;
    }
    // No buffer to be had: through a staging buffer straight to the disk.
    STRATALLOC_RETURN_IF_ERROR(CopyToDisk(leaving, copy));
  }
  if (copied.empty()) return {};
  // Summed again behind the copies: what did not change meanwhile is what left.
  STRATALLOC_RETURN_IF_ERROR(Sum(copied));
  for (std::size_t i = 0; i < copied.size(); ++i) {
    if (state_.checksum_words[i] != copied[i]->checksum) {
      Refuse(*copied[i], Changed(copied[i]->handle));
    }
  }
  return {};
}

Bytes Eviction::End() {
  for (Departure& leaving : batch_) {
    if (leaving.stays || !leaving.clean) continue;
    const LowerCopy& copy = *lower_.Find(leaving.handle.address());
    leaving.to = copy.host && copy.disk ? HandleState::kHostAndDisk
                 : copy.host            ? HandleState::kHost
                                        : HandleState::kDisk;
  }
  state_.allocator->CommitEvict(&batch_, events_);
  Bytes freed = 0;
  std::string failed;  // to unmap
  for (const Departure& leaving : batch_) {
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
    state_.refusal = failed;
    state_.refused.Tell(LogLevel::kError, failed, kStays + failed);
  }
  return freed;
}

}  // namespace stratalloc
