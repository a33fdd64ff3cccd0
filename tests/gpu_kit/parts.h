/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of the product as the kit times them: the physical handles that
 * allocator/cuda makes (of the kind that its probe finds), the checksum of
 * tiering/gpu and the pinned slabs of tiering/host. The same object code as in
 * libstratalloc.so behind another C face, because there nothing below a malloc
 * has one. CUDA is found as the product finds it, in what the process loaded.
 *
 * Thread-safety: parts_cycle and parts_free_bytes from any thread; everything
 * else by one thread at a time. Functions that return int return 0, or 1 with
 * the product's own sentence in `error` (NULL is allowed); none throws.
 */
#ifndef STRATALLOC_TESTS_GPU_KIT_PARTS_H_
#define STRATALLOC_TESTS_GPU_KIT_PARTS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PARTS_API __attribute__((visibility("default")))

enum { PARTS_ERROR_BYTES = 1024 };

/* What tells the time, in nanoseconds: the simulated device keeps its own. The
 * steady clock until this is called. */
PARTS_API void parts_use_clock(int64_t (*now_ns)(void));

typedef struct {
  int virtual_memory; /* 0: the device maps no memory, nothing below works */
  int exportable;     /* handles can be given to other processes */
  int rdma;           /* network cards may reach them */
  uint64_t granularity;
  double open_ns, probe_ns;
  char why[PARTS_ERROR_BYTES]; /* why not, "" if all of it */
} parts_device;

/* Opens device 0 as the product does and asks which handles it makes. First of
 * all functions below. */
PARTS_API int parts_open(parts_device* out, char* error);

enum {
  PARTS_PLAIN = 1, /* handles of no special kind, not the product's */
  PARTS_EACH = 2,  /* a grant and an unmap for each mapping */
  PARTS_KEEP = 4   /* handles are made before the clock starts */
};

/* The calls of a cycle, in order. */
enum { PARTS_CREATE, PARTS_MAP, PARTS_ACCESS, PARTS_UNMAP, PARTS_RELEASE };
/* Called before the first call of each kind, outside of what is timed: a kernel
 * may be launched there. NULL for none. */
PARTS_API void parts_before(void (*before)(int call));

/* Total nanoseconds of the calls of one kind in one cycle. */
typedef struct {
  double reserve, create, map, access, unmap, release, free;
  uint64_t used_by_access; /* bytes of the card beyond the handles' own */
  int64_t not_ready;       /* answers 600 of cuMemSetAccess, asked again */
} parts_times;

/* Reserves addresses, makes `mappings` handles of `bytes`, maps them side by
 * side, grants access, unmaps, releases: the product's calls in its order. What
 * was made is taken back whatever fails. */
PARTS_API int parts_cycle(uint64_t bytes, int mappings, int flags,
                          parts_times* out, char* error);
/* Of the card, as the driver says. */
PARTS_API uint64_t parts_free_bytes(void);

/* One mapping of one handle of 2 MiB that stays, for parts_try. */
PARTS_API int parts_hold(uint64_t* address, char* error);
/* Tries the calls that give memory back or take new: one line each, "call:
 * ok" or "call: the driver's answer". At most `size` characters; returns how
 * many there are. After parts_hold, once. */
PARTS_API int parts_try(char* text, int size);
/* parts_try at the very end of the process, written to `path`. Before CUDA is
 * loaded: the C library calls first what was registered last. */
PARTS_API int parts_try_at_exit(const char* path);

/* Loads the checksum's kernel, tries it once, and says what that took. */
PARTS_API int parts_load_checksum(double* ns, uint64_t* used, char* error);
/* Checksums of `count` (at most 64) ranges, in the order of `stream`; returns
 * without waiting. `results` are valid after the stream has been waited for and
 * parts_checksums was not called again. */
PARTS_API int parts_checksums(const uint64_t* addresses, uint64_t bytes,
                              int count, uint64_t stream,
                              const uint64_t** results, char* error);
PARTS_API uint64_t parts_checksum_on_host(const void* data, uint64_t bytes);

/* Is told of the bytes that parts_payload_checksum has read: the simulated
 * device's clock does not see what the host does. Once. */
PARTS_API void parts_use_host_clock(void (*checksummed)(uint64_t bytes));
/* The checksum that a chunk on disk has of its bytes; by the calling thread. */
PARTS_API uint64_t parts_payload_checksum(const void* data, uint64_t bytes);

/* A slab of the host tier: mapped, touched by several threads, registered in
 * steps of at most 1 GiB; and its end. */
PARTS_API int parts_slab(uint64_t bytes, double* made_ns, double* ended_ns,
                         char* error);
/* Registers memory of the caller's with CUDA, and takes that back. */
PARTS_API int parts_register(void* data, uint64_t bytes, double* made_ns,
                             double* ended_ns, char* error);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_TESTS_GPU_KIT_PARTS_H_ */
