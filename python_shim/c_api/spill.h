/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the C face for host memory in a spill file
 * (tiering/io/host_spill.h), which needs neither CUDA nor
 * stratalloc_configure. The contract is c_api.h's.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_SPILL_H_
#define STRATALLOC_PYTHON_SHIM_C_API_SPILL_H_

#include "python_shim/c_api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stratalloc_spill stratalloc_spill;

/* `directory`: "" for $TMPDIR or /tmp; `codec`: "off", "lz4" or "zstd".
 * STRATALLOC_INVALID_ARGUMENT: there is no such codec, or the quota holds
 * nothing; STRATALLOC_IO_ERROR: no file can be made there. */
STRATALLOC_API int stratalloc_spill_open(const char* directory, uint64_t quota,
                                         const char* codec,
                                         stratalloc_spill** spill,
                                         stratalloc_error* error);
/* Any bytes at any address, which nobody changes meanwhile; 0 bytes, too. */
STRATALLOC_API int stratalloc_spill_write(stratalloc_spill* spill,
                                          const void* data, uint64_t bytes,
                                          uint64_t* ticket,
                                          stratalloc_error* error);
/* All of them, verified. STRATALLOC_CORRUPT: they are not what was written. */
STRATALLOC_API int stratalloc_spill_read(stratalloc_spill* spill,
                                         uint64_t ticket, void* to,
                                         uint64_t bytes,
                                         stratalloc_error* error);
STRATALLOC_API int stratalloc_spill_free(stratalloc_spill* spill,
                                         uint64_t ticket,
                                         stratalloc_error* error);
/* Bytes held, what of the quota they take, and bytes ever written. */
STRATALLOC_API void stratalloc_spill_count(stratalloc_spill* spill,
                                           uint64_t* used, uint64_t* stored,
                                           uint64_t* written);
/* Waits for who is at it and closes the file; later calls are
 * STRATALLOC_SHUTDOWN, as all are in the child of a fork. */
STRATALLOC_API void stratalloc_spill_close(stratalloc_spill* spill);
/* Once nobody calls anything else with it any more; closes it. */
STRATALLOC_API void stratalloc_spill_delete(stratalloc_spill* spill);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_SPILL_H_ */
