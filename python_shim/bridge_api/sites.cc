// SPDX-License-Identifier: Apache-2.0
#include "python_shim/bridge_api/sites.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "accounting/site_sampler.h"
#include "accounting/site_table.h"
#include "allocator/state/thread_site.h"
#include "python_shim/core/core.h"

namespace stratalloc::core {
namespace {

STRATALLOC_FAST_THREAD_LOCAL bool finding = false;

// Whether the thread runs a node of backward that belongs to a scope. Threads
// of autograd have no frame of Python while they run a node of C++, and frames
// of libraries alone while they run a library's Function.
bool IsInBackward() {
  const ScopeFrame frame = CurrentScope();
  return frame.in_backward && frame.scope != kRootScope;
}

SiteId SiteWithoutFrame() {
  if (!IsInBackward()) return kNoPythonFrame;
  return InternSite("(backward of " + ScopeName(CurrentScope().scope) + ")");
}

}  // namespace

bool RecordsSites() {
  return stratalloc::RecordsSites(Core::Get().telemetry());
}

bool SampleMalloc(Bytes size) {
  return RecordsStacks(Core::Get().telemetry()) ||
         SiteSampler::ThisThread().Take(size);
}

SiteId FindSite() {
  // To find a line may collect garbage, and what is collected may allocate:
  // those mallocs are not asked about, or this would not end.
  Core& core = Core::Get();
  const Core::SiteFinder find = core.site_finder();
  if (find == nullptr || finding) return SiteWithoutFrame();
  finding = true;
  const Core::StackFinder find_stack =
      RecordsStacks(core.telemetry()) ? core.stack_finder() : nullptr;
  char text[kMostSiteText + 8];  // a character more, and its end
  int bytes = 0;
  SiteId stack = kNoSite;
  if (find_stack == nullptr || IsInBackward()) {
    bytes = find(text, static_cast<int>(sizeof(text)));
  }
  const bool unnamed = bytes < 0 && IsInBackward();
  if (find_stack != nullptr && !unnamed) {
    stack = SiteId{find_stack()};
    if (stack == kNoSite) bytes = find(text, static_cast<int>(sizeof(text)));
  }
  finding = false;
  if (stack != kNoSite) return stack;
  if (bytes == 0 || unnamed) return SiteWithoutFrame();
  return InternSite({text, static_cast<std::size_t>(std::abs(bytes))});
}

SiteId ExchangeSite(SiteId site) { return std::exchange(thread_site, site); }

}  // namespace stratalloc::core
