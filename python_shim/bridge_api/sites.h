// SPDX-License-Identifier: Apache-2.0
// Sites: which line of the program asks for a block, for mallocs that are
// sampled (accounting/site_sampler.h), or at the level `full` of every malloc
// the whole stack. For threads and failure see setup.h;
// nothing here fails.
#ifndef STRATALLOC_PYTHON_SHIM_BRIDGE_API_SITES_H_
#define STRATALLOC_PYTHON_SHIM_BRIDGE_API_SITES_H_

#include "allocator/base/bytes.h"
#include "allocator/base/export.h"
#include "allocator/base/ids.h"

namespace stratalloc::core {

// Is the telemetry level `callsites` or above? Else nobody need call the rest.
STRATALLOC_API bool RecordsSites();
// Is a malloc of so many bytes that this thread is about to make sampled?
STRATALLOC_API bool SampleMalloc(Bytes size);
// The line or stack that this thread runs, or whose backward it computes. May
// take the GIL: no lock is held.
STRATALLOC_API SiteId FindSite();
// Whose the mallocs of this thread are from now on; returns whose they were.
STRATALLOC_API SiteId ExchangeSite(SiteId site);

}  // namespace stratalloc::core

#endif  // STRATALLOC_PYTHON_SHIM_BRIDGE_API_SITES_H_
