// SPDX-License-Identifier: Apache-2.0
// The site of the malloc that this thread makes: whoever samples it finds the
// line before any lock is taken, since that may need Python's GIL, says it here
// for the length of the call, and then says again what was here before: a
// malloc may come from inside another one (a callback of the ladder).
//
// This thread's alone, no lock. kNoSite: it is not sampled. Read only while
// sites are recorded (DeviceAllocator::RecordSites).
#ifndef STRATALLOC_ALLOCATOR_STATE_THREAD_SITE_H_
#define STRATALLOC_ALLOCATOR_STATE_THREAD_SITE_H_

#include "allocator/base/ids.h"
#include "allocator/base/thread_local.h"

namespace stratalloc {

inline STRATALLOC_FAST_THREAD_LOCAL SiteId thread_site = kNoSite;

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_STATE_THREAD_SITE_H_
