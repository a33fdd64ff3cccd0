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

// The arbiters of the other devices that are free at this moment: until this
// ends their copies are the calling thread's, too, for what needs no I/O.
class LowerCopies::Reach {
 public:
  Reach(LowerCopies& lower, const DeviceAllocator& own)
      STRATALLOC_TS(no_thread_safety_analysis) {
    lower.Of(own).missed = nullptr;
    for (Below& below : lower.below_) {
      Mutex* const arbiter = below.arbiter.load(std::memory_order_acquire);
      if (arbiter == nullptr) continue;
      if (&below != &lower.Of(own)) {
        if (!arbiter->TryLock()) {
          lower.Of(own).missed = arbiter;
          continue;
        }
        held_.push_back(arbiter);
      }
      copies_.push_back(&below.copies);
    }
  }
  ~Reach() STRATALLOC_TS(no_thread_safety_analysis) { End(); }
  Reach(const Reach&) = delete;
  Reach& operator=(const Reach&) = delete;

  const std::vector<Copies*>& copies() const { return copies_; }
  bool holds() const { return !held_.empty(); }
  // Only copies of the thread's own device are its own from now on.
  void End() STRATALLOC_TS(no_thread_safety_analysis) {
    for (Mutex* arbiter : std::exchange(held_, {})) arbiter->Unlock();
  }

 private:
  std::vector<Mutex*> held_;
  std::vector<Copies*> copies_;
};

Status LowerCopies::Open(DeviceAllocator& device, Mutex& arbiter,
                         Bytes chunk_bytes) {
  if (host_ == nullptr) {
    host_ = std::make_unique<HostTier>(HostTier::Options{
        options_.host_budget, device.device(), options_.host_budget_is_given});
  }
  STRATALLOC_RETURN_IF_ERROR(OpenFor(device.device(), chunk_bytes));
  reserves_.Join(chunk_bytes, Of(device).arbiter.exchange(&arbiter) == nullptr);
  return {};
}

// A second device with larger handles needs larger staging buffers. The disk
// opens with the first write, after all devices are known.
Status LowerCopies::OpenFor(const Device& device, Bytes chunk_bytes) {
  if (chunk_bytes <= reserves_.chunk_bytes()) return {};
  if (disk() != nullptr) {
    return Fail(ErrorCode::kUnsupported,
                "a device with larger handles came after the disk was opened");
  }
  if (!disk_allowed()) return {};
  STRATALLOC_RETURN_IF_ERROR(MakeCoder(chunk_bytes));
  // Beside the budget, which may be full or 0: bytes can always be passed on to
  // the disk.
  return staging_.Open(device, chunk_bytes, options_.host_budget_is_given);
}

void LowerCopies::OpenReserve(const DeviceAllocator& device, bool open) {
  if (std::exchange(Of(device).reserve_open, open) != open) {
    reserves_.Open(open);
  }
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
  MutexLock lock(mutex_);
  coder_ = std::move(made);
  return {};
}

Result<DiskTier*> LowerCopies::Disk() {
  if (DiskTier* const opened = disk()) return opened;
  const Bytes chunk_bytes = reserves_.chunk_bytes();
  MutexLock lock(mutex_);
  if (disk_ != nullptr) return disk_.get();
  DiskTier::Options options;
  options.directory = options_.disk_dir;
  options.budget = options_.disk_budget;
  options.max_chunk_bytes = chunk_bytes;
  options.staging[0] = staging_.data(0);
  options.staging[1] = staging_.data(1);
  options.coder = coder_;
  options.wrap_io = options_.wrap_io;
  options.deadline = options_.disk_deadline;
  STRATALLOC_ASSIGN_OR_RETURN(disk_, DiskTier::Open(options));
  opened_.store(disk_.get(), std::memory_order_release);
  return disk_.get();
}

Result<Staging::Taken> LowerCopies::TakeStaging() {
  Result<Staging::Taken> taken = staging_.Take();
  // Asked with the buffer in hand, which no other thread can read into now.
  if (taken && disk() != nullptr) {
    STRATALLOC_RETURN_IF_ERROR(disk()->CheckAnswers());
  }
  return taken;
}

LowerCopy* LowerCopies::Find(const DeviceAllocator& device, Address handle) {
  Copies& copies = Of(device).copies;
  auto it = copies.find(handle);
  return it == copies.end() ? nullptr : &it->second;
}

LowerCopy& LowerCopies::At(DeviceAllocator& device, HandleRef handle) {
  LowerCopy& copy = Of(device).copies[handle.address()];
  copy.device = &device;
  copy.handle = handle;
  return copy;
}

