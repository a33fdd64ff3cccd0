// SPDX-License-Identifier: Apache-2.0
#include "python_shim/c_api/explanation_json.h"

#include <string>

#include "accounting/category.h"
#include "accounting/ledger.h"
#include "accounting/scope_table.h"
#include "python_shim/c_api/to_c.h"

namespace stratalloc {

nlohmann::json BlockJson(const BlockView& block) {
  return {{"address", block.address},
          {"bytes", block.bytes},
          {"owner", ScopeName(block.charge.scope)},
          {"category", CategoryName(block.charge.category)}};
}

namespace {

nlohmann::json HoleJson(const Hole& hole) {
  return {{"address", hole.address},
          {"bytes", hole.bytes},
          {"free", hole.free},
          {"blocks", hole.blocks},
          {"stream", Raw(hole.pool.stream)},
          {"lifetime", LifetimeName(hole.pool.lifetime)},
          {"private_pool", hole.pool.owner.is_private()},
          {"oldest", BlockJson(hole.oldest)},
          {"age", hole.age}};
}

nlohmann::json ToJson(const Explanation& said) {
  nlohmann::json frees = nlohmann::json::array();
  for (const BlockView& block : said.frees) frees.push_back(BlockJson(block));
  return {{"size", said.requested},
          {"block", said.by == ServedBy::kNothing ? said.size : said.block},
          {"served_by", ServedByName(said.by)},
          {"certain", said.certain()},
          {"depends_on", DoubtText(said.doubt)},
          {"leaves", said.leaves},
          {"may_leave", said.may_leave},
          {"room_needed", said.leaves},
          {"room_below", said.room_below},
          {"missing", said.missing},
          {"limit_helps", said.limit_helps},
          {"remedy", said.Remedy()},
          {"frees", frees}};
}

// A scope's limit is asked twice, as a malloc does (device_ladder.cc): before
// any memory is looked for, and of the block that is found.
nlohmann::json WithScopeLimit(DeviceIndex device, ScopeId payer,
                              const Explanation& said) {
  for (const Bytes bytes : {said.size, said.block}) {
    const Status may = Ledger::Get().MayOwn(device, payer, bytes);
    if (may) continue;
    // Nothing is looked for on its behalf, and nothing else would help.
    Explanation refused;
    refused.requested = said.requested;
    refused.size = said.size;
    refused.doubt = bytes == said.size ? Doubt::kNone : said.doubt;
    nlohmann::json json = ToJson(refused);
    json["served_by"] = "limit";
    json["remedy"] = may.error().message;
    return json;
  }
  return ToJson(said);
}

}  // namespace

nlohmann::json FragmentationJson(const Fragmentation& found) {
  nlohmann::json holes = nlohmann::json::array();
  for (const Hole& hole : found.holes) holes.push_back(HoleJson(hole));
  return {{"reserved", found.reserved},
          {"allocated", found.allocated},
          {"rounding", found.rounding},
          {"pending", found.pending},
          {"stranded", found.stranded},
          {"separated", found.separated},
          {"releasable", found.releasable},
          {"in_private_pools", found.in_private_pools},
          {"holes", holes}};
}

nlohmann::json ExplanationJson(DeviceAllocator& device,
                               const MallocRequest& request, ScopeId payer) {
  const Result<Explanation> said = device.Explain(request);
  if (!said) return {{"error", said.error().message}};
  return WithScopeLimit(device.device().index(), payer, *said);
}

char* ToC(const nlohmann::json& json) {
  return ToC(
      json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace stratalloc
