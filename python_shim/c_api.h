/* SPDX-License-Identifier: Apache-2.0
 *
 * The C face of libstratalloc.so: everything the torch bridge, the scopes
 * extension and the Python package may call. Plain C types only, so that one
 * core serves every torch minor and every Python.
 *
 * Contract for every function: callable from any thread, with or without the
 * GIL; never throws. Functions that take a `stratalloc_error*` return 0 on
 * success, else the error's code (ErrorCode of allocator/base/result.h) with
 * a message in *error; the pointer may be NULL. Strings returned as char* are
 * released with stratalloc_string_free.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_H_
#define STRATALLOC_PYTHON_SHIM_C_API_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define STRATALLOC_API __attribute__((visibility("default")))

/* torch.cuda.memory.CUDAPluggableAllocator looks "stratalloc_malloc" and
 * "stratalloc_free" up in the bridge, with torch's own signatures
 * (torch_bridge/pluggable.h). The two functions of those names here have other
 * symbols, so that neither library can ever find the other's. */
#define STRATALLOC_SYMBOL(name) __asm__(name)

enum {
  STRATALLOC_OUT_OF_MEMORY = 1,
  STRATALLOC_INVALID_ARGUMENT = 2,
  STRATALLOC_NOT_FOUND = 3,
  STRATALLOC_UNSUPPORTED = 4,
  STRATALLOC_DEVICE_ERROR = 5,
  STRATALLOC_IO_ERROR = 6,
  STRATALLOC_CORRUPT = 7,
  STRATALLOC_HOST_OUT_OF_MEMORY = 8,
  STRATALLOC_SHUTDOWN = 9
};

typedef struct {
  int code;
  char message[2048];
} stratalloc_error;

/* ---- set-up ------------------------------------------------------------ */

/* The fields of Config (stratalloc/settings.py) in its order, every default
 * filled in, and one more. */
typedef struct {
  int tiering;          /* 1 = on */
  uint64_t gpu_limit;   /* bytes per device; 0 = the card's memory */
  uint64_t host_budget; /* bytes of pinned memory; 0 = no host tier */
  /* Bytes of spill file; 0 = no disk. Both 0: no tiering. */
  uint64_t disk_budget;
  const char* disk_dir; /* "" = $TMPDIR or /tmp */
  double gpu_offload_threshold;
  double gpu_emergency_threshold;
  double gpu_reload_threshold;
  double cpu_offload_threshold;
  /* 1: the thresholds act from the start, not from the first request that could
   * not be served. */
  int eager_offload;
  int telemetry; /* 0 off, 1 counters, 2 events, 3 callsites, 4 full */
  /* 1: what somebody asked for, which the memory that the machine has available
   * does not overrule; 0: worked out from the machine. */
  int host_budget_is_given;
} stratalloc_config;

/* Before stratalloc_init; again before it replaces the earlier values. */
STRATALLOC_API int stratalloc_configure(const stratalloc_config* config,
                                        stratalloc_error* error);
/* CUDA was initialised with so many devices. Opens none of them: a device is
 * opened by the first allocation on it, the first private pool, memory of
 * another process or peer access. Whoever asks about a device that is not
 * opened gets zeros; what is set for it holds when it is. Idempotent. */
STRATALLOC_API int stratalloc_init(int device_count, stratalloc_error* error);
/* Where torch keeps the options of PYTORCH_ALLOC_CONF, which are read at every
 * use. The getters may be called under locks. */
typedef struct {
  const size_t* divisions; /* 16 of them */
  uint64_t (*max_split_size)(void);
  uint64_t (*max_non_split_rounding)(void);
  uint64_t (*large_segment_size)(void);
  double (*collection_threshold)(void);
  /* The program said expandable_segments:False. */
  bool (*plain_segments)(void);
  /* Frees memory that others were done with; whether there was any. Called
   * without a lock whenever nothing cached serves a malloc. */
  int (*free_memory)(void);
} stratalloc_settings;
STRATALLOC_API void stratalloc_use_settings(
    const stratalloc_settings* settings);
