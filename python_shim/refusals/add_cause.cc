// SPDX-License-Identifier: Apache-2.0
#include "python_shim/refusals/add_cause.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "accounting/scope_text.h"
#include "allocator/state/settings.h"
#include "python_shim/core/core.h"
#include "python_shim/refusals/cause.h"

namespace stratalloc {
namespace {

std::vector<RefusalFacts::Holder> HoldersOn(DeviceIndex device) {
  std::vector<RefusalFacts::Holder> holders;
  for (const LedgerRow& row : Ledger::Get().Rows()) {
    const Bytes bytes =
        row.tier_bytes[static_cast<std::size_t>(TierId::kDevice)];
    if (row.device != device || bytes == 0) continue;
    holders.push_back({.name = ScopeText(row.charge.scope),
                       .category = row.charge.category,
                       .bytes = bytes,
                       .named = row.charge.scope != kRootScope});
  }
  std::stable_sort(
      holders.begin(), holders.end(),
      [](const auto& a, const auto& b) { return a.bytes > b.bytes; });
  return holders;
}

RefusalFacts::Tiering TieringOf(const DeviceAllocator& device) {
  const Engine* const engine = Core::Get().engine();
  if (engine == nullptr) return RefusalFacts::Tiering::kOff;
  if (engine->off()) return RefusalFacts::Tiering::kEnded;
  return engine->WhyNot(device).empty() ? RefusalFacts::Tiering::kOn
                                        : RefusalFacts::Tiering::kRefused;
}

// By how much the tiers below lack room for what a malloc would evict.
Bytes RoomLacking(DeviceAllocator& device, const RefusedRequest& refused) {
  if (refused.is_operator) return 0;
  const Result<Explanation> said = device.Explain(refused.request);
  if (!said || said->has_room() ||
      (said->by != ServedBy::kEviction && said->by != ServedBy::kHeadroom)) {
    return 0;
  }
  return said->leaves - said->room_below;
}

}  // namespace

void AddCause(Error* error, DeviceAllocator& device,
              const RefusedRequest& refused) {
  if (error->code != ErrorCode::kOutOfMemory) return;
  Result<MemoryParts> parts = device.Parts();
  if (!parts) return;
  const Bytes size = refused.request.size;
  RefusalFacts facts;
  facts.is_operator = refused.is_operator;
  facts.asks = refused.request.charge.scope;
  facts.asked = refused.is_operator ? size : Settings::Get().Round(size);
  facts.parts = *std::move(parts);
  facts.tiering = TieringOf(device);
  const Config& config = Core::Get().config();
  facts.gpu_limit = config.device.gpu_limit;
  facts.tiers_below = config.engine.lower.host_budget > 0 ||
                      config.engine.lower.disk_budget > 0;
  facts.stays = device.Stays();
  facts.staying = device.StayingBytes();
  facts.holders = HoldersOn(device.device().index());
  facts.processes = ProcessesOn(device.device().index());
  facts.own_pid = static_cast<unsigned>(getpid());
  if (facts.tiering == RefusalFacts::Tiering::kOn) {
    facts.room_lacking = RoomLacking(device, refused);
  }
  const std::string cause = RefusalCause(facts, [&](const Trial& trial) {
    const Result<std::vector<Tried>> tried = device.Try(refused, {&trial, 1});
    return tried ? tried->front() : Tried{};
  });
  if (cause.empty()) return;
  error->message += (error->message.ends_with('.') ? " " : ". ") + cause;
}

}  // namespace stratalloc
