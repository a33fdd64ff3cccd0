// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/restoration.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/events/move_events.h"

namespace stratalloc {
namespace {

// A concurrent malloc may take what an eviction freed; after so many rounds
// the restore is refused rather than fight on.
constexpr int kRoomAttempts = 32;

}  // namespace

Status Restoration::Run(std::span<const HandleRef> handles) {
  DeviceAllocator& device = *state_.allocator;
  const std::vector<HandleRef> wanted = device.AwayOf(handles);
  while (true) {
    missing_ = device.AwayOf(handles);
    std::sort(missing_.begin(), missing_.end(), [](HandleRef a, HandleRef b) {
      return a.address() < b.address();
    });
    missing_.erase(std::unique(missing_.begin(), missing_.end()),
                   missing_.end());
    if (missing_.empty()) return CheckNotLost(wanted);
    taken_.clear();
    arrived_.clear();
    status_ = {};
    in_parts_ = no_page_tables_ = false;
    TakeRoom();
    MoveIn();
    for (PhysicalMemory* memory : taken_) {
      if (memory != nullptr) device.PutPhysical(memory);
    }
    // Empty: all of this part was freed meanwhile, or could not be mapped.
    if (!arrived_.empty()) Commit();
    if (!GoesOn()) return status_ ? CheckNotLost(wanted) : status_;
  }
}

void Restoration::TakeRoom() {
  DeviceAllocator& device = *state_.allocator;
  Bytes need = 0;
  for (HandleRef handle : missing_) need += handle.bytes();
  bool followed = false;
  lower_.OpenReserve(device, true);
  while (taken_.size() < missing_.size()) {
    const Bytes bytes = missing_[taken_.size()].bytes();
    // What comes ahead of use takes no memory that is cached for a malloc.
    // Nothing does while others are on their way out, unless their streams
    // stand still: another stream's operator has no reason to wait for those.
    const bool take_cached = !planned_ && (stood_still_ || !some_leave_());
    Result<PhysicalMemory*> physical =
        take_cached ? device.TakePhysical(bytes) : device.TakeFree(bytes);
    if (physical) {
      taken_.push_back(*physical);
      need -= bytes;
      continue;
    }
    const bool may_evict = physical.error().code == ErrorCode::kOutOfMemory &&
                           make_room_ != nullptr &&
                           ++attempts_ <= kRoomAttempts;
    if (may_evict) {
      state_.NotePressure();
      // Once: a look asks for the headroom back, which is then taken again.
      if (!std::exchange(followed, true)) device.FollowCard();
    }
    const bool stood_still = stood_still_;
    if (!may_evict || (make_room_(need, &stood_still_) == 0 &&
                       !device.RaiseLimit() && stood_still_ == stood_still)) {
      status_ = tl::unexpected(physical.error());
      break;
    }
    need = ForgetWhatCame();
  }
  lower_.OpenReserve(device, false);
  // What there is room for comes first: its host copies make room for the
  // next victims when no other tier has any.
  in_parts_ = !status_ && !taken_.empty() &&
              status_.error().code == ErrorCode::kOutOfMemory;
  if (in_parts_) {
    missing_.resize(taken_.size());
    status_ = {};
  }
}

Bytes Restoration::ForgetWhatCame() {
  const auto lacks =
      missing_.begin() + static_cast<std::ptrdiff_t>(taken_.size());
  missing_.erase(std::remove_if(lacks, missing_.end(),
                                [](HandleRef handle) {
                                  return !MayReturn(handle.state());
                                }),
                 missing_.end());
  Bytes need = 0;
  for (std::size_t i = taken_.size(); i < missing_.size(); ++i) {
    need += missing_[i].bytes();
  }
  return need;
}

// During a wait for room another thread may have read a page and found its
// bytes damaged.
Status Restoration::CheckNotLost(std::span<const HandleRef> wanted) const {
  for (HandleRef handle : wanted) {
    if (handle.state() != HandleState::kPoisoned) continue;
    return Fail(ErrorCode::kCorrupt,
                "cannot restore " + OwnersOf(*state_.allocator, handle) +
                    " from disk: the bytes were damaged and are lost");
  }
  return {};
}

void Restoration::MoveIn() {
  for (std::size_t next = 0; status_ && next < missing_.size();) {
    // What is copied meanwhile hides what mapping costs: a run is no longer
    // than all before it.
    const std::size_t most =
        std::min(missing_.size() - next, std::max<std::size_t>(next, 1));
    const Result<std::size_t> begun =
        Begin(std::span<const HandleRef>(missing_).subspan(next, most),
              std::span(taken_).subspan(next, most));
    if (!begun) {
      status_ = tl::unexpected(begun.error());
      no_page_tables_ = begun.error().code == ErrorCode::kOutOfMemory;
      return;
    }
    // None: freed meanwhile; its physical handle is put back by the caller.
    const std::size_t end = next + *begun;
    for (std::size_t i = next; i < end; ++i) taken_[i] = nullptr;
    MoveRunIn(next, end);
    next = std::max(end, next + 1);
  }
}

void Restoration::MoveRunIn(std::size_t first, std::size_t end) {
  DeviceAllocator& device = *state_.allocator;
  const MoveEvents events(device.device().index(), device.moves());
  for (std::size_t at = first; at < end; ++at) {
    const HandleRef handle = missing_[at];
    const LowerCopy* copy = lower_.Find(device, handle.address());
    const bool from_disk = copy != nullptr && !copy->host;
    const Status copied = CopyIn(handle);
    if (copied) {
      arrived_.push_back(handle);
      events.Moved(handle.address(), handle.bytes(),
                   from_disk ? TierId::kDisk : TierId::kHost, TierId::kDevice);
      continue;
    }
    const Error& error = copied.error();
    const std::string owners = OwnersOf(device, handle);
    const bool lost = error.code == ErrorCode::kCorrupt;
    // Nothing may be copying into it when it is unmapped again.
    state_.Settle(state_.copy_in);
    Abort(handle, lost);
    for (std::size_t i = at + 1; i < end; ++i) {
      Abort(missing_[i], /*lost=*/false);
    }
    status_ = Fail(error.code, "cannot restore " + owners + " from " +
                                   (lost || from_disk ? "disk: " : "host: ") +
                                   error.message);
    return;
  }
}

Result<std::size_t> Restoration::Begin(
    std::span<const HandleRef> handles,
    std::span<PhysicalMemory* const> memory) {
  DeviceAllocator& device = *state_.allocator;
  Result<std::size_t> begun = device.BeginRestore(handles, memory);
  // Page tables take memory of the card. Nothing that is copied is given up by
  // this, and `memory` is not free.
  if (!begun && begun.error().code == ErrorCode::kOutOfMemory &&
      device.GiveToDriver() > 0) {
    begun = device.BeginRestore(handles, memory);
  }
  return begun;
}

Status Restoration::CopyIn(HandleRef handle) {
  DeviceAllocator& device = *state_.allocator;
  LowerCopy* copy = lower_.Find(device, handle.address());
  STRATALLOC_CHECK(copy != nullptr, "an away handle has a copy");
  const void* from = copy->host.data;
  std::optional<Staging::Taken> staged;
  if (from == nullptr) {
    HostBuffer spare;
    if (device.RuleOf(handle).host) {
      spare = lower_.TakeSpareHost(handle.bytes());
    }
    void* to = spare.data;
    if (to == nullptr) {
      Result<Staging::Taken> taken = lower_.TakeStaging();
      if (!taken) return tl::unexpected(taken.error());
      to = staged.emplace(std::move(*taken)).data();
    }
    if (Status read = lower_.ReadFromDisk(*copy, to); !read) {
      if (spare) lower_.PutUnread(spare);
      return read;
    }
    if (spare) copy->host = spare;
    from = to;
  }
  const Status copied = device.device().CopyToDevice(
      handle.address(), from, handle.bytes(), state_.copy_in);
  if (!copied && !STRATALLOC_PLANTED(kUnheardError)) return copied;
  return staged ? staged->ReadUntil(device, state_.copy_in) : Status{};
}

void Restoration::Abort(HandleRef handle, bool lost) {
  // Bytes that came from the disk may have stayed in a host buffer.
  const LowerCopy* copy = lower_.Find(*state_.allocator, handle.address());
  const bool host = copy != nullptr && copy->host;
  const bool disk = copy != nullptr && copy->disk;
  state_.allocator->AbortRestore(handle, lost ? HandleState::kPoisoned
                                         : host && disk
                                             ? HandleState::kHostAndDisk
                                         : host ? HandleState::kHost
                                                : HandleState::kDisk);
}

void Restoration::Commit() {
  DeviceAllocator& device = *state_.allocator;
  EventId event = device.TakeEvent();
  if (event == kNoEvent ||
      !device.device().RecordEvent(event, state_.copy_in)) {
    // Without an event the copies are waited for here.
    if (event != kNoEvent) device.PutEvent(event);
    event = kNoEvent;
    state_.Settle(state_.copy_in);
  }
  for (HandleRef handle : arrived_) {
    counters_.restored_bytes += handle.bytes();
    ++counters_.restored_handles;
    if (planned_) ++counters_.planned_handles;
  }
  device.CommitRestore(std::move(arrived_), event);
  lower_.RefillReserve(device);
}

bool Restoration::GoesOn() {
  if (no_page_tables_) {
    // More leaves with every attempt: what comes free goes to the driver.
    if (make_room_ == nullptr || ++attempts_ > kRoomAttempts) {
      return false;
    }
    state_.NotePressure();
    return make_room_(static_cast<Bytes>(attempts_) * missing_.front().bytes(),
                      nullptr) != 0;
  }
  if (!in_parts_ || !status_) return false;
  attempts_ = 0;
  return true;
}

}  // namespace stratalloc
