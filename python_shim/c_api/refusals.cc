// SPDX-License-Identifier: Apache-2.0
// C API: what was refused, and what would have been done about it.
#include "python_shim/c_api/refusals.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "accounting/category.h"
#include "accounting/scope_table.h"
#include "accounting/scope_text.h"
#include "allocator/cuda/nvml.h"
#include "allocator/state/settings.h"
#include "python_shim/c_api/explanation_json.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"
#include "python_shim/refusals/refusals.h"

// What a stratalloc_refusal is of.
struct stratalloc_refused {
  const stratalloc::RefusedRequest& request;
};

namespace stratalloc {
namespace {

constinit std::atomic<stratalloc_refusal_listener> c_listener{nullptr};

// The listener of Refusals, for as long as there is one of C.
std::string AskListener(int device, const RefusedRequest& refused,
                        const char* name, const std::string& message) {
  const stratalloc_refusal_listener listener =
      c_listener.load(std::memory_order_acquire);
  if (listener == nullptr) return "";
  const MallocRequest& request = refused.request;
  const stratalloc_refused handle{refused};
  const stratalloc_refusal refusal{
      .device = device,
      .is_operator = refused.is_operator ? 1 : 0,
      .bytes = request.size,
      .stream = Raw(request.stream),
      .lifetime = static_cast<int>(request.lifetime),
      .scope = Raw(request.charge.scope),
      .category = static_cast<int>(request.charge.category),
      .name = name,
      .message = message.c_str(),
      .refused = &handle};
  // A path is in it, which has 4096 bytes at most.
  std::array<char, 8192> line;
  const int room = static_cast<int>(line.size());
  const int bytes = std::clamp(listener(&refusal, line.data(), room), 0, room);
  // Of what is no text Python would make another exception than this one.
  return Utf8(std::string_view(line.data(), static_cast<std::size_t>(bytes)));
}

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

Trial TrialFromC(const stratalloc_trial& trial) {
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
  c_listener.store(listener, std::memory_order_release);
  Refusals::Hear(listener == nullptr ? nullptr : &AskListener);
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
  std::transform(trials, trials + count, std::back_inserter(made), &TrialFromC);
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