/* Who knows the workspaces of libraries (allocator/workspaces.h): `list` calls
 * each(context, address) for the base of every one and returns 0 if it cannot
 * tell now. Called without the device lock, from any thread. NULL for none. */
STRATALLOC_API void stratalloc_use_workspaces(
    int (*list)(void (*each)(void* context, void* address), void* context));
STRATALLOC_API int stratalloc_initialized(void);
STRATALLOC_API int stratalloc_device_count(void);    /* 0 before init */
STRATALLOC_API const char* stratalloc_version(void); /* static string */
/* Bytes of memory that the machine has or the container of this process allows,
 * and what of it may still be touched (tiering/host/memory_limit.h); UINT64_MAX
 * if nobody says. `root` stands before /proc and /sys/fs/cgroup: "", or a
 * test's own. Before stratalloc_init, too. */
STRATALLOC_API void stratalloc_host_memory(const char* root, uint64_t* total,
                                           uint64_t* available);
STRATALLOC_API void stratalloc_string_free(char* text);

/* ---- blocks ------------------------------------------------------------ */

/* What the caller knows about the running autograd node. */
enum {
  STRATALLOC_HINT_NONE = 0,
  STRATALLOC_HINT_BACKWARD = 1, /* inside a backward node */
  STRATALLOC_HINT_GRADIENT = 2, /* ... that feeds an AccumulateGrad */
  /* a raw pointer that no operator will name: must never be evicted */
  STRATALLOC_HINT_UNSEEN = 3,
  /* a copy of memory that may leave: may leave too, whatever the scope */
  STRATALLOC_HINT_COPY = 4,
  /* a library's own memory, no tensor's: apart from what may leave */
  STRATALLOC_HINT_SCRATCH = 5
};

typedef struct {
  void* ptr;
  uint64_t bytes;     /* the block's rounded size */
  uint64_t allocated; /* allocated_bytes of the device afterwards */
  uint64_t reserved;  /* reserved_bytes of the device afterwards */
  int device;
} stratalloc_block;

/* size 0 gives ptr = NULL. On STRATALLOC_OUT_OF_MEMORY the message is
 * native's whole text ("CUDA out of memory. Tried to allocate ..."). */
STRATALLOC_API int stratalloc_malloc(int device, uint64_t size, uint64_t stream,
                                     int hint, stratalloc_block* out,
                                     stratalloc_error* error)
    STRATALLOC_SYMBOL("stratalloc_core_malloc");
/* For deleters: never fails. An unknown pointer or a double free is reported
 * once per pointer, with the owner it last had, and ignored: returns
 * STRATALLOC_NOT_FOUND; *out (may be NULL) describes the freed block. */
STRATALLOC_API int stratalloc_free(void* ptr, stratalloc_block* out)
    STRATALLOC_SYMBOL("stratalloc_core_free");
/* Is ptr the base of a live block of ours? (raw_delete asks first.) */
STRATALLOC_API int stratalloc_owns(const void* ptr);
/* Does this address lie in memory or address space of ours? */
STRATALLOC_API int stratalloc_holds(uint64_t address);
/* Who keeps time (a simulated device) is told what the host does that no call
 * of CUDA shows: a thread computed a checksum of so many bytes; whoever waits
 * for `token` may go on; the calling thread waited for it and goes on. Called
 * under any lock of ours, from any thread, to the end of the process; may take
 * none of ours. The last call counts. */
STRATALLOC_API void stratalloc_listen_to_host(
    void (*checksummed)(uint64_t bytes), void (*let_go)(uint64_t token),
    void (*went_on)(uint64_t token));
/* Somebody else made `stream` and may destroy it: from now on nobody asks it
 * anything of whom it is not an argument. */
STRATALLOC_API void stratalloc_external_stream(uint64_t stream);
/* PyTorch made `stream`, and nobody destroys it, whatever was said before. */
STRATALLOC_API void stratalloc_lasting_stream(uint64_t stream);
/* `device` is the stream's, which need not be the block's: default streams of
 * all devices are 0. */
