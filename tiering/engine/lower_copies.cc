// SPDX-License-Identifier: Apache-2.0
#include "tiering/engine/lower_copies.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>
#include <vector>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/events/move_events.h"
#include "tiering/policy/victims.h"

namespace stratalloc {
namespace {

constexpr char kNoDisk[] =
    " and no disk is used; a larger host_budget or disk_budget makes room";

DiskCodec CodecOf(TierRule::Packing packing, DiskCodec set) {
  switch (packing) {
    case TierRule::Packing::kOff:
      return DiskCodec::kOff;
    case TierRule::Packing::kLz4:
      return DiskCodec::kLz4;
    case TierRule::Packing::kZstd:
      return DiskCodec::kZstd;
    case TierRule::Packing::kAsSet:
      break;
  }
  return set;
}

// Of what the blocks of a handle ask for, what takes the least time.
DiskCodec CodecOf(const TierRule& rule, DiskCodec set) {
  const DiskCodec asked = CodecOf(rule.packing, set);
  return rule.some_as_set ? std::min(asked, set) : asked;
}

// Do the bytes lie on the host alone, as far as its state says? A chunk beside
// that is not told of yet.
bool IsOnlyCopy(const LowerCopy& copy) {
  const HandleState state = copy.handle.state();
  return state == HandleState::kHost || (IsAway(state) && !copy.disk);
}

}  // namespace

Status LowerCopies::Open(const Device& device, Bytes chunk_bytes) {
  if (host_ == nullptr) {
    host_ = std::make_unique<HostTier>(HostTier::Options{
        options_.host_budget, device, options_.host_budget_is_given});
  }
  // A second device with larger handles needs larger staging buffers. The
  // disk opens with the first write, after all devices are known.
  if (chunk_bytes <= chunk_bytes_) return {};
  if (disk_ != nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "a device with larger handles came after the disk was opened");
  }
  if (disk_allowed()) {
    STRATALLOC_RETURN_IF_ERROR(MakeCoder(chunk_bytes));
    STRATALLOC_RETURN_IF_ERROR(MakeStaging(device, chunk_bytes));
  }
  chunk_bytes_ = chunk_bytes;
  // A budget of fewer than four handles is too small to keep one back.
  reserve_bytes_ = options_.host_budget >= 4 * chunk_bytes_ ? chunk_bytes_ : 0;
  const Bytes on_disk = DiskTier::FileBytes(chunk_bytes_);
  disk_reserve_bytes_ =
      reserve_bytes_ == 0 && options_.disk_budget >= 4 * on_disk ? on_disk : 0;
  return {};
}

// Now, and not with the first write: that is a reclaim's, when there may be no
// memory left.
Status LowerCopies::MakeCoder(Bytes chunk_bytes) {
  std::shared_ptr<ChunkCodec> made(new (std::nothrow) ChunkCodec(chunk_bytes));
  if (made == nullptr || !made->has_memory()) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "the disk tier's codecs need " +
                    FormatBytes(ChunkCodec::WorkspaceBytes(chunk_bytes)) +
                    " of host memory, which there is not. Free host memory, or "
                    "set disk_budget to 0");
  }
  coder_ = std::move(made);
  return {};
}

// Beside the budget, which may be full or 0: bytes can always be passed on to
// the disk.
Status LowerCopies::MakeStaging(const Device& device, Bytes chunk_bytes) {
  auto memory = std::make_unique<HostTier>(HostTier::Options{
      2 * chunk_bytes, device, options_.host_budget_is_given});
  HostBuffer made[2];
  for (HostBuffer& buffer : made) {
    Result<HostBuffer> taken = memory->Allocate(chunk_bytes);
    if (!taken) {
      return Fail(taken.error().code,
                  "the disk tier needs two buffers of " +
                      FormatBytes(chunk_bytes) +
                      " of pinned memory: " + taken.error().message);
    }
    buffer = *taken;
  }
  std::copy(std::begin(made), std::end(made), staging_);
  staging_memory_ = std::move(memory);
  return {};
}

Status LowerCopies::OpenDisk() {
  if (disk_ != nullptr) return {};
  DiskTier::Options options;
  options.directory = options_.disk_dir;
  options.budget = options_.disk_budget;
  options.max_chunk_bytes = chunk_bytes_;
  options.staging[0] = staging_[0].data;
  options.staging[1] = staging_[1].data;
  options.coder = coder_;
  options.wrap_io = options_.wrap_io;
  STRATALLOC_ASSIGN_OR_RETURN(disk_, DiskTier::Open(options));
  return {};
}