void LowerCopies::CollectDropped(DeviceAllocator& device) {
  Below& below = Of(device);
  for (const auto& [handle, generation] : device.TakeDropped()) {
    below.dropped.push_back({handle, generation});
  }
  // Copies of what is on its way out are written right now.
  const auto leaves = [](const Dropped& one) {
    const HandleState state = one.handle.state();
    return state == HandleState::kLeaving || state == HandleState::kCopyingOut;
  };
  const auto first =
      std::partition(below.dropped.begin(), below.dropped.end(), leaves);
  const std::vector<Dropped> dropped(first, below.dropped.end());
  below.dropped.erase(first, below.dropped.end());
  if (dropped.empty()) return;
  // A copy may still be on its way up out of a buffer that goes back now.
  if (Status status = device.DrainArrivals(); !status) {
    below.undrained.Tell(LogLevel::kError, status.error().message,
                         status.error().message);
  } else {
    below.undrained.Over();
  }
  for (const auto& [handle, generation] : dropped) {
    LowerCopy* copy = Find(device, handle.address());
    // A copy made after the free belongs to the new bytes.
    if (copy == nullptr || copy->generation >= generation) continue;
    Forget(device, handle);
  }
}

void LowerCopies::Drop(LowerCopy& copy) {
  if (copy.host) host_->Free(copy.host);
  if (copy.disk) FreeChunk(copy);
  copy.host = {};
}

void LowerCopies::FreeChunk(LowerCopy& copy) {
  packed_ -= copy.disk.stored.codec != DiskCodec::kOff;
  TryDiskAgain();
  disk()->Free(copy.disk);
  copy.disk = {};
}

void LowerCopies::Forget(const DeviceAllocator& device, HandleRef handle) {
  if (LowerCopy* copy = Find(device, handle.address())) {
    Drop(*copy);
    Of(device).copies.erase(handle.address());
  }
}

Bytes LowerCopies::HostRoom(const DeviceAllocator& device) const {
  return options_.host_budget - reserves_.OfHost(reserve_is_open(device));
}

Bytes LowerCopies::Room(bool host, bool disk) {
  Bytes host_held = 0, disk_held = 0;
  for (const Below& below : below_) {
    Mutex* const arbiter = below.arbiter.load(std::memory_order_acquire);
    if (arbiter == nullptr) continue;
    MutexLock lock(*arbiter);
    for (const auto& [address, copy] : below.copies) {
      if (!IsAway(copy.handle.state())) continue;
      // Of two the host's is given up.
      if (copy.disk) {
        disk_held += DiskTier::FileBytes(copy.disk);
      } else {
        host_held += copy.host.bytes;
      }
    }
  }
  const DiskTier* const opened = this->disk();
  const Bytes host_budget = options_.host_budget - reserves_.OfHost();
  const Bytes on_host =
      host ? host_budget - std::min(host_budget, host_held) : 0;
  if (!disk || !disk_allowed() || (opened != nullptr && opened->offline())) {
    return on_host;
  }
  const Bytes budget = options_.disk_budget - reserves_.OfDisk();
  const Bytes chunk = reserves_.chunk_bytes();
  const Bytes chunks =
      (budget - std::min(budget, disk_held)) / DiskTier::FileBytes(chunk);
  return on_host + chunks * chunk;
}

void LowerCopies::RefillReserve(DeviceAllocator& device) {
  const Bytes reserve = reserves_.OfHost(), disk_reserve = reserves_.OfDisk();
  Error why;
  while (reserve > 0 && host_->used() > options_.host_budget - reserve &&
         GiveUpHostCopy(device, reserves_.chunk_bytes(), &why)) {
  }
  while (disk_reserve > 0 && disk() != nullptr &&
         disk()->used() > disk()->budget() - disk_reserve &&
         GiveUpChunk(device)) {
  }
}

void LowerCopies::PutUnread(HostBuffer buffer) {
  {
    MutexLock lock(mutex_);
    unread_.push_back(buffer);
  }
  FreeUnread();
}

void LowerCopies::FreeUnread() {
  std::vector<HostBuffer> free;
  {
    MutexLock lock(mutex_);
    if (unread_.empty() || disk()->stuck()) return;
    free.swap(unread_);
  }
  for (HostBuffer one : free) host_->Free(one);
}

HostBuffer LowerCopies::TakeSpareHost(Bytes bytes) {
  FreeUnread();
  const double room =
      std::min(static_cast<double>(options_.host_budget) *
                   options_.cpu_offload_threshold,
               static_cast<double>(options_.host_budget - reserves_.OfHost()));
  if (static_cast<double>(host_->used() + bytes) > room) return {};
  Result<HostBuffer> buffer = host_->Allocate(bytes);
  return buffer ? *buffer : HostBuffer{};
}

Result<HostBuffer> LowerCopies::TakeHost(DeviceAllocator& device, Bytes bytes) {
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
    if (host_->used() + bytes > HostRoom(device)) return tl::unexpected(why);
    return host_->Allocate(bytes);
  };
  const bool made_room = GiveUpHostCopy(device, bytes, &why);
  Result<HostBuffer> buffer = allocate();
  while (!buffer && made_room && GiveUpHostCopy(device, bytes, &why)) {
    buffer = allocate();
  }
  if (buffer) return buffer;
  // Within the budget it is the machine that has no more, or the disk failed.
  const bool spent = host_->used() + bytes > HostRoom(device);
  if (spent || why.code == ErrorCode::kIo) return tl::unexpected(why);
  if (!disk_allowed()) {
    buffer.error().message += ", and so does a disk_budget";
  }
  return buffer;
}