STRATALLOC_API int stratalloc_record_stream(void* ptr, int device,
                                            uint64_t stream,
                                            stratalloc_error* error);
/* Base and size of the segment range that holds ptr (native's rule). */
STRATALLOC_API int stratalloc_base_allocation(void* ptr, void** base,
                                              uint64_t* bytes,
                                              stratalloc_error* error);
STRATALLOC_API int stratalloc_empty_cache(int device /* -1 = all */,
                                          stratalloc_error* error);
STRATALLOC_API int stratalloc_cache_info(int device, uint64_t* largest,
                                         stratalloc_error* error);
STRATALLOC_API double stratalloc_memory_fraction(int device);
STRATALLOC_API int stratalloc_set_memory_fraction(int device, double fraction,
                                                  stratalloc_error* error);
STRATALLOC_API int stratalloc_memory_info(int device, uint64_t* free_bytes,
                                          uint64_t* total,
                                          stratalloc_error* error);
STRATALLOC_API int stratalloc_enable_peer_access(int device, int peer,
                                                 stratalloc_error* error);
/* Returns the cudaError_t of the copy. */
STRATALLOC_API int stratalloc_memcpy_async(void* to, int to_device,
                                           const void* from, int from_device,
                                           uint64_t bytes, uint64_t stream,
                                           int p2p_enabled);
/* Synchronous device-to-device copy on the current context. */
STRATALLOC_API int stratalloc_copy_data(void* to, const void* from,
                                        uint64_t bytes);
/* Remembers what torch.cuda.caching_allocator_enable() said; the bridge asks
 * before every allocation. Blocks of the cache stay blocks. */
STRATALLOC_API void stratalloc_enable_caching(int on);
STRATALLOC_API int stratalloc_caching_enabled(void);

/* ---- statistics -------------------------------------------------------- */

typedef struct {
  int64_t current, peak, allocated, freed;
} stratalloc_stat;

/* Index 0 all, 1 small pool, 2 large pool; meanings are native's. */
typedef struct {
  stratalloc_stat allocation[3], segment[3], active[3], inactive_split[3];
  stratalloc_stat allocated_bytes[3], reserved_bytes[3], active_bytes[3];
  stratalloc_stat inactive_split_bytes[3], requested_bytes[3];
  int64_t num_alloc_retries, num_ooms;
  stratalloc_stat oversize_allocations, oversize_segments;
  int64_t num_sync_all_streams, num_device_alloc, num_device_free;
} stratalloc_device_stats;

STRATALLOC_API int stratalloc_stats(int device, stratalloc_device_stats* out,
                                    stratalloc_error* error);
STRATALLOC_API int stratalloc_reset_peak_stats(int device);
STRATALLOC_API int stratalloc_reset_accumulated_stats(int device);

typedef struct {
  int device;
  uint64_t address, total_bytes, requested_bytes, allocated_bytes;
  uint64_t active_bytes, stream;
  int is_large, block_count;
  void* context;                    /* borrowed; see history */
  uint64_t pool_first, pool_second; /* the private pool's id, or 0, 0 */
  int plain;                        /* neither grows nor shrinks */
} stratalloc_segment;

typedef struct {
  uint64_t address, bytes, requested_bytes;
  int allocated, active; /* active && !allocated = waits for events */
  void* context;         /* borrowed; see history */
} stratalloc_block_info;

/* Calls `segment` for each contiguous mapped range in address order, each
 * followed by its blocks in order; no lock is held during the calls. */
STRATALLOC_API int stratalloc_snapshot(
    void (*segment)(void* context, const stratalloc_segment*),
    void (*block)(void* context, const stratalloc_block_info*), void* context,
    stratalloc_error* error);