LowerCopy* LowerCopies::Find(Address handle) {
  auto it = copies_.find(handle);
  return it == copies_.end() ? nullptr : &it->second;
}

LowerCopy& LowerCopies::At(DeviceAllocator& device, HandleRef handle) {
  LowerCopy& copy = copies_[handle.address()];
  copy.device = &device;
  copy.handle = handle;
  return copy;
}

void LowerCopies::CollectDropped(DeviceAllocator& device) {
  for (const auto& [handle, generation] : device.TakeDropped()) {
    dropped_.push_back({&device, handle, generation});
  }
  // Copies of what is on its way out are written right now.
  const auto leaves = [&](const Dropped& one) {
    const HandleState state = one.handle.state();
    return one.device != &device || state == HandleState::kLeaving ||
           state == HandleState::kCopyingOut;
  };
  const auto first = std::partition(dropped_.begin(), dropped_.end(), leaves);
  const std::vector<Dropped> dropped(first, dropped_.end());
  dropped_.erase(first, dropped_.end());
  if (dropped.empty()) return;
  // A copy may still be on its way up out of a buffer that goes back now.
  if (Status status = device.DrainArrivals(); !status) {
    undrained_.Tell(LogLevel::kError, status.error().message,
                    status.error().message);
  } else {
    undrained_.Over();
  }
  for (const auto& [owner, handle, generation] : dropped) {
    LowerCopy* copy = Find(handle.address());
    // A copy made after the free belongs to the new bytes.
    if (copy == nullptr || copy->generation >= generation) continue;
    Forget(handle);
  }
}

void LowerCopies::Drop(LowerCopy& copy) {
  if (copy.host) host_->Free(copy.host);
  if (copy.disk) FreeChunk(copy);
  copy.host = {};
}

void LowerCopies::FreeChunk(LowerCopy& copy) {
  packed_ -= copy.disk.stored.codec != DiskCodec::kOff;
  crowded_out_.reset();
  disk_->Free(copy.disk);
  copy.disk = {};
}

void LowerCopies::Forget(HandleRef handle) {
  if (LowerCopy* copy = Find(handle.address())) {
    Drop(*copy);
    copies_.erase(handle.address());
  }
}

Bytes LowerCopies::HostRoom() const {
  return options_.host_budget - (reserve_open_ ? 0 : reserve_bytes_);
}

Bytes LowerCopies::Room(bool host, bool disk) const {
  Bytes host_held = 0, disk_held = 0;
  for (const auto& [address, copy] : copies_) {
    if (!IsAway(copy.handle.state())) continue;
    // Of two the host's is given up.
    if (copy.disk) {
      disk_held += DiskTier::FileBytes(copy.disk);
    } else {
      host_held += copy.host.bytes;
    }
  }
  const Bytes on_host = host ? HostRoom() - std::min(HostRoom(), host_held) : 0;
  if (!disk || !disk_allowed() || (disk_ != nullptr && disk_->offline())) {
    return on_host;
  }
  const Bytes budget = options_.disk_budget - disk_reserve_bytes_;
  const Bytes chunks = (budget - std::min(budget, disk_held)) /
                       DiskTier::FileBytes(chunk_bytes_);
  return on_host + chunks * chunk_bytes_;
}

void LowerCopies::RefillReserve(std::uint32_t now) {
  Error why;
  while (reserve_bytes_ > 0 &&
         host_->used() > options_.host_budget - reserve_bytes_ &&
         GiveUpHostCopy(chunk_bytes_, now, &why)) {
  }
  while (disk_reserve_bytes_ > 0 && disk_ != nullptr &&
         disk_->used() > disk_->budget() - disk_reserve_bytes_ &&
         GiveUpChunk()) {
  }
}

HostBuffer LowerCopies::TakeSpareHost(Bytes bytes) {
  const double room =
      std::min(static_cast<double>(options_.host_budget) *
                   options_.cpu_offload_threshold,
               static_cast<double>(options_.host_budget - reserve_bytes_));
  if (static_cast<double>(host_->used() + bytes) > room) return {};
  Result<HostBuffer> buffer = host_->Allocate(bytes);
  return buffer ? *buffer : HostBuffer{};
}

