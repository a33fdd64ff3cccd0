// SPDX-License-Identifier: Apache-2.0
// Whole stacks of calls, interned: at the telemetry level `full` a malloc keeps
// not only its line but who called that. A stack is known by its innermost
// call, a pair of caller and frame; callers are calls themselves, so that
// stacks share what they have in common.
//
//   main.py:9 main  <-  net.py:20 forward  <-  linear.py:5 forward
//        caller             caller                  the stack's number
//
// Numbers of calls are SiteIds beyond those of lines (site_table.h), so that a
// block and an event have one field for either; both fit 16 bits together.
// Equation: a call's line is its own frame's if that is the user's, else its
// caller's; the outermost frame's where none is the user's.
//
// Bounded: kMostCalls of calls and as many frames, some 10 MiB; a stack that
// would need more has no number, which is counted here and in the event area.
//
// Thread-safety: all; kScopes lock inside (leaf). Never called with a lock that
// ranks as high, nor by a free. Lifetime: the process's, and only grows.
// Failure: none.
#ifndef STRATALLOC_ACCOUNTING_STACK_TABLE_H_
#define STRATALLOC_ACCOUNTING_STACK_TABLE_H_

#include <cstdint>
#include <string_view>

#include "accounting/site_table.h"
#include "allocator/base/ids.h"

namespace stratalloc {

// Beyond every line's.
inline constexpr SiteId kFirstCall{Raw(kNoPythonFrame) + 1 + kMostSites};
inline constexpr std::uint32_t kMostCalls = 0x10000 - Raw(kFirstCall);
static_assert(kMostCalls > kMostSites, "Event::site has room for both");

// A frame: "/path/to/file.py:123 function", cut as a site's text. 0: no number
// was left.
using FrameNumber = std::uint32_t;

// Same text, same number. `own`: the user's, of no library.
FrameNumber InternFrame(std::string_view text, bool own);
// `frame` called by `caller`, kNoSite for nobody. kNoSite if no number is left,
// of the call or of its frame.
SiteId InternCall(SiteId caller, FrameNumber frame);

// The user's line of a call; a line's is itself.
SiteId LineOf(SiteId site);

struct StackCounts {
  std::uint32_t calls = 0;
  std::uint64_t refused = 0;  // how often none was left
};
StackCounts CountStacks();

// Names all calls in the event rings, for those from before there was an area.
void NameCalls();

}  // namespace stratalloc

#endif  // STRATALLOC_ACCOUNTING_STACK_TABLE_H_
