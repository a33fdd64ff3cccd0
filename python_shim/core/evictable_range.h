/* SPDX-License-Identifier: Apache-2.0
 *
 * What can ever need a restore lies in [lo, hi), over all devices; both 0 while
 * tiering is off or CUDA is not initialised. A tensor outside needs no look;
 * inside lie activations too. Two variables, since the guard reads them before
 * every operator: hi with acquire, then lo.
 */
#ifndef STRATALLOC_PYTHON_SHIM_CORE_EVICTABLE_RANGE_H_
#define STRATALLOC_PYTHON_SHIM_CORE_EVICTABLE_RANGE_H_

#include <stdint.h>

#include "allocator/base/export.h"

#ifdef __cplusplus
extern "C" {
#endif

STRATALLOC_API extern uint64_t stratalloc_evictable_lo;
STRATALLOC_API extern uint64_t stratalloc_evictable_hi;

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_CORE_EVICTABLE_RANGE_H_ */
