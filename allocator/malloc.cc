// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: construction, Malloc and its ladder.
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/device/handle_probe.h"
#include "allocator/device/nvml.h"
#include "allocator/device_allocator.h"
#include "allocator/operator_thread.h"
#include "allocator/settings.h"

namespace stratalloc {
namespace {

// What a try may take from the driver.
enum class Growth {
  kNone,        // nothing at all: what is cached
  kCollecting,  // up to the threshold at which cached memory is given back
  kFree,
};

// Native's sentences about who else uses the card; a long list is cut, so that
// the rest of the text is still read.
std::string Processes(DeviceIndex device) {
  constexpr std::size_t kMost = 16;
  const std::vector<ProcessMemory> processes = ProcessesOn(device);
  std::string text;
  Bytes others = 0;
  for (std::size_t i = 0; i < processes.size(); ++i) {
    const ProcessMemory& process = processes[i];
    const bool own = process.pid == static_cast<unsigned>(getpid());
    if (i >= kMost && !own) {
      others += process.bytes;
      continue;
    }
    text += own ? "Including non-PyTorch memory, this process"
                : "Process " + std::to_string(process.pid);
    text += " has " + FormatBytes(process.bytes) + " memory in use. ";
  }
  if (others > 0) {
    text +=
        "Further processes have " + FormatBytes(others) + " memory in use. ";
  }
  return text;
}

std::shared_ptr<const MemorySource> CudaMalloc(const Device& device) {
  return std::make_shared<const MemorySource>(MemorySource{
      [device](Bytes bytes, StreamId) { return device.Malloc(bytes); },
      [device](Address address) { device.FreeMalloc(address); }});
}

// What the ladder's last rungs try again and again, as the Reclaimer sees it.
class Request final : public MemoryRequest {
 public:
  Request(const std::function<bool()>& take,
          const std::function<Bytes()>& missing,
          const std::function<bool()>& hopeless)
      : take_(take), missing_(missing), hopeless_(hopeless) {}

  std::optional<Error> error;  // why what asked cannot go on

  bool Take() override { return take_(); }
  Bytes Missing() override { return missing_(); }
  bool IsHopeless() override { return hopeless_(); }
  void Fail(Error why) override { error = std::move(why); }

 private:
  const std::function<bool()>& take_;
  const std::function<Bytes()>& missing_;
  const std::function<bool()>& hopeless_;
};

class InLadder {
 public:
  InLadder() : thread_(OperatorThread::ThisThread()) {
    thread_.in_ladder = true;
  }
  ~InLadder() { thread_.in_ladder = false; }

