// SPDX-License-Identifier: Apache-2.0
// C API: what was refused, and what would have been done about it.
#include <algorithm>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "accounting/category.h"
#include "accounting/scope_table.h"
#include "allocator/cuda/nvml.h"
#include "allocator/state/settings.h"
#include "python_shim/core.h"
#include "python_shim/explanation_json.h"
#include "python_shim/refusals.h"

namespace stratalloc {
namespace {

nlohmann::json PartsJson(const MemoryParts& parts) {
  return {
      {"total", parts.card.total},    {"free", parts.card.free},
      {"ours", parts.ours},           {"allowed", parts.allowed},
      {"limit", parts.limit},         {"fraction", parts.fraction},
      {"capturing", parts.capturing}, {"held", FragmentationJson(parts.held)}};
}

// The largest that end when their tensors do, of what is on the device.
nlohmann::json BlocksJson(DeviceAllocator& device) {
  constexpr std::size_t kMost = 512;
  std::vector<BlockView> blocks;
  for (const SegmentView& segment : device.Snapshot()) {
    if (segment.owner.is_private()) continue;
    std::copy_if(segment.blocks.begin(), segment.blocks.end(),
                 std::back_inserter(blocks), [](const BlockView& block) {
                   return block.state == BlockState::kAllocated;
                 });
  }
  std::stable_sort(
      blocks.begin(), blocks.end(),
      [](const BlockView& a, const BlockView& b) { return a.bytes > b.bytes; });
  blocks.resize(std::min(blocks.size(), kMost));
  nlohmann::json list = nlohmann::json::array();
  for (const BlockView& block : blocks) list.push_back(BlockJson(block));
  return list;
}

nlohmann::json ProcessesJson(DeviceIndex device) {
  nlohmann::json list = nlohmann::json::array();
  for (const ProcessMemory& process : ProcessesOn(device)) {
    list.push_back({{"pid", process.pid}, {"bytes", process.bytes}});
  }
  return list;
}

Trial FromC(const stratalloc_trial& trial) {
  Trial out;
  out.more_limit = trial.more_limit;
  out.more_card = trial.more_card;
  out.more_room = trial.more_room;
  out.pools_end = trial.pools_end != 0;
  out.streams_end = trial.streams_end != 0;
  if (trial.unpinned != 0) {
    out.leave_too = Trial::Bit(StayReason::kExported) |
                    Trial::Bit(StayReason::kProgram) |
                    Trial::Bit(StayReason::kShared);
  }
  if (trial.graphs_end != 0) out.leave_too |= Trial::Bit(StayReason::kGraph);
  out.frees.assign(trial.frees, trial.frees + trial.count);
  out.measure = trial.measure != 0;
  return out;
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

void stratalloc_hear_refusals(stratalloc_refusal_listener listener) {
  Refusals::Hear(listener);
}

char* stratalloc_refusal_json(const stratalloc_refusal* refusal) {
  const Result<DeviceAllocator*> device = Core::Get().Opened(refusal->device);
  if (!device) return ToC(nlohmann::json{{"error", device.error().message}});
  if (*device == nullptr) {
    return ToC(nlohmann::json{{"error", "the device is not opened"}});
  }
  const RefusedRequest& refused = refusal->refused->request;
  const MallocRequest& request = refused.request;
  const Result<MemoryParts> parts = (*device)->Parts();
  if (!parts) return ToC(nlohmann::json{{"error", parts.error().message}});
  nlohmann::json json = {
      {"rounded", refused.is_operator ? request.size
                                      : Settings::Get().Round(request.size)},
      {"owner", ScopeName(request.charge.scope)},
      {"category", CategoryName(request.charge.category)},
      {"lifetime", LifetimeName(request.lifetime)},
      {"parts", PartsJson(*parts)},
      {"processes", ProcessesJson((*device)->device().index())},
      {"staying", (*device)->StayingBytes()},
      {"blocks", BlocksJson(**device)}};
  if (!refused.is_operator) {
    json["explanation"] =
        ExplanationJson(**device, request, request.charge.scope);
  }
  return ToC(json);
}

int stratalloc_try(const stratalloc_refusal* refusal,
                   const stratalloc_trial* trials, int count,
                   stratalloc_tried* tried, stratalloc_error* error) {
  const Result<DeviceAllocator*> device = Core::Get().Device(refusal->device);
  if (!device) return ToC(device.error(), error);
  std::vector<Trial> made;
  std::transform(trials, trials + count, std::back_inserter(made), &FromC);
  const Result<std::vector<Tried>> all =
      (*device)->Try(refusal->refused->request, made);
  if (!all) return ToC(all.error(), error);
  for (std::size_t i = 0; i < all->size(); ++i) {
    const Tried& one = (*all)[i];
    tried[i] = {one.missing, one.fits, one.served ? 1 : 0};
  }
  return 0;
}

}  // extern "C"
