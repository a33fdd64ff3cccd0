/* SPDX-License-Identifier: Apache-2.0
 *
 * The C face of libstratalloc.so: what Python calls, by ctypes or from the
 * extensions, which know no C++ of ours. Plain C types only, so that one core
 * serves every Python. The torch bridge calls the core's C++ (bridge_api/);
 * what both need, the C function does by calling that.
 *
 * Contract for every function: callable from any thread, with or without the
 * GIL; never throws. Functions that take a `stratalloc_error*` return 0 on
 * success, else the error's code (ErrorCode of allocator/base/result.h) with
 * a message in *error; the pointer may be NULL. Strings returned as char* are
 * released with stratalloc_string_free.
 */
#ifndef STRATALLOC_PYTHON_SHIM_C_API_C_API_H_
#define STRATALLOC_PYTHON_SHIM_C_API_C_API_H_

#include <stdint.h>

#include "allocator/base/export.h"
#include "python_shim/c_api/device_metrics.h"
#include "python_shim/core/evictable_range.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* A key of STRATALLOC_CONF and its value as it stands there, sizes in bytes. */
typedef struct {
  const char* key;
  const char* value;
} stratalloc_setting;

/* Every setting of Config (stratalloc/settings.py declares them), each default
 * filled in, and "host_budget_is_given": on if somebody asked for that budget,
 * which the memory that the machine has available then does not overrule.
 * STRATALLOC_INVALID_ARGUMENT names a key that the core does not know, or whose
 * value it cannot read; nothing is set then. Before CUDA is initialised; again
 * before it replaces the earlier values. */
STRATALLOC_API int stratalloc_configure(const stratalloc_setting* settings,
                                        int count, stratalloc_error* error);
STRATALLOC_API int stratalloc_initialized(void);
STRATALLOC_API const char* stratalloc_version(void); /* static string */
/* Bytes of memory that the machine has or the container of this process allows,
 * and what of it may still be touched (tiering/host/memory_limit.h); UINT64_MAX
 * if nobody says. `root` stands before /proc and /sys/fs/cgroup: "", or a
 * test's own. Before CUDA is initialised, too. */
STRATALLOC_API void stratalloc_host_memory(const char* root, uint64_t* total,
                                           uint64_t* available);
STRATALLOC_API void stratalloc_string_free(char* text);
/* Does this address lie in memory or address space of ours? */
STRATALLOC_API int stratalloc_holds(uint64_t address);
/* Who keeps time (a simulated device) is told what the host does that no call
 * of CUDA shows: a thread computed a checksum of so many bytes; threads that
 * wait for `token` may go on; the calling thread waited for it and goes on; it
 * looked at so many candidates for an eviction. While `is_phantom` answers 1,
 * memory is pinned without being touched: no copy ever reads it. Called under
 * any lock of ours, from any thread, to the end of the process; may take none
 * of ours. The last call counts. */
STRATALLOC_API void stratalloc_listen_to_host(
    void (*checksummed)(uint64_t bytes), void (*let_go)(uint64_t token),
    void (*went_on)(uint64_t token), void (*chose)(uint64_t candidates),
    int (*is_phantom)(void));

/* ---- the report --------------------------------------------------------- */

/* One JSON object for one device: `opened`, allocator and tier totals,
 * configuration, and `layers`: a list of
 * {"owner","category","live","peak","device","host",
 * "disk","evicted","restored","to_disk","from_disk","stalls","stall_ns"};
 * `handles`: {"restored_before_use", "evicted", "clean_drops", ...};
 * `tiers`: what moved, and of the process `host_used`, `host_peak` (pinned
 * bytes that evicted memory held), `host_reserved` and `host_reserved_peak`
 * (pinned for it, in whole slabs), all without the disk's two buffers,
 * `disk_raw` (bytes ever written) and `disk_stored` (what they were stored in);
 * `why_no_tiering`: why nothing can be evicted from it, "" if something can or
 * it is not opened;
 * `scopes`: a list of {"owner","live","peak_owned","peak_allocated","entered",
 * "own_ns","backward_nodes","own_backward_ns"}, the last four of all devices
 * (accounting/scope_times.h); `limits`: a list of {"owner","bytes","owned"};
 * `scopes_not_interned`;
 * `pinned`: a list of {"owner","reason","bytes"} of what is pinned beyond an
 * operator;
 * `placement`: what it costs now that classes and private pools share no handle
 * (allocator/heap/fragmentation.h): `separate_classes` is `separated`, and
 * `private_pools` what is free in handles of private pools; and
 * `stays`: the bytes on the device by why they are there
 * (allocator/explain/staying.h), without zeros; their sum is allocated.current
 * unless blocks come and go meanwhile. */