 private:
  OperatorThread& thread_;
};

}  // namespace

Result<std::unique_ptr<DeviceAllocator>> DeviceAllocator::Create(
    Device opened, const Options& options) {
  STRATALLOC_ASSIGN_OR_RETURN(const MemoryInfo info, opened.GetMemoryInfo());
  const Device device = ProbeHandles(opened);
  if (!device.has_virtual_memory()) {
    Options plain = options;
    plain.tiering = false;
    return std::unique_ptr<DeviceAllocator>(
        new DeviceAllocator(device, plain, info.total, HandleTable()));
  }
  STRATALLOC_ASSIGN_OR_RETURN(
      HandleTable table,
      HandleTable::Create(
          device, info.total,
          // A handle is what is evicted at once; where nothing is, the smallest
          // there is leaves the least memory unused at the ends of blocks.
          !options.tiering
              ? device.granularity()
              : LargeHandleBytes(options.gpu_limit != 0
                                     ? std::min(options.gpu_limit, info.total)
                                     : info.total,
                                 options.host_budget, options.disk_budget,
                                 device.granularity())));
  return std::unique_ptr<DeviceAllocator>(
      new DeviceAllocator(device, options, info.total, table));
}

DeviceAllocator::DeviceAllocator(Device device, const Options& options,
                                 Bytes capacity, HandleTable table)
    : device_(device),
      options_(options),
      capacity_(capacity),
      table_(table),
      heap_(table_, stats_, history_),
      pages_(device),
      cuda_malloc_(CudaMalloc(device)),
      own_source_(device.has_virtual_memory() ? nullptr : cuda_malloc_),
      private_pools_(device_, routes_),
      events_(device_),
      frees_(device_, events_),
      traces_(history_, heap_, device.index()),
      residency_({device_, heap_, pages_, events_, traces_, live_, stats_}),
      limit_(device_, capacity, options.gpu_limit) {}

// For tests: everything must have been freed; the product's allocator is
// never destroyed, because frees arrive after static destruction.
DeviceAllocator::~DeviceAllocator() {
  DrainArrivals();
  SynchronizePendingFrees();
  ReleaseCached(~Bytes{0});
  MutexLock lock(mutex_);
  pages_.ReleaseFree(AskStreamsLocked());
  DropEmptySegmentsLocked();
  if (device_.has_virtual_memory()) table_.Destroy(device_);
}

std::int64_t DeviceAllocator::FreedCount() {
  MutexLock lock(mutex_);
  return live_.freed_count();
}

void DeviceAllocator::LookAtPressure() {
  MutexLock lock(mutex_);
  pressure_at_ = 0;  // the next malloc asks
}

Result<AllocatedBlock> DeviceAllocator::SlowMalloc(
    const MallocRequest& request) {
  // A climb that failed half way has given back what it took.
  return WhenReady([&] { return ClimbLadder(request); });
}

void DeviceAllocator::Settle() {
  if (SomeCapture(~std::uint64_t{0})) return;
  // What fails here fails at the next call, too, and is told by that.
  (void)device_.SynchronizeDevice();
}

Result<AllocatedBlock> DeviceAllocator::ClimbLadder(
    const MallocRequest& request) {
  const Bytes requested = request.size;
  const Charge charge = request.charge;
  STRATALLOC_CHECK(requested > 0, "Malloc of nothing");
  if (requested >= kMaxRequest) {
    return tl::unexpected(OutOfMemory(requested));
  }
  const Bytes size = Settings::Get().Round(requested);
  OperatorThread& thread = OperatorThread::ThisThread();
  PoolKey key{request.stream, request.lifetime, KindOf(size)};
  // Without tiering nothing is ever away, so the classes may share handles.
  if (!options_.tiering) key.lifetime = LifetimeClass::kTransient;

  // A driver that fails for another reason than memory fails whatever is
  // given back: its error is the answer, at once, as native.
  std::optional<Error> failed;
  Bytes lacking = size;  // the last attempt
  const auto failure = [&] {
    // Native's words, then which call.
    const char* const what =
        own_source_ != nullptr ? "CUDA error: " : "CUDA driver error: ";
    return tl::unexpected(Error{failed->code, what + failed->message});
  };
  auto attempt = [&](bool soft, Growth growth = Growth::kFree) -> Block* {
    mutex_.AssertHeld();
    const Bytes hard_limit = limit_.Now();
    Bytes limit = soft ? static_cast<Bytes>(static_cast<double>(hard_limit) *
                                            options_.emergency_threshold)
                       : hard_limit;
    if (const double threshold = Settings::Get().collection_threshold();
        growth == Growth::kCollecting && threshold > 0 &&
        limit_.fraction() < 1.0) {
      limit = std::min(limit, static_cast<Bytes>(
                                  threshold * static_cast<double>(hard_limit)));
    }
    if (growth == Growth::kNone) limit = 0;
    driver_error_.reset();
    lacking_ = size;
    Block* block = TryMallocLocked(PoolLocked(key), size, limit);
    if (block == nullptr) failed = driver_error_;
    lacking = lacking_;
    return block == nullptr ? nullptr
                            : HandOutLocked(block, size, requested, charge);
  };
  auto result = [&](Block* block) {
    mutex_.AssertHeld();
    if (request.raw) block->raw = block->streams_noted = true;
    return AnswerLocked(block->address, block->size, charge);
  };

  // Plain segments are got without the lock. Nothing if there is no memory.
  auto grow = [&]() -> std::optional<Result<AllocatedBlock>> {
    Result<std::unique_ptr<PlainMemory>> memory = FetchPlain(key, size);
    if (!memory) {
      failed = memory.error();
      return failure();
    }
    if (*memory == nullptr) return std::nullopt;
    MutexLock lock(mutex_);
    Block* block = AddPlainLocked(PoolLocked(key), *std::move(memory));
    return result(HandOutLocked(block, size, requested, charge));
  };

  bool may_reclaim =
      options_.tiering && reclaimer_ != nullptr && !thread.in_ladder;
  {
    MutexLock lock(mutex_);
    if (routes_.MayRoute()) {
      key.owner = RouteLocked(request.stream);
      SettleRoutesLocked();
      private_pools_.NoteStream(request.stream);  // CapturingLocked asks it
      if (CapturingLocked()) {
        may_reclaim = false;
        if (PrivatePool* const own = private_pools_.Find(key.owner)) {
          own->addresses_kept = true;
        }
      }
    }
    if (key.owner.is_private()) {
      key.lifetime = LifetimeClass::kTransient;  // never evicted
    }
    ProcessEventsLocked();
    SettleArrivalsLocked();
    if (key.kind == PoolKind::kLarge) ++searches_;
    if (Block* block = attempt(/*soft=*/false, Growth::kNone)) {
      MaybeSignalPressureLocked();
      return result(block);
    }
  }
  // As native: whoever can free memory outside our sight is asked before any
  // is taken or given back.
  if (Settings::Get().FreeMemory()) {
    MutexLock lock(mutex_);
    if (Block* block = attempt(/*soft=*/false, Growth::kNone)) {
      return result(block);
    }
  }
  std::optional<Result<AllocatedBlock>> served;  // by the reclaimer's turn
  std::optional<Error> broken;                   // what asked cannot go on
  const bool plain = [&] {  // not from somebody else's allocator
    MutexLock lock(mutex_);
    return SourceLocked(key) == cuda_malloc_;
  }();
  const std::function<bool()> take = [&] {
    while (true) {
      {
        MutexLock lock(mutex_);
        if (Block* block = attempt(/*soft=*/false)) {
          served = result(block);
        } else if (failed) {
          served = failure();
        }
      }
      if (!served && plain) {
        served = grow();
        lacking = Settings::Get().SegmentBytes(size);
      }
      if (served) return true;
      // A freed remainder may complete another handle.
      if (ReleaseCached(lacking) == 0) return false;
    }
  };
  const std::function<Bytes()> missing = [&] { return lacking; };
  const std::function<bool()> hopeless = [&] {
    MutexLock lock(mutex_);
    return CannotFitLocked(size);
  };
  const auto reclaim = [&] {
    InLadder in_ladder;
    Request asked(take, missing, hopeless);
    const bool ended = reclaimer_->Reclaim(device_.index(), asked);
    broken = std::move(asked.error);
    return ended || broken.has_value();
  };
  const auto outcome = [&]() -> Result<AllocatedBlock> {
    if (broken) return tl::unexpected(*broken);
    return *std::move(served);
  };
  // Whoever was refused and waits comes first: what it waits for would be taken
  // here as soon as it comes free.
  const bool queued = may_reclaim && reclaimer_->IsCrowded() && CouldHold(size);
  if (queued && reclaim()) return outcome();
  // Rung: free space in a handle that is away comes back before another handle
  // is opened. Else small results, each made after an eviction, have a handle
  // each, which an operator over all of them needs together.
  if (may_reclaim && !queued) {
    const Address away = [&] {
      MutexLock lock(mutex_);
      return residency_.FindAwaySpace(
          PoolLocked(key), table_.region(/*evictable=*/true, key.kind), size);
    }();
    InLadder in_ladder;
    if (away != 0 && reclaimer_->RestoreSpace(device_.index(), away)) {
      MutexLock lock(mutex_);
      if (Block* block = attempt(/*soft=*/false, Growth::kNone)) {
        return result(block);
      }
    }
  }
  // Under pressure memory between the emergency threshold and the limit is left
  // alone while something cold can make room instead, so that other users of
  // the card keep some.
  const bool soft = may_reclaim && reclaimer_->UnderPressure(device_.index());
  {
    MutexLock lock(mutex_);
    if (Block* block = attempt(soft, Growth::kCollecting)) {
      MaybeSignalPressureLocked();
      return result(block);
    }
  }
  if (failed) return failure();
  if (own_source_ != nullptr) {
    std::vector<std::unique_ptr<PlainMemory>> old;  // destroyed after the lock
    MutexLock lock(mutex_);
    old = CollectOldLocked();
  }
  if (auto grown = grow()) return *std::move(grown);
  // Rung: private pools that lend, before any cache is given back, as native.
  const auto borrow = [&]() -> std::optional<AllocatedBlock> {
    MutexLock lock(mutex_);
    Block* block = BorrowLocked(key, size);
    if (block == nullptr) return std::nullopt;
    return result(HandOutLocked(block, size, requested, charge));
  };
  const bool collecting = Settings::Get().collection_threshold() > 0;
  if (!collecting) {
    if (const auto lent = borrow()) return *lent;
  }
  // Rung: cached handles of other pools. Rule 13: nested mallocs stop here.
  const Bytes too_much = AboveCollectionThreshold(size);
  ReleaseCached(std::max(size, too_much));
  {
    MutexLock lock(mutex_);
    if (Block* block = attempt(soft)) {
      if (too_much > 0 && !CapturingLocked())
        pages_.ReleaseFree(AskStreamsLocked());
      return result(block);
    }
  }
  if (auto grown = grow()) return *std::move(grown);
  if (const auto lent = borrow()) return *lent;
  // Rung: what a MemPool has cached in other places (pytorch issue 159674).
  if (key.owner.is_private()) {
    const bool may_move = [&] {
      MutexLock lock(mutex_);
      const PrivatePool* const own = private_pools_.Find(key.owner);
      return own != nullptr && !own->addresses_kept;
    }();
    if (may_move && ReleaseCached(size, key.owner) > 0) {
      MutexLock lock(mutex_);
      if (Block* block = attempt(soft)) return result(block);
    }
  }
  if (failed) return failure();
  if (soft) {
    InLadder in_ladder;
    reclaimer_->ReclaimCold(device_.index(), lacking);
    MutexLock lock(mutex_);
    if (Block* block = attempt(/*soft=*/true)) return result(block);
    // There was nothing cold: up to the limit, then.
    if (Block* block = attempt(/*soft=*/false)) return result(block);
    if (failed) return failure();
  }
  // Native's last resort: wait for what other streams still use. What came
  // free by that may be all it takes: it is handed out, not unmapped first.
  // Only then does anything leave: a job that fits native's memory fits ours.
  if (!thread.in_ladder) SynchronizePendingFrees();
  bool retried = false;
  const auto count_retry = [&] {  // once, whichever rung serves it
    mutex_.AssertHeld();
    if (!std::exchange(retried, true)) ++stats_.num_alloc_retries;
  };
  {
    MutexLock lock(mutex_);
    if (!may_reclaim) count_retry();
    if (Block* block = attempt(/*soft=*/false)) {
      count_retry();
      return result(block);
    }
    if (failed) return failure();
  }
  if (may_reclaim) {
    if (take()) return outcome();
  } else if (!thread.in_ladder) {
    ReleaseCached(~Bytes{0});
  }
  for (bool came_free = true; came_free;) {
    std::uint64_t over = 0;
    {
      MutexLock lock(mutex_);
      over = releases_;
    }
    if (auto grown = grow()) return *std::move(grown);
    MutexLock lock(mutex_);
    // Another thread's release in flight holds memory that is free to have;
    // so does one that ended since the driver was asked.
    while (releasing_ > 0) released_.Wait(mutex_);
    if (Block* block = attempt(/*soft=*/false)) return result(block);
    came_free = releases_ != over;
  }
  if (failed) return failure();
  // Evicting everything for a request that fits nowhere helps nobody.
  if (may_reclaim && !queued && CouldHold(size)) {
    if (reclaim()) return outcome();
  }
  // What ended while this request waited may be held by nobody but those whom
  // torch asks for memory.
  if (may_reclaim && Settings::Get().FreeMemory()) {
    MutexLock lock(mutex_);
    if (Block* block = attempt(/*soft=*/false)) return result(block);
  }
  const bool fits_nowhere = may_reclaim && hopeless();
  if (!thread.in_ladder && may_reclaim) ReleaseCached(~Bytes{0});
  const Error refused = OutOfMemory(requested, fits_nowhere);
  MutexLock lock(mutex_);
  count_retry();
  stats_.num_ooms += refused.code == ErrorCode::kOutOfMemory;
  return tl::unexpected(refused);
}

bool DeviceAllocator::CannotFitLocked(Bytes size) {
  const auto for_each_that_stays = [&](auto&& f) {
    mutex_.AssertHeld();
    for (const auto& [base, segment] : heap_.segments()) {
      if (!segment->evictable()) f(*segment);
    }
  };
  // Few segments, perhaps many blocks: those are looked at only if they
  // matter.
  Bytes mapped = 0;
  for_each_that_stays([&](const Segment& segment) {
    mapped += segment.mapped * segment.region->handle_bytes;
  });
  if (mapped + size <= limit_.Most()) return false;
  Bytes stays = 0;
  for_each_that_stays([&](const Segment& segment) {
    for (const Block* b = segment.first; b != nullptr; b = b->next) {
      if (b->state == BlockState::kAllocated) stays += b->size;
    }
  });
  return !CouldHoldLocked(stays + size);
}

Bytes DeviceAllocator::AboveCollectionThreshold(Bytes size) {
  MutexLock lock(mutex_);
  const double threshold = Settings::Get().collection_threshold();
  if (threshold <= 0 || limit_.fraction() >= 1.0) return 0;
  const auto most =
      static_cast<Bytes>(threshold * static_cast<double>(limit_.Now()));
  const Bytes wanted = pages_.used_bytes() + size;
  return wanted > most ? wanted - most : 0;
}

Block* DeviceAllocator::FindCachedLocked(Pool& pool, Bytes size) {
  // Best fit means the best of all: a block in a bin may fit better than any
  // that was given back.
  if (pool.bins().largest() > size) EmptyBinsLocked(pool);
  if (Block* block = FindFreeLocked(pool, size)) return block;
  // Before memory grows, what the bins keep apart is merged and counts again.
  if (pool.bins().empty()) return nullptr;
  EmptyBinsLocked(pool);
  return FindFreeLocked(pool, size);
}

Block* DeviceAllocator::TryMallocLocked(Pool& pool, Bytes size, Bytes limit) {
  if (Block* block = FindCachedLocked(pool, size)) return block;
  if (limit == 0 || SourceLocked(pool.key()) != nullptr) return nullptr;
  // Free handles of other classes where they lie cost nothing, and are asked
  // for first while the limit is far.
  const BlockHeap::Run free = FindTakeOverLocked(pool, size);
  const Bytes others = heap_.HandlesFor(pool, free);
  const auto take_over = [&] {
    mutex_.AssertHeld();
    heap_.TakeOver(pool, free);
    Block* block = heap_.BlockAt(free.lo);
    STRATALLOC_CHECK(block->end() >= free.hi,
                     "a run that was taken over is one free block");
    return block;
  };
  if (free.bytes() > 0 && pages_.used_bytes() + others <= limit) {
    return take_over();
  }
  const StreamsIdle idle = AskStreamsLocked();
  const std::uint64_t own = OwnBitLocked(pool.key().stream);
  const BlockHeap::BusyPlace busy = [&](Address lo, Address hi) {
    mutex_.AssertHeld();
    return BusyPlaceLocked(lo, hi, own, idle);
  };
  Bytes needed = ~Bytes{0};  // a segment of its own
  Address start = heap_.FindRun(pool, size, busy, &needed);
  BlockHeap::Run place;  // what others have cut off and left empty
  if (start == 0) {
    place = FindTakeOverLocked(pool, size, &busy);
    if (place.bytes() > 0) needed = heap_.HandlesFor(pool, place);
  }
  // Near it whole handles may be more than growth would need, whose first or
  // last one is partly the pool's: others would be refused for the difference.
  if (free.bytes() > 0 && others <= needed) return take_over();
  if (start == 0 && place.bytes() > 0) {
    heap_.TakeOver(pool, place);
    start = place.lo;
  }
  return MapRunLocked(pool, start, size, limit, idle);
}

BlockHeap::Run DeviceAllocator::FindTakeOverLocked(
    const Pool& pool, Bytes size, const BlockHeap::BusyPlace* busy) {
  // Without tiering there is one class.
  if (!options_.tiering || pool.key().owner.is_private()) return {};
  for (Pool* other : heap_.OtherClasses(pool)) EmptyBinsLocked(*other);
  return heap_.FindTakeOver(pool, size, busy);
}

Block* DeviceAllocator::MapRunLocked(Pool& pool, Address start, Bytes size,
                                     Bytes limit, const StreamsIdle& idle) {
  const auto new_place = [&] {
    mutex_.AssertHeld();
    const Segment* segment = AddSegmentLocked(pool, size);
    start = segment == nullptr ? 0 : segment->base;
    return start != 0;
  };
  if (start == 0 && !new_place()) return nullptr;
  PageStore::Mapped mapped = MoveAndMapLocked(start, size, limit, idle);
  if (mapped == PageStore::Mapped::kPlaceBusy) {
    // Two positions there keep the same memory: a new place has none.
    if (!new_place()) return nullptr;
    mapped = MoveAndMapLocked(start, size, limit, idle);
  }
  if (mapped != PageStore::Mapped::kYes) return nullptr;
  Block* block = heap_.BlockAt(start);
  STRATALLOC_CHECK(block != nullptr && block->state == BlockState::kFree &&
                       block->end() >= start + size,
                   "a mapped run is one free block");
  return block;
}

PageStore::Mapped DeviceAllocator::MoveAndMapLocked(Address start, Bytes size,
                                                    Bytes limit,
                                                    const StreamsIdle& idle) {
  Segment& segment = *heap_.BlockAt(start)->segment;
  // Free handles of any pool move here before the driver is asked for more.
  MoveCachedLocked(segment, start, start + size, idle);
  return MapLocked(segment, start, start + size, limit, idle);
}

Block* DeviceAllocator::HandOutLocked(Block* block, Bytes size, Bytes requested,
                                      Charge charge) {
  Pool& pool = *block->segment->pool;
  const PoolKind kind = pool.key().kind;
  pool.Unfile(block);
  // FindRun may start inside a larger free block; the front is what we use.
  if (NoSplitLocked(pool) ||
      (block->segment->plain && size >= Settings::Get().max_split_size())) {
    size = block->size;
  }
  if (block->size > size) {
    pool.File(heap_.Split(block, size));
    if (STRATALLOC_PLANTED(kWrongSplit)) requested += 512;
  }
  block->state = BlockState::kAllocated;
  block->requested = requested;
  block->charge = charge;
  if (block->segment->region->evictable) {
    ForEachHandleOf(*block,
                    [](HandleRef handle, Bytes) { ++handle.entry().live; });
    if (pool.evictable()) {
      NoteHandedOutLocked(*block);
      PinForOperatorLocked(*block, OperatorThread::ThisThread());
    }
  }
  live_.HandOut(kind, size, requested);
  if (size >= Settings::Get().max_split_size()) {
    stats_.oversize_allocations.Increase(1);
    block->oversize = block->streams_noted = true;
  }
  block->account = AccountLocked(charge);
  if (block->account != nullptr) {
    block->account->Allocate(size);
  } else if (observer_ != nullptr) {
    observer_->OnAllocate(device_.index(), charge, size);
  }
  if (history_.attentive()) traces_.Alloc(*block);
  return block;
}

void DeviceAllocator::MaybeSignalPressureLocked() {
  if (reclaimer_ != nullptr && options_.tiering &&
      reclaimer_->UnderPressure(device_.index())) {
    const Bytes limit = limit_.Now();
    pressure_at_ = static_cast<Bytes>(reclaimer_->PressureThreshold() *
                                      static_cast<double>(limit));
    reclaimer_->OnPressure(device_.index(), AllocatedLocked(), limit);
  } else {
    pressure_at_ = ~Bytes{0};
  }
}

Bytes DeviceAllocator::AllocatedLocked() { return live_.allocated_bytes(); }

Error DeviceAllocator::OutOfMemory(Bytes requested, bool hopeless) {
  std::string refusal;
  if (reclaimer_ != nullptr && options_.tiering) {
    refusal = WhyNoMore(hopeless ? "with everything evicted it would not fit"
                                 : reclaimer_->LastRefusal(device_.index()));
  }
  const Bytes in_private_pools = PrivateAllocated();
  const std::string processes = Processes(device_.index());
  MutexLock lock(mutex_);
  // Physical memory kept for reuse is free to whoever reads the numbers. A
  // capture sees no driver call that frees.
  if (!CapturingLocked()) pages_.ReleaseFree(AskStreamsLocked());
  const Result<MemoryInfo> info = device_.GetMemoryInfo();
  if (!info && info.error().code == ErrorCode::kDevice) {
    // A lost device, say: no program should try a smaller batch.
    return Error{ErrorCode::kDevice,
                 "CUDA driver error: " + info.error().message +
                     ", asked because " + FormatBytes(requested) +
                     " could not be allocated on GPU " +
                     std::to_string(static_cast<int>(device_.index())) + "."};
  }
  const Bytes allocated = AllocatedLocked();
  const Bytes reserved =
      static_cast<Bytes>(stats_.reserved_bytes.stats[0].current);
  const Bytes total = info ? info->total : capacity_;
  const Bytes free = info ? info->free : 0;
  std::string text =
      "CUDA out of memory. Tried to allocate " + FormatBytes(requested) +
      ". GPU " + std::to_string(static_cast<int>(device_.index())) +
      " has a total capacity of " + FormatBytes(total) + " of which " +
      FormatBytes(free) + " is free. " + processes;
  // Of what the program set; what the card lacks is not forbidden.
  const Bytes limit = limit_.Allowed();
  if (limit < total) text += FormatBytes(limit) + " allowed; ";
  text += "Of the allocated memory " + FormatBytes(allocated) +
          " is allocated by PyTorch, ";
  if (in_private_pools > 0) {
    text += "with " + FormatBytes(in_private_pools) +
            " allocated in private pools (e.g., CUDA Graphs), ";
  }
  text += "and " + FormatBytes(reserved - std::min(reserved, allocated)) +
          " is reserved by PyTorch but unallocated.";
  // Native goes on with advice to set expandable_segments:True, which would
  // change nothing here: every segment is (pytorch issue 173049).
  if (!refusal.empty()) text += " stratalloc could not evict more: " + refusal;
  if (!why_no_reclaimer_.empty()) {
    text += " stratalloc can evict nothing from this GPU: " + why_no_reclaimer_;
  }
  text +=
      "  See documentation for Memory Management  "
      "(https://docs.pytorch.org/docs/stable/notes/"
      "cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf)";
  return Error{ErrorCode::kOutOfMemory, text};
}

}  // namespace stratalloc