Result<HostBuffer> LowerCopies::TakeHost(Bytes bytes, std::uint32_t now) {
  if (HostBuffer spare = TakeSpareHost(bytes)) return spare;
  Error why{
      ErrorCode::kHostOutOfMemory,
      "the host budget of " + FormatBytes(options_.host_budget) +
          (options_.host_budget < bytes
               ? " is less than the " + FormatBytes(bytes) + " to evict at once"
               : " is spent")};
  // Above the threshold colder copies go down; without a disk, or with one
  // that fails, the rest of the budget is used.
  const auto allocate = [&]() -> Result<HostBuffer> {
    if (host_->used() + bytes > HostRoom()) return tl::unexpected(why);
    return host_->Allocate(bytes);
  };
  const bool made_room = GiveUpHostCopy(bytes, now, &why);
  Result<HostBuffer> buffer = allocate();
  while (!buffer && made_room && GiveUpHostCopy(bytes, now, &why)) {
    buffer = allocate();
  }
  if (buffer) return buffer;
  // Within the budget it is the machine that has no more, or the disk failed.
  const bool spent = host_->used() + bytes > HostRoom();
  if (spent || why.code == ErrorCode::kIo) return tl::unexpected(why);
  if (!disk_allowed()) {
    buffer.error().message += ", and so does a disk_budget";
  }
  return buffer;
}

bool LowerCopies::GiveUpHostCopy(Bytes bytes, std::uint32_t now, Error* why) {
  // Cheapest first: a copy that is on disk too costs nothing, one of a
  // resident handle costs a copy later, an only copy costs a write now.
  struct Choice {
    int cost;
    std::uint32_t coldness;
    LowerCopy* copy;
  };
  std::vector<Choice> choices;
  for (auto& [address, copy] : copies_) {
    if (!copy.host) continue;
    const HandleUse& use = copy.handle.use();
    const HandleState state = copy.handle.state();
    if (state == HandleState::kCopyingOut || state == HandleState::kLeaving) {
      continue;
    }
    const int cost = copy.disk ? 0 : IsAway(state) ? 2 : 1;
    if (cost == 2 && !disk_allowed()) continue;
    Candidate candidate;
    candidate.last_use = use.last_use.load();
    candidate.intervals = use.Intervals();
    choices.push_back({cost, Coldness(candidate, now), &copy});
  }
  std::sort(
      choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
        return a.cost != b.cost ? a.cost < b.cost : a.coldness > b.coldness;
      });
  // A buffer of the wanted size is a place for sure; others only if nothing
  // else is left, since their space may not join up.
  std::stable_partition(choices.begin(), choices.end(), [&](const Choice& c) {
    return c.copy->host.bytes == bytes;
  });
  for (Choice& choice : choices) {
    LowerCopy& copy = *choice.copy;
    const bool written = choice.cost == 2;
    if (written && !copy.device->RuleOf(copy.handle).disk) continue;
    const Status given_up = GiveUpHost(copy);
    if (given_up) return true;
    if (written) {
      *why = given_up.error();
      return false;
    }
  }
  if (!disk_allowed()) {
    why->message += kNoDisk;
  }
  return false;
}

Status LowerCopies::GiveUpHost(LowerCopy& copy) {
  const MoveEvents events(copy.device->device().index(), copy.device->moves());
  const bool written = IsOnlyCopy(copy);
  if (written && !copy.disk) {
    STRATALLOC_RETURN_IF_ERROR(WriteToDisk(copy, copy.host.data));
  }
  if (copy.handle.state() == HandleState::kCopyingIn &&
      !STRATALLOC_PLANTED(kEarlyBuffer)) {
    STRATALLOC_RETURN_IF_ERROR(copy.device->DrainArrivals());
  }
  copy.device->NoteHostCopyGone(
      copy.handle, written, /*on_disk=*/static_cast<bool>(copy.disk), events);
  host_->Free(copy.host);
  copy.host = {};
  return {};
}

void LowerCopies::TakeBeside(LowerCopy& copy) {
  if (copy.host && copy.disk && IsOnlyCopy(copy)) FreeChunk(copy);
}