STRATALLOC_API char* stratalloc_report_json(int device);
/* How many devices there are, opened or not; 0 before CUDA is initialised and
 * in the child of a fork. Never calls CUDA. */
STRATALLOC_API int stratalloc_device_count(void);
/* What is shown of a device over time, by whoever asks every few seconds while
 * others train: never calls CUDA and never waits for a migration; holds the
 * device's lock for microseconds, whatever lives there. out->size says what the
 * caller knows. Of scopes those that owned most at any time are named, up to
 * `room`; *named says how many. */
STRATALLOC_API int stratalloc_metrics(int device,
                                      stratalloc_device_metrics* out,
                                      stratalloc_scope_metrics* scopes,
                                      int room, int* named,
                                      stratalloc_error* error);
/* Who holds bytes, or held them at the device's peak: "device" and "rows", a
 * list of {"owner","category","live","at_peak","blocks","device","host",
 * "disk"}, those of the report's `layers` that are not 0 in both. {"error"} for
 * a device that CUDA has not. */
STRATALLOC_API char* stratalloc_held_json(int device);
/* What is reserved and not allocated (allocator/heap/fragmentation.h):
 * "reserved", "allocated", "rounding", "pending", "stranded", "separated",
 * "releasable", "in_private_pools", and "holes": a list of
 * {"address","bytes","free","blocks",
 * "stream","lifetime","oldest":{"address","bytes","owner","category"},"age"}.
 * {} for a device that is not opened; {"error"} for one that CUDA has not. */
STRATALLOC_API char* stratalloc_fragmentation_json(int device);
/* What was allocated where, by the sampled blocks that live
 * (bridge_api/sites.h): "recorded", and if it is true "interval" (bytes; of
 * smaller blocks one is sampled in so many), "distinct" (lines seen), "refused"
 * (how often a line was counted as "(other sites)", since no more are told
 * apart), "calls" and "calls_refused" (the same of calls on stacks), and
 * "rows": a list of {"owner" (the
 * line),"category","live","blocks","device","host","disk"}. What was not
 * sampled is one row; they add up to what is live on the device's tiers.
 * {"error"} for a device that CUDA has not. */
STRATALLOC_API char* stratalloc_sites_json(int device);
/* Who finds the line that the calling thread runs: writes "file:line function"
 * in UTF-8, at most `room` bytes without a 0, and returns how many; 0 if there
 * is none, negative if the line is a library's. Called from any thread, without
 * a lock of ours and mostly without the GIL, which it may take; never from a
 * free. NULL for nobody; a call that has begun may still be under way then. */
typedef int (*stratalloc_site_finder)(char* text, int room);
/* And its whole stack, at the level `full`, as a number that the functions
 * below gave; 0 if there is none. */
typedef uint32_t (*stratalloc_stack_finder)(void);
STRATALLOC_API void stratalloc_find_sites(stratalloc_site_finder find_site,
                                          stratalloc_stack_finder find_stack);
/* Stacks (accounting/stack_table.h), for who finds them: the number of a frame
 * of the stack, "file:line function", `own` if it is the user's; and that of
 * the frame when `caller` called it, 0 for the outermost. 0 if none is left. */
STRATALLOC_API uint32_t stratalloc_stack_frame(const char* text, int bytes,
                                               int own);
STRATALLOC_API uint32_t stratalloc_stack_call(uint32_t caller, uint32_t frame);
/* What would serve a malloc of this thread (allocator/explain/explanation.h):
 * "size", "block", "served_by", "certain", "depends_on", "leaves", "may_leave",
 * "room_needed", "room_below", "missing", "limit_helps", "remedy" and "frees":
 * a list of
 * {"address", "bytes","owner","category"}. {"error"} if the driver or the host
 * says no. */
