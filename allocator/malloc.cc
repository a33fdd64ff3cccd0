// SPDX-License-Identifier: Apache-2.0
// DeviceAllocator: construction, what a malloc is refused for and in which
// words. What Malloc searches again and again is in device_ladder.cc.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "allocator/cuda/handle_probe.h"
#include "allocator/cuda/nvml.h"
#include "allocator/device_allocator.h"
#include "allocator/ladder/out_of_memory_text.h"
#include "allocator/state/settings.h"

namespace stratalloc {

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
    : PoolRequests(p_, waits_),
      Transactions(p_, waits_),
      DeviceReports(p_),
      p_(device, options, capacity, table),
      waits_(p_) {}

// For tests: everything must have been freed; the product's allocator is
// never destroyed, because frees arrive after static destruction.
DeviceAllocator::~DeviceAllocator() {
  DrainArrivals();
  waits_.SynchronizePendingFrees();
  waits_.ReleaseCached(~Bytes{0});
  MutexLock lock(p_.mutex);
  p_.pages.ReleaseFree(p_.captures.AskStreams());
  p_.placement.DropEmptySegments();
  if (p_.device.has_virtual_memory()) p_.table.Destroy(p_.device);
}

Result<AllocatedBlock> DeviceAllocator::SlowMalloc(
    const MallocRequest& request) {
  // A climb that failed half way has given back what it took.
  return waits_.WhenReady([&] { return ClimbLadder(request); });
}

bool DeviceAllocator::CannotFitLocked(Bytes size) {
  const auto for_each_that_stays = [&](auto&& f) {
    p_.mutex.AssertHeld();
    for (const auto& [base, segment] : p_.heap.segments()) {
      if (!segment->evictable()) f(*segment);
    }
  };
  // Few segments, perhaps many blocks: those are looked at only if they
  // matter.
  Bytes mapped = 0;
  for_each_that_stays([&](const Segment& segment) {
    mapped += segment.mapped * segment.region->handle_bytes;
  });
  if (mapped + size <= p_.limit.Most()) return false;
  Bytes stays = 0;
  for_each_that_stays([&](const Segment& segment) {
    for (const Block* b = segment.first; b != nullptr; b = b->next) {
      if (b->state == BlockState::kAllocated) stays += b->size;
    }
  });
  return !CouldHoldLocked(stays + size);
}

Bytes DeviceAllocator::AboveCollectionThreshold(Bytes size) {
  MutexLock lock(p_.mutex);
  const double threshold = Settings::Get().collection_threshold();
  if (threshold <= 0 || p_.limit.fraction() >= 1.0) return 0;
  const auto most =
      static_cast<Bytes>(threshold * static_cast<double>(p_.limit.Now()));
  const Bytes wanted = p_.pages.used_bytes() + size;
  return wanted > most ? wanted - most : 0;
}

void DeviceAllocator::MaybeSignalPressureLocked() {
  if (Reclaimer* const asked = Asked();
      asked != nullptr && asked->UnderPressure(p_.device.index())) {
    const Bytes limit = p_.limit.Now();
    p_.pressure_at = static_cast<Bytes>(asked->PressureThreshold() *
                                        static_cast<double>(limit));
    asked->OnPressure(p_.device.index(), p_.live.allocated_bytes(), limit);
  } else {
    p_.pressure_at = ~Bytes{0};
  }
}

Error DeviceAllocator::OutOfMemory(Bytes requested, bool hopeless) {
  OutOfMemoryFacts facts;
  facts.requested = requested;
  facts.device = p_.device.index();
  if (Reclaimer* const asked = Asked()) {
    facts.refusal = hopeless ? "" : asked->LastRefusal(p_.device.index());
  }
  facts.why_no_reclaimer = p_.tiering_ended.load()
                               ? "disable() has switched tiering off"
                               : why_no_reclaimer_;
  facts.processes = ProcessesOn(p_.device.index());
  facts.own_pid = static_cast<unsigned>(getpid());
  MutexLock lock(p_.mutex);
  // Physical memory kept for reuse is free to whoever reads the numbers. A
  // capture sees no driver call that frees.
  if (!p_.captures.UnderWay()) p_.pages.ReleaseFree(p_.captures.AskStreams());
  const Result<MemoryInfo> info = p_.device.GetMemoryInfo();
  if (!info && info.error().code == ErrorCode::kDevice) {
    // A lost device, say: no program should try a smaller batch.
    return Error{ErrorCode::kDevice,
                 "CUDA driver error: " + info.error().message +
                     ", asked because " + FormatBytes(requested) +
                     " could not be allocated on GPU " +
                     std::to_string(static_cast<int>(p_.device.index())) + "."};
  }
  facts.total = info ? info->total : p_.capacity;
  facts.free = info ? info->free : 0;
  return Error{ErrorCode::kOutOfMemory, OutOfMemoryText(facts)};
}

}  // namespace stratalloc