bool LowerCopies::GiveUpChunkOf(LowerCopy& copy) {
  if (!copy.device->NoteChunkGone(copy.handle,
                                  /*in_host=*/static_cast<bool>(copy.host))) {
    return false;
  }
  FreeChunk(copy);
  return true;
}

bool LowerCopies::GiveUpChunk() {
  for (auto& [address, copy] : copies_) {
    if (copy.disk && GiveUpChunkOf(copy)) return true;
  }
  return false;
}

bool LowerCopies::DiskHasRoom(Bytes bytes) const {
  const Bytes room =
      disk_->budget() - (reserve_open_ ? 0 : disk_reserve_bytes_);
  return disk_->used() + DiskTier::FileBytes(bytes) <= room &&
         disk_->HasRoom(bytes);
}

Status LowerCopies::WriteToDisk(LowerCopy& copy, const void* data) {
  if (!disk_allowed()) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "the host budget of " + FormatBytes(options_.host_budget) +
                    " is spent" + kNoDisk);
  }
  STRATALLOC_RETURN_IF_ERROR(OpenDisk());
  const Bytes bytes = copy.handle.bytes();
  while (!DiskHasRoom(bytes) && GiveUpChunk()) {
  }
  // Compressed it might have room in what is kept back, which it may not take.
  if (!DiskHasRoom(bytes) && !reserve_open_ && disk_reserve_bytes_ > 0) {
    return Fail(ErrorCode::kIo,
                "the disk budget of " + FormatBytes(disk_->budget()) +
                    " has no room for " + FormatBytes(bytes) + ": " +
                    FormatBytes(disk_->used()) + " are in use and " +
                    FormatBytes(disk_reserve_bytes_) +
                    " are kept back for what must return. Raise disk_budget; "
                    "the memory stays where it is");
  }
  // Compressed chunks let more be here than would be raw, and what is in the
  // way of a swap then is smaller as well: it is worth any codec's time.
  const bool has_room = disk_->HasRoom(bytes);
  const bool crowded = !has_room && packed_ > 0;
  const DiskCodec codec =
      crowded ? DiskCodec::kZstd
              : CodecOf(copy.device->RuleOf(copy.handle),
                        disk_codec_.load(std::memory_order_relaxed));
  const bool tries = !has_room && codec != DiskCodec::kOff;
  if (tries && crowded_out_) return tl::unexpected(*crowded_out_);
  Result<DiskChunk> chunk =
      disk_->Write(data, bytes, copy.handle.address(), copy.generation, codec);
  if (!chunk) {
    if (tries) crowded_out_ = chunk.error();
    return tl::unexpected(std::move(chunk).error());
  }
  copy.disk = *chunk;
  packed_ += copy.disk.stored.codec != DiskCodec::kOff;
  written_bytes_ += bytes;
  stored_bytes_ += copy.disk.stored.bytes;
  return {};
}

Status LowerCopies::ReadFromDisk(const LowerCopy& copy, void* to) {
  STRATALLOC_CHECK(disk_ != nullptr && copy.disk, "no chunk to read");
  STRATALLOC_RETURN_IF_ERROR(disk_->Read(copy.disk, to));
  read_bytes_ += copy.disk.bytes;
  return {};
}

Result<void*> LowerCopies::TakeStaging() {
  if (!staging_[0]) {
    return Fail(ErrorCode::kHostOutOfMemory, "no disk is used");
  }
  staging_next_ ^= 1;
  StagingUse& use = staging_use_[staging_next_];
  if (use.event != kNoEvent) {
    if (!STRATALLOC_PLANTED(kReusedStaging)) {
      STRATALLOC_RETURN_IF_ERROR(
          use.device->device().SynchronizeEvent(use.event));
    }
    use.device->PutEvent(std::exchange(use.event, kNoEvent));
  }
  return staging_[staging_next_].data;
}

void LowerCopies::Close() {
  for (StagingUse& use : staging_use_) {
    if (use.event != kNoEvent) use.device->PutEvent(use.event);
    use.event = kNoEvent;
  }
}

Status LowerCopies::MarkStaging(DeviceAllocator& device, StreamId stream) {
  const EventId event = device.TakeEvent();
  if (event == kNoEvent) return device.device().SynchronizeStream(stream);
  staging_use_[staging_next_] = {event, &device};
  return device.device().RecordEvent(event, stream);
}

}  // namespace stratalloc
