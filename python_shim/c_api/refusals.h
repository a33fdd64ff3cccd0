/* SPDX-License-Identifier: Apache-2.0
 *
 * The part of the C face that tells what was refused for want of memory, and
 * what would have been done about it. The contract is c_api.h's.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_REFUSALS_H_
#define STRATALLOC_PYTHON_SHIM_C_API_REFUSALS_H_

#include "python_shim/c_api/c_api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stratalloc_refused stratalloc_refused;

/* A block that nobody got, or an operator that was not run, for want of memory,
 * before the exception is thrown. All of it ends when the listener returns. */
typedef struct {
  int device;
  int is_operator;
  uint64_t bytes; /* asked for; of an operator: of the handles it needs */
  uint64_t stream;
  int lifetime;   /* allocator/base/ids.h */
  uint32_t scope; /* who would have paid */
  int category;
  const char* name;    /* of an operator; else NULL */
  const char* message; /* of the exception, so far */
  const stratalloc_refused* refused;
} stratalloc_refusal;

/* Told of each, on the thread that was refused, with or without the GIL and
 * without a lock of ours; may call what is here and may allocate. Writes into
 * `line`, at most `room` bytes of UTF-8, what the exception says behind its
 * message, and returns how many; what is no UTF-8 of it becomes "?". NULL for
 * nobody; a call that has begun may still be under way then. */
typedef int (*stratalloc_refusal_listener)(const stratalloc_refusal* refusal,
                                           char* line, int room);
STRATALLOC_API void stratalloc_hear_refusals(
    stratalloc_refusal_listener listener);
/* Of a refusal, while its listener runs: "rounded", "owner", "category",
 * "lifetime", "parts": {"total","free","ours","allowed","limit","fraction",
 * "capturing","held"} (allocator/explain/trials.h; "held" is as
 * stratalloc_fragmentation_json), "processes": a list of {"pid","bytes"}
 * (NVML's answer, mostly empty), "staying": the bytes that could not leave,
 * "blocks": a list of {"address","bytes","owner","category"} of the largest
 * live blocks on the device, without those of private pools, and of a refused
 * block "explanation", as stratalloc_explain_json. {"error"} if the driver says
 * no. */
STRATALLOC_API char* stratalloc_refusal_json(const stratalloc_refusal* refusal);

/* What is done before it is asked for again; bytes, or 0 or 1. */
typedef struct {
  uint64_t more_limit, more_card, more_room;
  const uint64_t* frees; /* addresses of blocks that end */
  int count;             /* of them */
  int pools_end, streams_end, graphs_end;
  int unpinned; /* what is pinned, exported or shared may leave */
  int measure;  /* find `fits` */
} stratalloc_trial;
typedef struct {
  uint64_t missing, fits;
  int served;
} stratalloc_tried;
/* Would it have been served then? On copies of the device's blocks
 * (allocator/explain/trials.h), `count` of them; out of `trials` into `tried`.
 * While the refusal's listener runs. */
STRATALLOC_API int stratalloc_try(const stratalloc_refusal* refusal,
                                  const stratalloc_trial* trials, int count,
                                  stratalloc_tried* tried,
                                  stratalloc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_REFUSALS_H_ */