STRATALLOC_API char* stratalloc_explain_json(int device, uint64_t size,
                                             uint64_t stream);

/* Do the sums of the device's blocks and handles hold, those of its tiers, and
 * the ledger's of all devices? STRATALLOC_INVALID_ARGUMENT names one that does
 * not. For tests, at quiescent points: looks at every block, and what comes,
 * goes or moves meanwhile is counted in one sum and not yet in another. */
STRATALLOC_API int stratalloc_check_invariants(int device,
                                               stratalloc_error* error);

/* ---- scopes ------------------------------------------------------------ */

/* category and lifetime are the values of allocator/base/ids.h. */
STRATALLOC_API uint32_t stratalloc_scope_intern(const char* path);
STRATALLOC_API char* stratalloc_scope_name(uint32_t scope);
STRATALLOC_API void stratalloc_scope_push(uint32_t scope, int category,
                                          int lifetime);
STRATALLOC_API int stratalloc_scope_pop(void); /* 0 if the stack was empty */
STRATALLOC_API int stratalloc_scope_depth(void);
STRATALLOC_API uint32_t stratalloc_scope_current(int* category, int* lifetime);
/* What this scope's frame allocates from now on is of that category. 0, and
 * nothing is done, if another scope's is on top. */
STRATALLOC_API int stratalloc_scope_recategorize(uint32_t scope, int category);
/* The frame of a module's call: an activation, transient; inside of a backward
 * node its recomputation pays (accounting/scope_stack.h). Returns how many
 * frames are below it; pops until no more than these are left. */
STRATALLOC_API int stratalloc_scope_enter_module(uint32_t scope);
STRATALLOC_API void stratalloc_scope_leave_module(int below);
/* Bytes that the scope owns, without those below its path: all devices and
 * tiers; 0 in a forked child, whose ledger may be locked for ever. */
STRATALLOC_API uint64_t stratalloc_scope_owned(uint32_t scope);
/* The scope `path` and everything below it may own `bytes` on this device and
 * its tiers below; UINT64_MAX takes the limit away
 * (accounting/scope_limits.h). */
STRATALLOC_API int stratalloc_limit_scope(int device, const char* path,
                                          uint64_t bytes,
                                          stratalloc_error* error);
/* Moves the charge of the block(s) holding [ptr, ptr + bytes) to `scope`,
 * `category`; category -1 keeps it. Address and handles do not change. */
STRATALLOC_API int stratalloc_relabel(const void* ptr, uint64_t bytes,
                                      uint32_t scope, int category);
/* The same of the block at `ptr` if nobody pays for it yet: made outside of any
 * scope, with no category. STRATALLOC_NOT_FOUND if somebody does. */
STRATALLOC_API int stratalloc_adopt(const void* ptr, uint32_t scope,
                                    int category);

/* ---- tiers ------------------------------------------------------------- */

typedef struct {
  uint64_t address, bytes;
} stratalloc_range;

/* ranges = NULL: everything evictable; device -1, without ranges: of every
 * device that takes part in tiering. Evict returns when the bytes left the
 * device; *moved = bytes evicted. What is pinned or in use stays. `to`: 0
 * either tier, 1 host memory alone, 2 disk alone, where what lies on the host
 * goes, too, and counts. STRATALLOC_UNSUPPORTED, with the reason, for a device
 * that takes no part and a tier that is not used. */
STRATALLOC_API int stratalloc_evict(int device, int to,
                                    const stratalloc_range* ranges, int count,
                                    uint64_t* moved, stratalloc_error* error);
STRATALLOC_API int stratalloc_restore(int device,
                                      const stratalloc_range* ranges, int count,
                                      uint64_t* moved, stratalloc_error* error);
/* Brings back all that is evicted and moves nothing from then on, for the rest
 * of the process; operators pin nothing any more. `moved`: what came back.
 * Refused, and then tiering goes on: STRATALLOC_UNSUPPORTED while a stream
 * captures, STRATALLOC_OUT_OF_MEMORY if not all fits, STRATALLOC_CORRUPT if
 * bytes were lost on disk. */
