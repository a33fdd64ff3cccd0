// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/eviction.h"

#include <algorithm>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/state/workspaces.h"

namespace stratalloc {
namespace {

constexpr char kStays[] = "cannot evict, the bytes stay on the device: ";

}  // namespace

bool Eviction::Begin(const std::vector<Leave>& leaves) {
  DeviceAllocator& device = *state_.allocator;
  lower_.TryDiskAgain();
  if (!device.AwaitRoutes()) {
    state_.refusal = kCapturedNow;
    return false;
  }
  below_ = leaves.front().below;
  std::vector<Claim> claims;
  std::uint64_t users = 0;
  for (const Leave& leave : leaves) {
    claims.push_back(leave.claim);
    tallies_[leave.claim.handle.address()] = leave.tally;
    users |= leave.claim.streams;
  }
  batch_ = device.MarkLeaving(claims);
  if (batch_.empty()) return false;
  // Now that they are marked: whatever entered a table before is in it.
  const auto workspaces = LibraryWorkspaces::Addresses();
  const bool spoils = device.SomeCapture(device.streams().MayAsk(users));
  device.BeginEvict(&batch_, users, workspaces.value_or(std::vector<Address>()),
                    /*may_leave=*/workspaces && !spoils);
  if (!workspaces) state_.refusal = kTablesBusy;
  if (batch_.empty()) return false;
  device.EndFencing();  // no event of the program's streams is recorded here
  enqueued_ = Enqueue();
  return true;
}

StreamId Eviction::CopyOut() const {
  return STRATALLOC_PLANTED(kOtherDevice) ? (*all_.begin())->copy_out
                                          : state_.copy_out;
}

Status Eviction::Enqueue() {
  DeviceAllocator& device = *state_.allocator;
  std::vector<Departure*> everything;
  for (Departure& leaving : batch_) everything.push_back(&leaving);
  STRATALLOC_RETURN_IF_ERROR(Sum(everything, words_));
  STRATALLOC_RETURN_IF_ERROR(EnqueueCopies());
  // Summed again behind the copies: what did not change meanwhile is what left.
  STRATALLOC_RETURN_IF_ERROR(Sum(copied_, words_ + kMost));
  STRATALLOC_ASSIGN_OR_RETURN(done_, Fence::After(device, state_.copy_out));
  return {};
}

Status Eviction::EnqueueCopies() {
  DeviceAllocator& device = *state_.allocator;
  for (Departure& leaving : batch_) {
    const LowerCopy* const true_copy =
        lower_.Find(*state_.allocator, leaving.handle.address());
    if (below_ == Below::kHost && leaving.clean && !true_copy->host) {
      leaving.clean = false;  // copied there
    }
    if (leaving.clean) continue;
    LowerCopy& copy = lower_.At(device, leaving.handle);
    lower_.Drop(copy);
    copy.generation = leaving.generation;
    bool to_disk = false;
    if (!TakeHost(leaving, copy, &to_disk)) {
      // No buffer to be had: through a staging buffer straight to the disk.
      if (to_disk) late_.push_back(&leaving);
      continue;
    }
    STRATALLOC_RETURN_IF_ERROR(
        device.device().CopyToHost(copy.host.data, leaving.handle.address(),
                                   leaving.handle.bytes(), CopyOut()));
    copied_.push_back(&leaving);
  }
  return {};
}

bool Eviction::TakeHost(Departure& leaving, LowerCopy& copy, bool* to_disk) {
  const TierRule rule = RuleOf(leaving.handle);
  *to_disk = rule.disk && lower_.disk_allowed();
  if (!rule.host) {
    if (!*to_disk) Refuse(leaving, NoTier(leaving.handle));
    return false;
  }
  Result<HostBuffer> buffer =
      lower_.TakeHost(*state_.allocator, leaving.handle.bytes());
  if (buffer) {
    copy.host = *buffer;
    leaving.to = HandleState::kHost;
    return true;
  }
  if (!*to_disk || buffer.error().code == ErrorCode::kIo) {
    *to_disk = false;
    Refuse(leaving, buffer.error());
  }
  return false;
}

Status Eviction::Sum(std::span<Departure* const> handles,
                     std::uint64_t* words) {
  std::vector<DeviceChecksum::Range> ranges;
  for (const Departure* leaving : handles) {
    ranges.push_back({leaving->handle.address(), leaving->handle.bytes()});
  }
  return state_.checksum->Launch(ranges, words, state_.copy_out);
}

Status Eviction::SumNow(Departure& leaving, std::uint64_t* sum) {
  Departure* const alone[] = {&leaving};
  STRATALLOC_RETURN_IF_ERROR(Sum(alone, words_));
  STRATALLOC_RETURN_IF_ERROR(
      state_.allocator->device().SynchronizeStream(state_.copy_out));
  *sum = words_[0];
  return {};
}

bool Eviction::IsDone() const {
  // What cannot be asked is waited for by End.
  return done_ == nullptr || done_->IsDone().value_or(true);
}

bool Eviction::Has(HandleRef handle) const {
  return std::any_of(
      batch_.begin(), batch_.end(),
      [&](const Departure& leaving) { return leaving.handle == handle; });
}

Bytes Eviction::End() {
  Status status = enqueued_;
  if (status && !STRATALLOC_PLANTED(kUnsettledEnd)) status = done_->Wait();
  if (status) status = Check();
  if (status) status = CheckCopies();
  for (Departure* leaving : late_) {
    if (status) status = CopyNow(*leaving);
  }
  if (status) {
    state_.stopped.Over();
    state_.unsettled.Over();
  } else {
    Fail(status.error());
  }
  return Commit();
}

void Eviction::Fail(const Error& why) {
  // Copies may be in flight into buffers that go back now.
  state_.Settle(state_.copy_out);
  state_.NoteStopped(why);
  for (Departure& leaving : batch_) leaving.stays = true;
}

Status Eviction::Check() {
  for (std::size_t i = 0; i < batch_.size(); ++i) {
    Departure& leaving = batch_[i];
    leaving.checksum = words_[i];
    if (!leaving.clean) continue;
    if (lower_.Find(*state_.allocator, leaving.handle.address())->checksum ==
        leaving.checksum) {
      continue;
    }
    // Written past the dispatcher: the guard saw no write, the bytes did
    // change. The copy below is stale.
    leaving.clean = false;
    ++counters_.dirty_by_checksum;
    late_.push_back(&leaving);
  }
  return {};
}

Status Eviction::CheckCopies() {
  for (std::size_t i = 0; i < copied_.size(); ++i) {
    Departure& leaving = *copied_[i];
    lower_.Find(*state_.allocator, leaving.handle.address())->checksum =
        leaving.checksum;
    if (words_[kMost + i] != leaving.checksum) {
      Refuse(leaving, Changed(leaving.handle));
    }
  }
  return {};
}

Status Eviction::CopyNow(Departure& leaving) {
  DeviceAllocator& device = *state_.allocator;
  LowerCopy& copy = lower_.At(device, leaving.handle);
  lower_.Drop(copy);
  copy.checksum = leaving.checksum;
  copy.generation = leaving.generation;
  bool to_disk = false;
  if (!TakeHost(leaving, copy, &to_disk)) {
    return to_disk ? CopyToDisk(leaving, copy) : Status{};
  }
  STRATALLOC_RETURN_IF_ERROR(
      device.device().CopyToHost(copy.host.data, leaving.handle.address(),
                                 leaving.handle.bytes(), state_.copy_out));
  std::uint64_t sum = 0;
  STRATALLOC_RETURN_IF_ERROR(SumNow(leaving, &sum));
  if (sum != leaving.checksum) Refuse(leaving, Changed(leaving.handle));
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
  Result<Staging::Taken> staging = lower_.TakeStaging();
  if (!staging) {
    Refuse(leaving, staging.error());
    return {};
  }
  STRATALLOC_RETURN_IF_ERROR(
      device.device().CopyToHost(staging->data(), leaving.handle.address(),
                                 leaving.handle.bytes(), state_.copy_out));
  leaving.to = HandleState::kDisk;
  std::uint64_t sum = 0;
  STRATALLOC_RETURN_IF_ERROR(SumNow(leaving, &sum));
  if (sum != leaving.checksum) {
    Refuse(leaving, Changed(leaving.handle));
  } else if (Status written = lower_.WriteToDisk(copy, staging->data());
             !written) {
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

Bytes Eviction::Commit() {
  for (Departure& leaving : batch_) {
    if (leaving.stays || !leaving.clean) continue;
    const LowerCopy& copy =
        *lower_.Find(*state_.allocator, leaving.handle.address());
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
      if (!leaving.clean) lower_.Forget(*state_.allocator, leaving.handle);
      continue;
    }
    counters_.clean_drops += leaving.clean;
    freed += leaving.handle.bytes();
    LeaveTally& tally = *tallies_[leaving.handle.address()];
    tally.left += leaving.handle.bytes();
    if (!tally.searched) state_.freed_unsearched += leaving.handle.bytes();
    if (leaving.left == Departure::Left::kFreed) {  // while it was leaving
      lower_.Forget(*state_.allocator, leaving.handle);
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