bool LowerCopies::GiveUpHostCopy(DeviceAllocator& device, Bytes bytes,
                                 Error* why) {
  // Cheapest first: a copy that is on disk too costs nothing, one of a
  // resident handle costs a copy later, an only copy costs a write now.
  struct Choice {
    int cost;
    std::uint32_t coldness;
    LowerCopy* copy;
  };
  std::vector<Choice> choices;
  Reach reach(*this, device);
  for (Copies* copies : reach.copies()) {
    for (auto& [address, copy] : *copies) {
      if (!copy.host) continue;
      const HandleUse& use = copy.handle.use();
      const HandleState state = copy.handle.state();
      if (state == HandleState::kCopyingOut || state == HandleState::kLeaving) {
        continue;
      }
      const int cost = copy.disk ? 0 : IsAway(state) ? 2 : 1;
      if (cost == 2 && !disk_allowed()) continue;
      // Neither a write nor a wait holds up another device.
      const bool own = copy.device == &device;
      if (!own && (cost == 2 || state == HandleState::kCopyingIn)) continue;
      Candidate candidate;
      candidate.last_use = use.last_use.load();
      candidate.intervals = use.Intervals();
      const std::uint32_t now = copy.device->use_clock().load();
      choices.push_back({cost, Coldness(candidate, now), &copy});
    }
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
    const bool written = choice.cost == 2, own = copy.device == &device;
    if (written && !copy.device->RuleOf(copy.handle).disk) continue;
    if (!own && !reach.holds()) continue;
    if (written) reach.End();
    const Status given_up = GiveUpHost(copy);
    if (given_up) return true;
    if (written) {
      *why = given_up.error();
      return false;
    }
  }
  if (!disk_allowed()) why->message += kNoDisk;
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

bool LowerCopies::GiveUpChunk(const DeviceAllocator& device) {
  const Reach reach(*this, device);
  for (Copies* copies : reach.copies()) {
    for (auto& [address, copy] : *copies) {
      if (copy.disk && GiveUpChunkOf(copy)) return true;
    }
  }
  return false;
}

bool LowerCopies::DiskHasRoom(const DeviceAllocator& device,
                              const DiskTier& disk, Bytes bytes) const {
  const Bytes room = disk.budget() - reserves_.OfDisk(reserve_is_open(device));
  return disk.used() + DiskTier::FileBytes(bytes) <= room &&
         disk.HasRoom(bytes);
}

Error LowerCopies::DiskIsFull(const DiskTier& disk, Bytes bytes,
                              Bytes kept) const {
  return {ErrorCode::kIo,
          "the disk budget of " + FormatBytes(disk.budget()) +
              " has no room for " + FormatBytes(bytes) + ": " +
              FormatBytes(disk.used()) + " are in use and " +
              FormatBytes(kept) +
              " are kept back for what must return. Raise disk_budget; the "
              "memory stays where it is"};
}

std::optional<Error> LowerCopies::CrowdedOut() {
  MutexLock lock(mutex_);
  return crowded_out_;
}

Status LowerCopies::WriteToDisk(LowerCopy& copy, const void* data) {
  if (!disk_allowed()) {
    return Fail(ErrorCode::kHostOutOfMemory,
                "the host budget of " + FormatBytes(options_.host_budget) +
                    " is spent" + kNoDisk);
  }
  STRATALLOC_ASSIGN_OR_RETURN(DiskTier* const disk, Disk());
  const DeviceAllocator& device = *copy.device;
  const Bytes bytes = copy.handle.bytes();
  bool room = DiskHasRoom(device, *disk, bytes);
  while (!room && GiveUpChunk(device)) {
    room = DiskHasRoom(device, *disk, bytes);
  }
  // Compressed it might have room in what is kept back, which it may not take.
  const Bytes kept = reserves_.OfDisk();
  if (!room && !reserve_is_open(device) && kept > 0) {
    return tl::unexpected(DiskIsFull(*disk, bytes, kept));
  }
  // Compressed chunks let more be here than would be raw, and what is in the
  // way of a swap then is smaller as well: it is worth any codec's time.
  const bool has_room = disk->HasRoom(bytes);
  const bool crowded = !has_room && packed_ > 0;
  const DiskCodec codec =
      crowded ? DiskCodec::kZstd
              : CodecOf(copy.device->RuleOf(copy.handle),
                        disk_codec_.load(std::memory_order_relaxed));
  const bool tries = !has_room && codec != DiskCodec::kOff;
  if (tries) {
    if (auto crowded_out = CrowdedOut()) return tl::unexpected(*crowded_out);
  }
  Result<DiskChunk> chunk =
      disk->Write(data, bytes, copy.handle.address(), copy.generation, codec);
  if (!chunk) {
    MutexLock lock(mutex_);
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
  STRATALLOC_CHECK(disk() != nullptr && copy.disk, "no chunk to read");
  STRATALLOC_RETURN_IF_ERROR(disk()->Read(copy.disk, to));
  read_bytes_ += copy.disk.bytes;
  return {};
}

}  // namespace stratalloc
