// SPDX-License-Identifier: Apache-2.0
#include "python_shim/core_api/sites.h"

#include <string>
#include <utility>

#include "accounting/scope_stack.h"
#include "accounting/scope_table.h"
#include "accounting/site_sampler.h"
#include "accounting/site_table.h"
#include "allocator/thread_site.h"
#include "python_shim/core.h"

namespace stratalloc::core {
namespace {

STRATALLOC_FAST_THREAD_LOCAL bool finding = false;

// No thread of autograd's has a frame of Python's while it runs a node of C++.
SiteId SiteWithoutFrame() {
  const ScopeFrame frame = CurrentScope();
  if (!frame.in_backward || frame.scope == kRootScope) return kNoPythonFrame;
  return InternSite("(backward of " + ScopeName(frame.scope) + ")");
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
  const stratalloc_site_finder find = core.site_finder();
  if (find == nullptr || finding) return SiteWithoutFrame();
  finding = true;
  const stratalloc_stack_finder find_stack =
      RecordsStacks(core.telemetry()) ? core.stack_finder() : nullptr;
  const SiteId stack{find_stack != nullptr ? find_stack() : 0};
  char text[kMostSiteText + 8];  // a character more, and its end
  const int bytes =
      stack == kNoSite ? find(text, static_cast<int>(sizeof(text))) : 0;
  finding = false;
  if (stack != kNoSite) return stack;
  if (bytes <= 0) return SiteWithoutFrame();
  return InternSite({text, static_cast<std::size_t>(bytes)});
}

SiteId ExchangeSite(SiteId site) { return std::exchange(thread_site, site); }

}  // namespace stratalloc::core
