// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: construction, and one search of Malloc. What Malloc searches
// again and again is in ladder_device.cc.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "allocator/base/check.h"
#include "allocator/base/planted.h"
#include "allocator/device/handle_probe.h"
#include "allocator/device/nvml.h"
#include "allocator/device_allocator.h"
#include "allocator/operator_thread.h"
#include "allocator/out_of_memory_text.h"
#include "allocator/settings.h"

namespace stratalloc {
namespace {

std::shared_ptr<const MemorySource> CudaMalloc(const Device& device) {
  return std::make_shared<const MemorySource>(MemorySource{
      [device](Bytes bytes, StreamId) { return device.Malloc(bytes); },
      [device](Address address) { device.FreeMalloc(address); }});
}

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
      pins_(heap_),
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
  if (block->account != nullptr) block->account->Allocate(size);
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
  OutOfMemoryFacts facts;
  facts.requested = requested;
  facts.device = device_.index();
  if (reclaimer_ != nullptr && options_.tiering) {
    facts.refusal =
        WhyNoMore(hopeless ? "with everything evicted it would not fit"
                           : reclaimer_->LastRefusal(device_.index()));
  }
  facts.why_no_reclaimer = why_no_reclaimer_;
  facts.in_private_pools = PrivateAllocated();
  facts.processes = ProcessesOn(device_.index());
  facts.own_pid = static_cast<unsigned>(getpid());
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
  facts.allocated = AllocatedLocked();
  facts.reserved = static_cast<Bytes>(stats_.reserved_bytes.stats[0].current);
  facts.total = info ? info->total : capacity_;
  facts.free = info ? info->free : 0;
  // Of what the program set; what the card lacks is not forbidden.
  facts.limit = limit_.Allowed();
  return Error{ErrorCode::kOutOfMemory, OutOfMemoryText(facts)};
}

}  // namespace stratalloc
