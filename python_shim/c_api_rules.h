/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the C face for rules of single tensors: where their memory may
 * lie. The contract is c_api.h's.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_RULES_H_
#define STRATALLOC_PYTHON_SHIM_C_API_RULES_H_

#include "python_shim/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where the blocks that hold these ranges may lie below the device until they
 * are freed or get another rule. `packing` of their chunks on disk: 0 none, 1
 * lz4, 2 zstd, 3 as the setting says. What lies where it may not goes down or
 * comes back; STRATALLOC_OUT_OF_MEMORY if there is no room for that, and then
 * the rules are as they were. 0 where nothing leaves. */
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
} stratalloc_placement;
STRATALLOC_API int stratalloc_placement_of(uint64_t address,
                                           stratalloc_placement* out,
                                           stratalloc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_RULES_H_ */