/* One JSON object for one device: `opened`, allocator and tier totals,
 * configuration, and `layers`: a list of
 * {"owner","category","live","peak","device","host",
 * "disk","evicted","restored","to_disk","from_disk","stalls","stall_ns"};
 * `handles`: {"restored_before_use", "evicted", "clean_drops", ...};
 * `tiers`: what moved, and of the process `host_used`, `host_peak` (pinned
 * bytes that evicted memory held), `host_reserved` and `host_reserved_peak`
 * (pinned for it, in whole slabs), all without the disk's two buffers;
 * `why_no_tiering`: why nothing can be evicted from it, "" if something can or
 * it is not opened;
 * `pinned`: a list of {"owner","reason","bytes"} of what is pinned beyond an
 * operator; and
 * `stays`: the bytes on the device by why they are there (allocator/staying.h),
 * without zeros; their sum is allocated.current unless blocks come and go
 * meanwhile. */
STRATALLOC_API char* stratalloc_report_json(int device);

/* ---- scopes ------------------------------------------------------------ */

/* category and lifetime are the values of allocator/base/ids.h. */
STRATALLOC_API uint32_t stratalloc_scope_intern(const char* path);
STRATALLOC_API char* stratalloc_scope_name(uint32_t scope);
STRATALLOC_API void stratalloc_scope_push(uint32_t scope, int category,
                                          int lifetime);
STRATALLOC_API int stratalloc_scope_pop(void); /* 0 if the stack was empty */
STRATALLOC_API uint32_t stratalloc_scope_current(int* category, int* lifetime);
/* Nanoseconds per push and pop of this thread, over `pairs` of them. */
STRATALLOC_API double stratalloc_bench_scope_pair_ns(int pairs);
/* Moves the charge of the block(s) holding [ptr, ptr + bytes) to `scope`,
 * `category`; category -1 keeps it. Address and handles do not change. */
STRATALLOC_API int stratalloc_relabel(const void* ptr, uint64_t bytes,
                                      uint32_t scope, int category);

/* ---- tiers ------------------------------------------------------------- */

typedef struct {
  uint64_t address, bytes;
} stratalloc_range;

/* ranges = NULL: everything evictable; device -1, without ranges: of every
 * device that takes part in tiering. Evict returns when the bytes left the
 * device; *moved = bytes evicted. What is pinned or in use stays.
 * STRATALLOC_UNSUPPORTED, with the reason, for a device that takes no part. */
STRATALLOC_API int stratalloc_evict(int device, const stratalloc_range* ranges,
                                    int count, uint64_t* moved,
                                    stratalloc_error* error);
STRATALLOC_API int stratalloc_restore(int device,
                                      const stratalloc_range* ranges, int count,
                                      uint64_t* moved, stratalloc_error* error);
/* Bytes of the range on device, host and disk. STRATALLOC_NOT_FOUND if it is
 * not ours. */
STRATALLOC_API int stratalloc_residency(const void* ptr, uint64_t bytes,
                                        uint64_t tiers[3],
                                        stratalloc_error* error);

/* ---- the op guard ------------------------------------------------------ */

/* What can ever need a restore lies in [lo, hi), over all devices; both 0 while
 * tiering is off or CUDA is not initialised. A tensor outside needs no look;
 * inside lie activations too. */
STRATALLOC_API extern uint64_t stratalloc_evictable_lo;
STRATALLOC_API extern uint64_t stratalloc_evictable_hi;
/* 1: the live block at this address is of a class that may leave the device. 0
 * of an activation, and of what is not ours. No lock. */
STRATALLOC_API int stratalloc_may_leave(uint64_t address);

typedef struct {
  uint64_t address, bytes; /* of the storage, or of the part that is used */
  int written;
} stratalloc_access;

/* Enter before an operator's kernel, leave after it returned or threw; calls
 * nest and pair on one thread. Enter makes every accessed byte resident and
 * pins it until leave; on failure nothing is pinned, leave must NOT be
 * called, and the error names layer, tier and cause. `name` is used in
 * messages only and must stay valid until leave. count may be 0 (operators
 * without evictable arguments still enter, so that what they allocate stays
 * until they return). */
STRATALLOC_API int stratalloc_operator_enter(int device, uint64_t stream,
                                             const char* name,
                                             const stratalloc_access* accesses,
                                             int count,
                                             stratalloc_error* error);
