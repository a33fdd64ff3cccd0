// SPDX-License-Identifier: Apache-2.0
// C API: what was allocated where.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "accounting/category.h"
#include "accounting/site_sampler.h"
#include "accounting/site_table.h"
#include "accounting/stack_table.h"
#include "python_shim/c_api/to_c.h"
#include "python_shim/core/core.h"

namespace stratalloc {
namespace {

// As the report's layers, so that who reads those reads these.
nlohmann::json RowJson(const SiteBytes& row) {
  return {{"owner", SiteName(row.site)},
          {"category", CategoryName(row.category)},
          {"live", row.on[0] + row.on[1] + row.on[2]},
          {"blocks", row.blocks},
          {"device", row.on[0]},
          {"host", row.on[1]},
          {"disk", row.on[2]}};
}

// Of stacks with the same line one row.
std::vector<SiteBytes> ByLine(const std::vector<SiteBytes>& rows) {
  std::map<std::pair<SiteId, Category>, SiteBytes> lines;
  for (const SiteBytes& row : rows) {
    const SiteId line = LineOf(row.site);
    SiteBytes& to = lines[{line, row.category}];
    to.site = line;
    to.category = row.category;
    to.blocks += row.blocks;
    for (int tier = 0; tier < kTiers; ++tier) to.on[tier] += row.on[tier];
  }
  std::vector<SiteBytes> found;
  for (const auto& [key, row] : lines) found.push_back(row);
  return found;
}

// File names are bytes: what is no UTF-8 is replaced, never an exception.
char* Dump(const nlohmann::json& values) {
  return ToC(
      values.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace
}  // namespace stratalloc

using namespace stratalloc;  // the C face of this namespace

extern "C" {

void stratalloc_find_sites(stratalloc_site_finder find_site,
                           stratalloc_stack_finder find_stack) {
  Core::Get().UseFinders(find_site, find_stack);
}

uint32_t stratalloc_stack_frame(const char* text, int bytes, int own) {
  return InternFrame({text, static_cast<std::size_t>(bytes)}, own != 0);
}

uint32_t stratalloc_stack_call(uint32_t caller, uint32_t frame) {
  return Raw(InternCall(SiteId{caller}, frame));
}

char* stratalloc_sites_json(int device) {
  const bool recorded = RecordsSites(Core::Get().telemetry());
  nlohmann::json values = {{"recorded", recorded}};
  if (!recorded || !Core::Get().initialized()) return Dump(values);
  const Result<DeviceAllocator*> opened = Core::Get().Opened(device);
  if (!opened) return Dump({{"error", opened.error().message}});
  const SiteCounts counts = CountSites();
  values["interval"] = kSiteInterval;
  values["distinct"] = counts.distinct;
  values["refused"] = counts.refused;
  const StackCounts stacks = CountStacks();
  values["calls"] = stacks.calls;
  values["calls_refused"] = stacks.refused;
  values["rows"] = nlohmann::json::array();
  if (*opened != nullptr) {
    for (const SiteBytes& row : ByLine((*opened)->Sites())) {
      values["rows"].push_back(RowJson(row));
    }
  }
  return Dump(values);
}

}  // extern "C"