STRATALLOC_API int stratalloc_switch_tiering_off(uint64_t* moved,
                                                 stratalloc_error* error);
/* Gives what the device has cached back to the driver: torch.cuda.empty_cache()
 * of one device. Nothing if it is not opened. */
STRATALLOC_API int stratalloc_empty_cache(int device, stratalloc_error* error);
/* Bytes of the range on device, host and disk. STRATALLOC_NOT_FOUND if it is
 * not ours. */
STRATALLOC_API int stratalloc_residency(const void* ptr, uint64_t bytes,
                                        uint64_t tiers[3],
                                        stratalloc_error* error);

/* Of what goes to the disk from now on: "off", "lz4" or "zstd"
 * (tiering/io/codec.h), but for blocks that have a rule of their own. While the
 * disk is full and something on it is compressed, zstd is tried for what may
 * have room only so. STRATALLOC_INVALID_ARGUMENT: there is no such codec;
 * STRATALLOC_UNSUPPORTED, with the reason: nothing can be evicted. */
STRATALLOC_API int stratalloc_set_disk_codec(const char* codec,
                                             stratalloc_error* error);

/* ---- pins that outlast an operator -------------------------------------- */

/* Why a block stays (allocator/values/block_pin.h). */
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
/* data_ptr() gives this address away: best effort, never fails. 0: nothing was
 * to be done, or everything is done; 1: call stratalloc_hand_out, which may
 * wait. The first never waits. */
STRATALLOC_API int stratalloc_must_hand_out(uint64_t address);
STRATALLOC_API void stratalloc_hand_out(uint64_t address);

/* ---- recordings of events (telemetry/recording/recorder.h) --------------- */

/* Events are recorded from now on; *recording is what the next function takes.
 * `area_file`: where the rings live, a file that outlives a killed process,
 * NULL for no wish; `ring_events`: of each thread, a power of two, 0 for no
 * wish. Both are the process's: once they are set a call that wishes otherwise
 * is STRATALLOC_INVALID_ARGUMENT. `redacted`: what is made of the file has no
 * names. */
STRATALLOC_API int stratalloc_recording_begin(const char* area_file,
                                              int redacted,
                                              uint64_t ring_events,
                                              uint64_t* recording,
                                              stratalloc_error* error);
/* The level of telemetry (stratalloc/settings.py) from now on, at any time;
 * STRATALLOC_INVALID_ARGUMENT if no level is called so. The torch bridge is
 * told by stratalloc_torch_note_telemetry. */
STRATALLOC_API int stratalloc_set_telemetry(const char* level,
                                            stratalloc_error* error);
/* The recording that goes on while the level is `events` or above; 0: none. */
STRATALLOC_API uint64_t stratalloc_flight_recording(void);
/* What happened since, as a file (telemetry/recording/recording_file.h).
 * `about_json`: an object that is kept as it is. `redact`: without names.
 * `over`: it ends, and with the last one the recording of events. */
STRATALLOC_API int stratalloc_recording_write(uint64_t recording,
                                              const char* path,
                                              const char* about_json,
                                              int redact, int over,
                                              stratalloc_error* error);
/* A recording of what a process left in its area_file. CUDA is not needed. */
STRATALLOC_API int stratalloc_recording_recover(const char* area_file,
                                                const char* path, int redact,
                                                stratalloc_error* error);
/* A moment with a name, and what each opened device has allocated and reserved
 * then; nothing while no events are recorded. */
STRATALLOC_API void stratalloc_mark(const char* name);

/* ---- memory of other processes ------------------------------------------ */

/* For tests of what another process sends (bridge_api/ipc.h): maps the bytes
 * that came from there on `device`. Every open needs a close of its own, of the
 * same `token`, once nothing uses the memory any more; close waits for the
 * device.
 */
STRATALLOC_API int stratalloc_ipc_open(int device, const void* bytes,
                                       uint64_t size, void** ptr,
                                       uint64_t* token,
                                       stratalloc_error* error);
STRATALLOC_API int stratalloc_ipc_close(uint64_t token,
                                        stratalloc_error* error);

#ifdef __cplusplus
}
#endif

#endif /* STRATALLOC_PYTHON_SHIM_C_API_C_API_H_ */