STRATALLOC_API void stratalloc_operator_leave(void);
/* The innermost operator ends, and what it pinned stays until
 * stratalloc_call_leave: a call into code that launches kernels of its own
 * between the operators it runs (allocator/operator_thread.h). On one thread,
 * properly nested with operators and other calls. */
STRATALLOC_API void stratalloc_operator_into_call(void);
STRATALLOC_API void stratalloc_call_leave(void);

/* For operators that act element by element of lists and may run in slices of
 * them, each entered by itself. Neither pins, moves or promises anything.
 *
 * 1: enter the operator as a whole. All of `accesses` is on the device and the
 * `results` bytes that it will allocate fit beside everything else; or slices
 * would not help: inside another operator, during a capture, tiering off. */
STRATALLOC_API int stratalloc_list_fits(int device,
                                        const stratalloc_access* accesses,
                                        int count, uint64_t results);
/* How many elements, from number `first` on, the next slice should have: as
 * many as leave most of the device to others, at least 1. The accesses of
 * element i end before accesses[ends[i]], and results[i] bytes are allocated
 * for it. REQUIRES: first < elements. */
STRATALLOC_API int stratalloc_list_slice(int device,
                                         const stratalloc_access* accesses,
                                         const int* ends,
                                         const uint64_t* results, int elements,
                                         int first);
/* The element that takes most, if that is more than everything which could
 * leave now would free; else -1. It is to be tried before the first slice runs:
 * if it is refused nothing of the lists was touched. */
STRATALLOC_API int stratalloc_list_doubtful(int device,
                                            const stratalloc_access* accesses,
                                            const int* ends,
                                            const uint64_t* results,
                                            int elements);

/* ---- pins that outlast an operator -------------------------------------- */

/* Why a block stays (allocator/block_pin.h). */
enum {
  STRATALLOC_PIN_SHARED = 0,
  STRATALLOC_PIN_EXPORTED = 1,   /* DLPack, __cuda_array_interface__ */
  STRATALLOC_PIN_PROGRAM = 2,    /* pin() */
  STRATALLOC_PIN_COLLECTIVE = 3, /* until its Work is complete */
  STRATALLOC_PIN_POINTER = 4     /* stratalloc_hand_out's own */
};

typedef struct {
  uint64_t address; /* of the block */
  uint64_t serial;  /* 0: no pin; nothing there can leave */
  int reason;
} stratalloc_pin;

/* The blocks that hold these ranges, on any devices, are brought back together
 * and stay on the device until they are freed or unpinned. out[i] belongs to
 * ranges[i]. On failure (STRATALLOC_OUT_OF_MEMORY: they do not fit together;
 * STRATALLOC_SHUTDOWN: this is a forked child) nothing is pinned. `name` is for
 * messages. Waits; no lock or GIL held. */
STRATALLOC_API int stratalloc_pin_blocks(const char* name, int reason,
                                         const stratalloc_range* ranges,
                                         int count, stratalloc_pin* out,
                                         stratalloc_error* error);
/* Takes pins back; one of a block that has been freed is ignored. `unobserved`:
 * nobody saw on which streams the blocks were used. Never waits. */
STRATALLOC_API void stratalloc_unpin_blocks(const stratalloc_pin* pins,
                                            int count, int unobserved);
/* 1: the block of `pin` has not been freed, and is pinned for its reason. */
STRATALLOC_API int stratalloc_is_pinned(const stratalloc_pin* pin);
/* `poll` is called without the device lock whenever victims are chosen and
 * while a thread waits for room, from any thread, and takes back the pins of
 * what is over. `under_way`, under any lock: 0 if there are no such pins. NULL
 * for none. */
STRATALLOC_API void stratalloc_use_pin_poll(void (*poll)(void),
                                            int (*under_way)(void));
/* data_ptr() gives this address away: best effort, never fails. 0: nothing was
 * to be done, or everything is done; 1: call stratalloc_hand_out, which may
 * wait. The first never waits. */
STRATALLOC_API int stratalloc_must_hand_out(uint64_t address);
STRATALLOC_API void stratalloc_hand_out(uint64_t address);

