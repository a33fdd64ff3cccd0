/* SPDX-License-Identifier: Apache-2.0
 *
 * What is shown of one device over time, as one struct: filled by
 * stratalloc_metrics (c_api.h), read by Python
 * (stratalloc/_native/device_metrics.py), which has the same fields in the same
 * order and refuses another `size`. Bytes, counts and nanoseconds; what "only
 * grows" falls to 0 where the program resets torch's accumulated statistics,
 * and never else.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_DEVICE_METRICS_H_
#define STRATALLOC_PYTHON_SHIM_C_API_DEVICE_METRICS_H_

#include <stdint.h>

enum { STRATALLOC_TIERS = 3, STRATALLOC_CATEGORIES = 9 }; /* base/ids.h */

/* One way between two tiers; only grows (allocator/events/move_counts.h). */
typedef struct {
  uint64_t moves, bytes, ns;
} stratalloc_way;

/* A scope's, of all categories (accounting/ledger.h). */
typedef struct {
  uint64_t scope; /* of stratalloc_scope_name */
  uint64_t most;  /* owned at most, on all tiers together */
  uint64_t tiers[STRATALLOC_TIERS];
  uint64_t evicted, restored, stalls, stall_ns; /* only grow */
} stratalloc_scope_metrics;

typedef struct {
  uint64_t size;   /* of this struct; set by the caller */
  uint64_t opened; /* 0: nobody has allocated there, and what is the device's
                      is 0 */

  uint64_t capacity, limit; /* of the card; what reserved bytes may reach */
  /* torch's, of the device alone */
  uint64_t allocated, requested, active, reserved;
  uint64_t peak_allocated, peak_reserved;
  uint64_t largest_free; /* the largest hole of what is reserved */
  /* reserved = allocated + these (allocator/heap/fragmentation.h) */
  uint64_t pending, stranded, releasable, in_private_pools;
  /* only grow */
  uint64_t allocations, frees, allocated_in_all; /* blocks, blocks, bytes */
  uint64_t driver_allocs, ooms, retries;

  /* Blocks by what they are and where they lie. */
  uint64_t categories[STRATALLOC_CATEGORIES][STRATALLOC_TIERS];
  stratalloc_scope_metrics others; /* than those that are named, as one */
  uint64_t scopes;                 /* of both */

  stratalloc_way ways[STRATALLOC_TIERS][STRATALLOC_TIERS]; /* [from][to] */
  /* Whole handles that are there; [0] is not used. */
  uint64_t below[STRATALLOC_TIERS];
  uint64_t stalls, stall_ns, late; /* only grow */

  /* Of the process, the same of every device. */
  uint64_t host_budget, disk_budget;          /* 0 without tiering */
  uint64_t host_used, host_reserved;          /* pinned memory */
  uint64_t events, overwritten, without_ring; /* of the rings; only grow */
  uint64_t names_lost, stacks_lost;           /* likewise */
} stratalloc_device_metrics;

#endif /* STRATALLOC_PYTHON_SHIM_C_API_DEVICE_METRICS_H_ */
