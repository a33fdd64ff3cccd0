// SPDX-License-Identifier: Apache-2.0
// C API: the report.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "accounting/category.h"
#include "accounting/ledger.h"
#include "accounting/scope_table.h"
#include "accounting/scope_times.h"
#include "python_shim/bridge_api/nodes.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

namespace stratalloc {
namespace {

nlohmann::json Layers(DeviceIndex device) {
  nlohmann::json layers = nlohmann::json::array();
  for (const LedgerRow& row : Ledger::Get().Rows()) {
    if (row.device != device) continue;
    layers.push_back({
        {"owner", ScopeName(row.charge.scope)},
        {"category", CategoryName(row.charge.category)},
        {"live", row.live},
        {"peak", row.peak},
        {"at_peak", row.at_peak},
        {"allocated", row.allocated},
        {"freed", row.freed},
        {"blocks", row.blocks},
        {"blocks_allocated", row.blocks_allocated},
        {"blocks_freed", row.blocks_freed},
        {"device", row.tier_bytes[0]},
        {"host", row.tier_bytes[1]},
        {"disk", row.tier_bytes[2]},
        {"evicted", row.evicted_bytes},
        {"restored", row.restored_bytes},
        {"to_disk", row.to_disk_bytes},
        {"from_disk", row.from_disk_bytes},
        {"stalls", row.stalls},
        {"stall_ns", row.stall_ns},
    });
  }
  return layers;
}

// The part of it that says who holds bytes, or held them at the peak.
nlohmann::json Held(DeviceIndex device) {
  nlohmann::json held = nlohmann::json::array();
  for (const LedgerRow& row : Ledger::Get().Rows()) {
    if (row.device != device || (row.live == 0 && row.at_peak == 0)) continue;
    held.push_back({
        {"owner", ScopeName(row.charge.scope)},
        {"category", CategoryName(row.charge.category)},
        {"live", row.live},
        {"at_peak", row.at_peak},
        {"blocks", row.blocks},
        {"device", row.tier_bytes[0]},
        {"host", row.tier_bytes[1]},
        {"disk", row.tier_bytes[2]},
    });
  }
  return held;
}

// Time is the process's: the same on every device.
nlohmann::json Scopes(DeviceIndex device) {
  std::map<ScopeId, std::pair<ScopeRow, ScopeTime>> rows;
  for (const ScopeRow& row : Ledger::Get().Scopes()) {
    if (row.device == device) rows[row.scope].first = row;
  }
  for (const ScopeTime& time : ScopeTimes::All())
    rows[time.scope].second = time;
  nlohmann::json scopes = nlohmann::json::array();
  for (const auto& [scope, row] : rows) {
    const auto& [bytes, time] = row;
    scopes.push_back({
        {"owner", ScopeName(scope)},
        {"live", bytes.live},
        {"peak_owned", bytes.peak_owned},
        {"peak_allocated", bytes.peak_allocated},
        {"entered", time.entered},
        {"own_ns", time.ns},
        {"backward_nodes", time.backward_nodes},
        {"own_backward_ns", time.backward_ns},
    });
  }
  return scopes;
}

nlohmann::json Limits(DeviceIndex device) {
  nlohmann::json limits = nlohmann::json::array();
  for (const ScopeLimits::Limit& limit : Ledger::Get().Limits()) {
    if (limit.device != device) continue;
    limits.push_back({{"owner", limit.path},
                      {"bytes", limit.bytes},
                      {"owned", limit.owned}});
  }
  return limits;
}

// A name that is no UTF-8 is C's; it must not end the process.
char* Text(const nlohmann::json& report) {
  return ToC(
      report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

// Zeros for a device that is not opened (nullptr).
DeviceStats StatsOf(DeviceAllocator* device) {
  return device != nullptr ? device->Stats() : DeviceStats{};
}

struct Capacity {
  Bytes card = 0, limit = 0;
};
Capacity CapacityOf(int index, DeviceAllocator* device) {
  if (device != nullptr) return {device->capacity(), device->limit()};
  const auto ordinal = static_cast<DeviceIndex>(index);
  const Result<Card> card = Device::Look(ordinal);
  if (!card) return {};
  return {card->memory,
          DeviceLimit::Of(card->memory, Core::Get().config().device.gpu_limit,
                          Allocator::Get().Fraction(ordinal))};
}

nlohmann::json StayingBytes(DeviceAllocator& device) {
  nlohmann::json bytes = nlohmann::json::object();
  const Staying staying = device.Stays();
  for (int i = 0; i < kStayReasons; ++i) {
    const auto reason = static_cast<StayReason>(i);
    if (staying.of(reason) == 0) continue;
    bytes[StayReasonName(reason)] = staying.of(reason);
  }
  return bytes;
}

// What the rule costs that classes and private pools share no handle.
nlohmann::json PlacementCost(DeviceAllocator* opened) {
  const Fragmentation found =
      opened != nullptr ? opened->Fragments() : Fragmentation{};
  return {{"separate_classes", found.separated},
          {"private_pools", found.in_private_pools + found.stranded_private}};
}

nlohmann::json PinnedByOwner(DeviceAllocator& device) {
  std::map<std::pair<ScopeId, PinReason>, Bytes> bytes;
  for (const PinnedBytes& pinned : device.Pinned()) {
    bytes[{pinned.charge.scope, pinned.reason}] += pinned.bytes;
  }
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [what, sum] : bytes) {
    list.push_back({{"owner", ScopeName(what.first)},
                    {"reason", PinReasonName(what.second)},
                    {"bytes", sum}});
  }
  return list;
}

nlohmann::json BytesOf(const StatArray& array) {
  return {{"current", array.stats[0].current}, {"peak", array.stats[0].peak}};
}

// What has moved, and where it is. `engine` or `opened` may be nullptr.
void Tiering(Engine* engine, DeviceAllocator* opened, nlohmann::json* out) {
  nlohmann::json& report = *out;
  if (engine != nullptr) engine->CollectDropped();
  const EngineCounters c =
      engine != nullptr ? engine->Counters() : EngineCounters{};
  report["handles"] = {
      {"evicted", c.evicted_handles},
      {"restored", c.restored_handles},
      {"restored_before_use", c.restored_before_use},
      {"planned", c.planned_handles},
      {"clean_drops", c.clean_drops},
      {"dirty_by_checksum", c.dirty_by_checksum},
      {"large_handle_bytes",
       opened != nullptr
           ? opened->table().region(true, PoolKind::kLarge).handle_bytes
           : 0},
  };
  report["tiers"] = {
      {"bytes_evicted", c.evicted_bytes},
      {"bytes_restored", c.restored_bytes},
      {"bytes_to_disk", c.to_disk_bytes},
      {"bytes_from_disk", c.from_disk_bytes},
      {"stalls", c.stalls},
      {"stall_ns", c.stall_ns},
      {"host_used", engine != nullptr ? engine->HostUsed() : 0},
      {"host_peak", engine != nullptr ? engine->HostPeak() : 0},
      {"host_reserved", engine != nullptr ? engine->HostReserved() : 0},
      {"host_reserved_peak",
       engine != nullptr ? engine->HostReservedPeak() : 0},
      {"disk_used", engine != nullptr ? engine->DiskUsed() : 0},
      {"disk_raw", c.to_disk_bytes},
      {"disk_stored", c.stored_bytes},
      {"disk_mode", engine != nullptr ? engine->DiskMode() : "off"},
  };
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

char* stratalloc_report_json(int device) {
  nlohmann::json report;
  Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) {
    report["error"] = allocator.error().message;
    return Text(report);
  }
  DeviceAllocator* const opened = *allocator;
  const DeviceStats stats = StatsOf(opened);
  const Capacity capacity = CapacityOf(device, opened);
  const Config& config = Core::Get().config();
  report["device"] = device;
  report["opened"] = opened != nullptr;
  report["device_capacity"] = capacity.card;
  report["gpu_limit"] = capacity.limit;
  report["allocated"] = BytesOf(stats.allocated_bytes);
  report["reserved"] = BytesOf(stats.reserved_bytes);
  report["active"] = BytesOf(stats.active_bytes);
  report["requested"] = BytesOf(stats.requested_bytes);
  report["live"] = Ledger::Get().Totals(static_cast<DeviceIndex>(device)).live;
  report["reservation"] = {
      {"lo", opened != nullptr ? opened->table().base() : 0},
      {"hi", opened != nullptr ? opened->table().end() : 0}};
  Engine* engine = Core::Get().engine();
  const bool ended = engine != nullptr && engine->off();
  report["config"] = {{"tiering", config.tiering && !ended},
                      {"host_budget", config.device.host_budget},
                      {"disk_budget", config.device.disk_budget}};
  report["why_no_tiering"] = engine == nullptr ? Core::Get().WhyNoEngine()
                             : ended ? "disable() has switched tiering off"
                             : opened == nullptr ? ""
                                                 : engine->WhyNot(*opened);
  Tiering(engine, opened, &report);
  report["stays"] =
      opened != nullptr ? StayingBytes(*opened) : nlohmann::json::object();
  report["placement"] = PlacementCost(opened);
  report["pinned"] =
      opened != nullptr ? PinnedByOwner(*opened) : nlohmann::json::array();
  report["layers"] = Layers(static_cast<DeviceIndex>(device));
  report["nodes_without_scope"] = core::NodesWithoutScope();
  report["scopes"] = Scopes(static_cast<DeviceIndex>(device));
  report["scopes_not_interned"] = ScopesNotInterned();
  report["limits"] = Limits(static_cast<DeviceIndex>(device));
  return Text(report);
}

char* stratalloc_held_json(int device) {
  nlohmann::json answer;
  const Result<DeviceAllocator*> allocator = Core::Get().Opened(device);
  if (!allocator) {
    answer["error"] = allocator.error().message;
  } else {
    answer["device"] = device;
    answer["rows"] = Held(static_cast<DeviceIndex>(device));
  }
  return Text(answer);
}

}  // extern "C"