/* ---- test hooks -------------------------------------------------------- */

/* "sabotage_restore" = substring of an owner: the first restore of one of its
 *    handles brings zeros; "flip_spill_byte" = substring of an owner: one bit
 *    of one of its chunks in the spill file is flipped now; "fail_disk" =
 *    count of writes to fail. Returns 0, or STRATALLOC_NOT_FOUND if nothing
 *    matched. Used by tests and by `stratalloc demo --sabotage`. */
STRATALLOC_API int stratalloc_test_hook(const char* name, const char* value,
                                        stratalloc_error* error);

/* ---- private pools ------------------------------------------------------ */

/* torch's MempoolId_t: first = made by a capture, second = made by a user. */
typedef struct {
  uint64_t first, second;
} stratalloc_pool_id;

STRATALLOC_API int stratalloc_pool_use(int device, stratalloc_pool_id pool,
                                       stratalloc_error* error);
/* The same for a pool whose memory comes from `allocate` (NULL: there is none)
 * and goes back to `release`. Both are called without a lock, must not allocate
 * from stratalloc and must not throw. `drop(context)` is called once, when no
 * memory of it is left and the pool is gone. */
STRATALLOC_API int stratalloc_pool_use_source(
    int device, stratalloc_pool_id pool,
    void* (*allocate)(void* context, uint64_t bytes, uint64_t stream),
    void (*release)(void* context, void* ptr), void* context,
    void (*drop)(void*), stratalloc_error* error);
/* Allocations on streams that `filter(context, stream)` accepts go to `pool`
 * until stratalloc_pool_end. The filter runs under the device's lock: it must
 * not allocate or wait. `drop(context)` is called once, when the route ends or
 * could not be set. `current`: the caller's stream; nothing is evicted between
 * a route whose filter does not accept it, which is a capture's that is about
 * to begin, and the first use of that route. `reads`: what the graph will read
 * that no operator names; brought back before the route is set, it and all that
 * this thread's operators use now stays on the device until the pool's last use
 * goes. */
STRATALLOC_API int stratalloc_pool_begin(int device, stratalloc_pool_id pool,
                                         int (*filter)(void*, uint64_t),
                                         void* context, void (*drop)(void*),
                                         uint64_t current,
                                         const stratalloc_access* reads,
                                         int count, stratalloc_error* error);
STRATALLOC_API int stratalloc_pool_end(int device, stratalloc_pool_id pool,
                                       stratalloc_error* error);
STRATALLOC_API int stratalloc_pool_release(int device, stratalloc_pool_id pool,
                                           stratalloc_error* error);
STRATALLOC_API int stratalloc_pool_use_count(int device,
                                             stratalloc_pool_id pool);
STRATALLOC_API int stratalloc_pool_set_use_on_oom(int device,
                                                  stratalloc_pool_id pool,
                                                  int on,
                                                  stratalloc_error* error);
STRATALLOC_API int stratalloc_pool_set_no_split(int device,
                                                stratalloc_pool_id pool,
                                                stratalloc_error* error);
STRATALLOC_API int stratalloc_pool_empty(int device, stratalloc_pool_id pool,
                                         stratalloc_error* error);
/* Calls `block(context, ptr)` for each allocated block of the pool, without
 * a lock. */
STRATALLOC_API int stratalloc_pool_blocks(int device, stratalloc_pool_id pool,
                                          void (*block)(void*, void*),
                                          void* context,
                                          stratalloc_error* error);

/* What a pool has allocated now, to go back to: an opaque object, released
 * with stratalloc_checkpoint_drop. */
typedef struct stratalloc_checkpoint stratalloc_checkpoint;
STRATALLOC_API int stratalloc_checkpoint_take(int device,
                                              stratalloc_pool_id pool,
                                              stratalloc_checkpoint** out,
                                              stratalloc_error* error);
STRATALLOC_API void stratalloc_checkpoint_drop(stratalloc_checkpoint*);
/* Calls `freed` for each block that was freed, `allocated` for each that is
 * allocated again, at its old address; the caller owns the latter. */
