// SPDX-License-Identifier: Apache-2.0
// The lines that allocate, interned: a SiteId is an index that never changes
// its meaning while the process lives. Texts are the finder's,
// "/path/to/file.py:123 function".
//
// Bounded: the first kMostSites lines have an id of their own, about 3 MiB of
// texts; any that comes later is kOtherSites and counted. A text is cut at
// kMostSiteText bytes, between two characters of UTF-8.
//
// Thread-safety: all; kScopes lock inside (leaf). Never called with a lock that
// ranks as high, nor by a free. Lifetime: the process's, and only grows.
// Failure: none.
#ifndef STRATALLOC_ACCOUNTING_SITE_TABLE_H_
#define STRATALLOC_ACCOUNTING_SITE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "allocator/base/ids.h"

namespace stratalloc {

inline constexpr std::uint32_t kMostSites = 16384;
inline constexpr std::size_t kMostSiteText = 512;

// "(not sampled)" is kNoSite.
inline constexpr SiteId kOtherSites{1};     // "(other sites)": no id was left
inline constexpr SiteId kNoPythonFrame{2};  // "(no Python frame)"

// At most kMostSiteText bytes of it.
std::string_view CutSiteText(std::string_view text);
// Same text, same id; kNoPythonFrame of an empty one.
SiteId InternSite(std::string_view text);
// "site #N" for an id that never was.
std::string SiteName(SiteId site);

struct SiteCounts {
  std::uint32_t distinct = 0;  // with an id of their own
  std::uint64_t refused = 0;   // how often none was left
};
SiteCounts CountSites();

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_SITE_TABLE_H_
