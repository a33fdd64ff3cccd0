// SPDX-License-Identifier: Apache-2.0
#include "accounting/site_table.h"

#include <deque>
#include <unordered_map>

#include "allocator/base/mutex.h"
#include "allocator/events/event_recorder.h"

namespace stratalloc {
namespace {

struct SiteTable {
  Mutex mutex{LockRank::kScopes};
  // A deque: `ids` keeps views of the texts, which must not move.
  std::deque<std::string> texts GUARDED_BY(mutex){
      "(not sampled)", "(other sites)", "(no Python frame)"};
  std::unordered_map<std::string_view, SiteId> ids GUARDED_BY(mutex);
  std::uint64_t refused GUARDED_BY(mutex) = 0;

  // Of the lines, without the rows that are none.
  std::uint32_t Distinct() REQUIRES(mutex) {
    return static_cast<std::uint32_t>(ids.size());
  }
};

SiteTable& GetSiteTable() {
  static SiteTable* const table =
      new SiteTable();  // read until the process ends
  return *table;
}

}  // namespace

std::string_view CutSiteText(std::string_view text) {
  if (text.size() <= kMostSiteText) return text;
  std::size_t end = kMostSiteText;
  // Back to where a character begins.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) {
    --end;
  }
  return text.substr(0, end);
}

SiteId InternSite(std::string_view text) {
  if (text.empty()) return kNoPythonFrame;
  text = CutSiteText(text);
  SiteTable& table = GetSiteTable();
  MutexLock lock(table.mutex);
  const auto found = table.ids.find(text);
  if (found != table.ids.end()) return found->second;
  if (table.Distinct() == kMostSites) {
    ++table.refused;
    return kOtherSites;
  }
  const auto id =
      static_cast<SiteId>(static_cast<std::uint32_t>(table.texts.size()));
  table.texts.emplace_back(text);
  table.ids.emplace(table.texts.back(), id);
  EventRecorder::Name(NameKind::kSite, Raw(id), text);
  return id;
}

std::string SiteName(SiteId site) {
  SiteTable& table = GetSiteTable();
  MutexLock lock(table.mutex);
  const std::uint32_t index = Raw(site);
  if (index < table.texts.size()) return table.texts[index];
  return "site #" + std::to_string(index);
}

SiteCounts CountSites() {
  SiteTable& table = GetSiteTable();
  MutexLock lock(table.mutex);
  return {table.Distinct(), table.refused};
}

}  // namespace stratalloc
