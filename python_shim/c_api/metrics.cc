// SPDX-License-Identifier: Apache-2.0
// C API: what is shown of a device over time.
#include <algorithm>
#include <cstddef>

#include "accounting/ledger.h"
#include "allocator/events/event_recorder.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

namespace stratalloc {
namespace {

static_assert(STRATALLOC_TIERS == kTiers);
static_assert(STRATALLOC_CATEGORIES == kCategories);

std::uint64_t Now(const StatArray& array) {
  return static_cast<std::uint64_t>(array.stats[0].current);
}
std::uint64_t Peak(const StatArray& array) {
  return static_cast<std::uint64_t>(array.stats[0].peak);
}

void FillMemory(DeviceAllocator& device, stratalloc_device_metrics* out) {
  const DeviceAllocator::Usage usage = device.Used();
  const DeviceStats& stats = usage.stats;
  out->capacity = device.capacity();
  out->limit = usage.limit;
  out->allocated = Now(stats.allocated_bytes);
  out->requested = Now(stats.requested_bytes);
  out->active = Now(stats.active_bytes);
  out->reserved = Now(stats.reserved_bytes);
  out->peak_allocated = Peak(stats.allocated_bytes);
  out->peak_reserved = Peak(stats.reserved_bytes);
  out->largest_free = usage.largest_free;
  out->pending = usage.pending;
  out->stranded = usage.stranded;
  out->releasable = usage.releasable;
  out->in_private_pools = usage.in_private_pools;
  const auto count = [](std::int64_t n) {
    return static_cast<std::uint64_t>(n);
  };
  out->allocations = count(stats.allocation.stats[0].allocated);
  out->frees = count(stats.allocation.stats[0].freed);
  out->allocated_in_all = count(stats.allocated_bytes.stats[0].allocated);
  out->driver_allocs = count(stats.num_device_alloc);
  out->ooms = count(stats.num_ooms);
  out->retries = count(stats.num_alloc_retries);
}

stratalloc_scope_metrics OwnerOf(const DeviceSums::Owner& owner) {
  stratalloc_scope_metrics out{};
  out.scope = Raw(owner.scope);
  out.most = owner.most;
  std::copy(owner.bytes.begin(), owner.bytes.end(), out.tiers);
  out.evicted = owner.evicted_bytes;
  out.restored = owner.restored_bytes;
  out.stalls = owner.stalls;
  out.stall_ns = owner.stall_ns;
  return out;
}

void FillOwners(const DeviceSums& sums, stratalloc_device_metrics* out,
                stratalloc_scope_metrics* scopes) {
  for (std::size_t category = 0; category < kCategories; ++category) {
    std::copy(sums.categories[category].begin(),
              sums.categories[category].end(), out->categories[category]);
  }
  std::transform(sums.owners.begin(), sums.owners.end(), scopes, OwnerOf);
  out->others = OwnerOf(sums.others);
  out->scopes = sums.scopes;
}

void FillMoves(const MoveCounts& moves, stratalloc_device_metrics* out) {
  constexpr TierId kAll[] = {TierId::kDevice, TierId::kHost, TierId::kDisk};
  for (const TierId from : kAll) {
    for (const TierId to : kAll) {
      const MoveCounts::Way way = moves.Of(from, to);
      out->ways[Raw(from)][Raw(to)] = {way.moves, way.bytes, way.ns};
    }
    if (from != TierId::kDevice) out->below[Raw(from)] = moves.On(from);
  }
  out->stalls = moves.stalls();
  out->stall_ns = moves.stall_ns();
  out->late = moves.late();
}

void FillProcess(stratalloc_device_metrics* out) {
  if (const Engine* const engine = Core::Get().engine()) {
    const Config& config = Core::Get().config();
    out->host_budget = config.device.host_budget;
    out->disk_budget = config.device.disk_budget;
    out->host_used = engine->HostUsed();
    out->host_reserved = engine->HostReserved();
  }
  const EventRecorder::Counts counts = EventRecorder::Counted();
  out->events = counts.written;
  out->overwritten = counts.overwritten;
  out->without_ring = counts.without_ring;
  out->names_lost = counts.names_lost;
  out->stacks_lost = counts.stacks_lost;
}

Result<int> Metrics(int device, stratalloc_device_metrics* out,
                    stratalloc_scope_metrics* scopes, int room) {
  if (out->size != sizeof(*out)) {
    return Fail(ErrorCode::kInvalidArgument,
                "the files of this package are of different versions: what is "
                "told of a device has " +
                    std::to_string(sizeof(*out)) + " bytes, not " +
                    std::to_string(out->size) + "; install it again");
  }
  *out = {};
  out->size = sizeof(*out);
  STRATALLOC_ASSIGN_OR_RETURN(DeviceAllocator * opened,
                              Core::Get().Opened(device));
  FillProcess(out);
  if (opened == nullptr) return 0;
  out->opened = 1;
  FillMemory(*opened, out);
  const DeviceSums sums =
      Ledger::Get().Sums(static_cast<DeviceIndex>(device),
                         static_cast<std::size_t>(std::max(room, 0)));
  FillOwners(sums, out, scopes);
  FillMoves(opened->moves(), out);
  return static_cast<int>(sums.owners.size());
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

int stratalloc_device_count(void) {
  return Core::Get().initialized() && !Core::Get().abandoned()
             ? Allocator::Get().device_count()
             : 0;
}

int stratalloc_metrics(int device, stratalloc_device_metrics* out,
                       stratalloc_scope_metrics* scopes, int room, int* named,
                       stratalloc_error* error) {
  const Result<int> filled = Metrics(device, out, scopes, room);
  *named = filled.value_or(0);
  return filled ? 0 : ToC(filled.error(), error);
}

}  // extern "C"
