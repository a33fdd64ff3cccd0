/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the C face for rules of single tensors: where their memory may
 * lie. The contract is c_api.h's.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_RULES_H_
#define STRATALLOC_PYTHON_SHIM_C_API_RULES_H_

#include "python_shim/c_api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the blocks that hold these ranges may lie below the device until they
 * are freed or get another rule. `packing` of their chunks on disk: 0 none, 1
 * lz4, 2 zstd, 3 as the setting says, another number is
 * STRATALLOC_INVALID_ARGUMENT; in one handle the fastest of several counts.
 * What lies where it may not goes down or comes back; if there is no room for
 * that (STRATALLOC_OUT_OF_MEMORY on the device) the rules are as they were, and
 * nothing lies where they do not let it. 0 where nothing leaves. */
STRATALLOC_API int stratalloc_tier_rule(int device,
                                        const stratalloc_range* ranges,
                                        int count, int host, int disk,
                                        int packing, stratalloc_error* error);

/* How the block that holds an address lies, for who would give its bytes
 * another place. */
typedef struct {
  int lifetime;   /* allocator/base/ids.h; -1: no block of ours is there */
  uint32_t scope; /* who pays for it, and as what */
  int category;
  /* Somebody has its address, so that its bytes cannot go to another one: a
   * pin, but that of data_ptr(), or a CUDA graph. */
  int held;
  /* A CUDA graph is captured on some device: nothing can be waited for. */
  int capturing;
  uint64_t stream; /* of its pool: the value of the cudaStream_t */
} stratalloc_placement;
STRATALLOC_API int stratalloc_placement_of(uint64_t address,
                                           stratalloc_placement* out,
                                           stratalloc_error* error);

/* The streams that record_stream() was called for on the block that holds
 * `from` are recorded on that of `to`, too, which is of the same device.
 * STRATALLOC_NOT_FOUND if one of them is no block of ours. */
STRATALLOC_API int stratalloc_record_streams_of(uint64_t from, uint64_t to,
                                                stratalloc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_RULES_H_ */
