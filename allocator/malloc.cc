// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: construction, what a malloc is refused for and in which
// words. What Malloc searches again and again is in ladder_device.cc.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "allocator/device/handle_probe.h"
#include "allocator/device/nvml.h"
#include "allocator/device_allocator.h"
#include "allocator/out_of_memory_text.h"
#include "allocator/settings.h"

namespace stratalloc {
namespace {

// A new segment is an eighth of the card, so that a handful serve a pool and
// hundreds fit into a region; never below Options::segment_least.
constexpr Bytes kSegmentFraction = 8;

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
      accounts_(device.index()),
      pages_(device),
      limit_(device_, capacity, options.gpu_limit),
      private_pools_(device_, routes_),
      events_(device_),
      frees_(device_, events_),
      traces_(history_, heap_, device.index()),
      captures_({device_, streams_, routes_, private_pools_, frees_, slow_}),
      residency_({device_, heap_, pages_, events_, traces_, live_, stats_}),
      plain_({device_, private_pools_, limit_, heap_, pages_, traces_, stats_},
             options.tiering),
      blocks_({heap_, live_, stats_, history_, traces_, accounts_, pins_,
               private_pools_, captures_, frees_, residency_, plain_, streams_,
               use_clock_, slow_}),
      free_handles_({heap_, pages_, traces_, stats_, streams_, private_pools_,
                     captures_, blocks_}),
      placement_({table_, heap_, pages_, traces_, stats_, private_pools_,
                  captures_, plain_, blocks_, free_handles_},
                 {options.tiering, std::max(options.segment_least,
                                            capacity / kSegmentFraction)}),
      checkpoints_({heap_, private_pools_, blocks_}) {}

// For tests: everything must have been freed; the product's allocator is
// never destroyed, because frees arrive after static destruction.
DeviceAllocator::~DeviceAllocator() {
  DrainArrivals();
  SynchronizePendingFrees();
  ReleaseCached(~Bytes{0});
  MutexLock lock(mutex_);
  pages_.ReleaseFree(captures_.AskStreams());
  placement_.DropEmptySegments();
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
  if (captures_.Some(~std::uint64_t{0})) return;
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
  if (!captures_.UnderWay()) pages_.ReleaseFree(captures_.AskStreams());
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