STRATALLOC_API int stratalloc_checkpoint_go_back(
    int device, const stratalloc_checkpoint* checkpoint,
    void (*freed)(void*, void*), void (*allocated)(void*, void*), void* context,
    stratalloc_error* error);

/* ---- past the cache, and between processes ------------------------------ */

/* cudaMalloc on the current device and cudaFree, in no statistic: caching
 * switched off, and the plain segments of a MemPool(allocator=...). Work
 * before stratalloc_init. Return the cudaError_t, with the runtime's own last
 * error cleared; a size of 0 gives NULL. */
STRATALLOC_API int stratalloc_uncached_malloc(uint64_t size, void** out);
STRATALLOC_API int stratalloc_uncached_free(void* ptr);

/* Gives the bytes by which another process maps the block at ptr, native's
 * format, to `sink(context, bytes, size)`, and the block's offset in what that
 * process maps. The block stays on the device until it is freed. */
STRATALLOC_API int stratalloc_ipc_share(void* ptr, uint64_t* offset,
                                        void (*sink)(void* context,
                                                     const void* bytes,
                                                     uint64_t size),
                                        void* context, stratalloc_error* error);
/* Maps such bytes on `device`. Every open needs a close of its own, of the
 * same `token`, once nothing uses the memory any more; close waits for the
 * device. */
STRATALLOC_API int stratalloc_ipc_open(int device, const void* bytes,
                                       uint64_t size, void** ptr,
                                       uint64_t* token,
                                       stratalloc_error* error);
STRATALLOC_API int stratalloc_ipc_close(uint64_t token,
                                        stratalloc_error* error);

/* ---- history (allocator/history.h) -------------------------------------- */

typedef struct {
  int action; /* of torch's TraceEntry::Action */
  int device;
  uint64_t address, bytes, stream, pool_first, pool_second;
  int64_t time;  /* of the clock of stratalloc_history_hooks */
  void* context; /* borrowed, NULL for none */
  const char* compile_context;
  const char* user_metadata;
} stratalloc_trace_event;

typedef struct {
  int enabled;
  int contexts_in_events; /* else in blocks and segments only */
  uint64_t max_entries;   /* per device */
  int clear;              /* forget what was recorded; disabling does too */
  uint32_t skipped;       /* bit per action that is not recorded */
} stratalloc_history_options;

/* `release` lets go of a context; called under the device lock, so it must
 * neither wait nor take the GIL. Before the functions below. */
STRATALLOC_API void stratalloc_history_hooks(int64_t (*clock)(void),
                                             void (*release)(void*));
/* Of every device there is, opened or not. */
STRATALLOC_API void stratalloc_history_configure(
    const stratalloc_history_options* options);
/* Called with every event from now on, under the device lock, whether history
 * is on or off. NULL for none. */
STRATALLOC_API void stratalloc_history_track(
    void (*tracker)(const stratalloc_trace_event*));
/* The context of what this thread does next, which is given away; NULL ends
 * it. */
STRATALLOC_API void stratalloc_history_context(void* context);
/* What was recorded, oldest first; no lock is held during the calls. */
STRATALLOC_API void stratalloc_history_events(
    int device, void (*event)(void* context, const stratalloc_trace_event*),
    void* context);
/* Returns the size as a block would have had it. */
STRATALLOC_API uint64_t stratalloc_history_out_of_memory(int device,
                                                         uint64_t stream,
                                                         uint64_t bytes,
                                                         uint64_t free_bytes);
STRATALLOC_API void stratalloc_history_snapshot(int device, uint64_t pool_first,
                                                uint64_t pool_second,
                                                uint64_t active);
/* Labels of the thread, stamped on every event. */
STRATALLOC_API void stratalloc_push_compile_context(const char* text);
STRATALLOC_API void stratalloc_pop_compile_context(void);
STRATALLOC_API void stratalloc_set_user_metadata(const char* text);
STRATALLOC_API const char* stratalloc_user_metadata(void); /* this thread's */

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_H_ */
