// SPDX-License-Identifier: Apache-2.0
//
// control.h: the doors of the simulated CUDA device that CUDA itself does not
// have: capacity, mode, planned failures, call counts, violations, live
// objects, host twins of kernels, and the accesses of bridged operators. Those
// of time are in control_time.h, which comes with it.
//
// All functions are C, may be called from any thread and take the simulator's
// own lock; none may be called from inside a host function of a stream. None
// of them is subject to planned failures or to the sticky device error.
//
// Text functions copy at most `bytes` characters including the closing zero
// and return the length of the whole text, or -1 if there is no such text.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_H_

#include <stdint.h>

#include "tests/simulator/cudasim/control_time.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- Addresses -------------------------------------------------------------
// Device addresses lie in [cudasim_arena_base(), + cudasim_arena_size()) and
// cannot be read by the host. The bytes of device address A are at
// A + cudasim_delta(), as long as A is mapped and access is granted.
uint64_t cudasim_arena_base(void);
uint64_t cudasim_arena_size(void);
uint64_t cudasim_delta(void);

// The bytes behind a device address; any other address comes back unchanged.
// nullptr, a line on stderr and a refused call for phantom memory.
void* cudasim_host_view(const void* device_or_host_pointer);

// 1 if every byte of the device range is mapped and granted to its device.
int cudasim_range_is_accessible(uint64_t address, uint64_t bytes);

// --- Capacity --------------------------------------------------------------
void cudasim_set_capacity(int device, uint64_t bytes);
uint64_t cudasim_capacity(int device);
uint64_t cudasim_used(int device);
uint64_t cudasim_peak_used(int device);

// --- Virtual memory management ---------------------------------------------
// 0: the device (-1: every one) has none (CUDASIM_VMM=off): its attributes are
// 0, and functions that name the device are refused; while no device has any,
// all its functions. -1 if memory of a device is alive.
int cudasim_set_virtual_memory(int device, int supported);

// --- Phantom memory ----------------------------------------------------------
// Memory of devices has addresses, handles, mappings and accounting, and no
// bytes: copies and fills move nothing. CUDASIM_PHANTOM=1 also makes the arena
// 80 TiB large. -1 if memory of a device is alive, and in such a process for 0.
int cudasim_set_phantom(int phantom);
int cudasim_is_phantom(void);
// 0 with CUDASIM_NUMBERS=off: operators compute shapes only.
int cudasim_numbers(void);

// --- Cards -----------------------------------------------------------------
// What the device is (cards.h): "generic", "h200", "a100", "rtx4090", "t4",
// "wsl2".
// Its memory changes with it unless CUDASIM_MEMORY or cudasim_set_capacity
// says otherwise later. -1 if there is no such device or card.
int cudasim_set_card(int device, const char* name);
// The card's name; the length of the text, or -1 if there is no such device.
int cudasim_card(int device, char* text, int bytes);
// 1 if a card or a profile is in force: time passes, workspaces are taken.
int cudasim_is_modelled(int device);
// A figure of the device's card by its name in a profile, such as
// "cublas_workspace_bytes" or "hbm_gb_per_s"; -1 if there is none.
double cudasim_card_figure(int device, const char* figure);

// cuBLAS is used on the device for the first time: its code takes the card's
// "cublas_library_bytes" outside every allocator, unless CUDASIM_MEMORY says
// what the program can have. Only the first call has that effect. For each
// handle that cuBLAS makes: an error, and the captures invalidated, where a
// capture forbids this thread to allocate; else 0.
int cudasim_load_cublas(int device);
// What the device's primary context and that code take of its memory now. 0
// while nobody has used the device, and where CUDASIM_MEMORY says what the
// program can have. Asking makes no context.
uint64_t cudasim_context_bytes(int device);

// The card of the device as a JSON profile that gives the same card again.
int cudasim_profile(int device, char* text, int bytes);
// Applies a JSON profile to the device's card. -1 if it has an error, which is
// printed and leaves the card as it was.
int cudasim_apply_profile(int device, const char* json);

// --- Unmapping ---------------------------------------------------------------
// 1: cuMemUnmap waits for all work of the device first (CUDASIM_UNMAP=waits).
void cudasim_set_unmap_waits(int waits);

// --- Mode ------------------------------------------------------------------
// eager (0): an operation is done when the call returns; nothing is checked
// for order. async (1): each stream is a queue that advances on
// synchronisation, on queries and by seeded steps at API calls; every access
// is pending until a real edge proves its end.
void cudasim_set_mode(int async_mode);
int cudasim_mode(void);
void cudasim_set_seed(uint64_t seed);
// 1: in async mode streams advance on synchronisation and by cudasim_run_stream
// alone; queries answer and move nothing. What has run is then the same for two
// allocators that call CUDA more or less often under one program.
void cudasim_hold_streams(int held);
// Runs the first `count` operations of a stream of the current device at most,
// each after what it has to come after. Returns how many, -1 for a stream that
// is none.
long cudasim_run_stream(void* stream, long count);

// Forgets streams, events, counters, violations, planned failures and sticky
// errors. Memory is not touched: it must have been released before.
void cudasim_reset_for_testing(void);

// The driver shuts down, as it does by itself when the process ends: every call
// but those that it answers before cuInit says 4 from now on.
void cudasim_shut_down(void);

// Clears the sticky error of every device (a real device would need a new
// process).
void cudasim_clear_errors(void);

// 1 while some device is broken by a sticky error. One load, no lock: whoever
// computes without calling CUDA asks this first, then which error it is.
int cudasim_broken(void);
// The sticky error of a device (a cudaError_t), 0 if it is healthy.
int cudasim_device_error(int device);

// --- Planned failures ------------------------------------------------------
// The nth call from now (1 = the next one) of `function` returns `error`
// without doing anything; then, with `every` 1, every later one, with more
// every so-manyth. Names are those of the CUDA reference without version suffix
// ("cuMemCreate"). Returns 0, or -1 if CUDA has no function of that name or a
// number makes no sense.
int cudasim_fail(const char* function, long nth, int error, int every);
// An error that leaves a real context unusable (illegal address, assert, ECC,
// ...) breaks the device: every later call returns it.
//
// Also ends everything under "Pressure".
void cudasim_clear_faults(void);
// nullptr: of all functions together.
long cudasim_calls(const char* function);

// --- Pressure (pressure.h) -------------------------------------------------
// Another process holds `bytes` of the device's memory from now on (0: gave it
// back). It gets no more than is free; returned is what it has.
uint64_t cudasim_take_memory(int device, uint64_t bytes);
// The same at the nth call from now of `function`. -1 for a device or function
// that is none.
int cudasim_take_memory_at(int device, uint64_t bytes, const char* function,
                           long nth);
// Copies "up", "down" or to a "peer" are `factor` times slower on the virtual
// clock, after `from` more of them. Factor 1 ends it. -1 for what makes no
// sense.
int cudasim_slow_copies(const char* direction, double factor, long from);
// In async mode the nth copy from now runs only after its stream has been
// stepped or queried `steps` times; a synchronisation waits for it.
int cudasim_stick_copy(long nth, long steps);
// The host pins no more than this, in all: cudaHostAlloc, cudaHostRegister and
// cuMemCreate on the host answer out of memory. What is pinned stays.
void cudasim_limit_pinned(uint64_t bytes);
// Page tables take memory of the card: cuMemSetAccess for a device answers out
// of memory while less than this of it is free. 0: they take none.
void cudasim_keep_for_page_tables(uint64_t bytes);
// Code takes memory of the card, with lazy loading when it is first launched:
// that of a module's kernel answers out of memory while less than this is free.
// 0: it takes none.
void cudasim_keep_for_code(uint64_t bytes);
uint64_t cudasim_pinned(void);

// --- Accesses of bridged operators and twins -------------------------------
typedef struct {
  uint64_t address;
  uint64_t bytes;
  int write;  // 1; 2: the first write to a block an allocator just handed out
} cudasim_access;

// An operator is about to compute on the bytes of this stream's inputs: in
// async mode the stream's queue is executed first. This proves nothing to the
// pending-access check.
void cudasim_begin_operator(void* stream, const char* name);

// The operator reads and writes these device ranges, asynchronously as far as
// the program can know: pending until a real edge.
void cudasim_note_access(void* stream, const char* name,
                         const cudasim_access* accesses, int count);

// The block was given back to an allocator that may hand it out again at once:
// a later use that is not ordered after what was noted there is reported as
// use-after-free rather than race.
void cudasim_block_freed(uint64_t address, uint64_t bytes);

// A host thread computes on these device ranges from now on, until the token
// is released: a bridged operator or a twin, in either mode. Unmapping them or
// copying into them meanwhile is a violation. Each must be released by the
// thread that took it.
long cudasim_hold_ranges(const char* name, const cudasim_access* accesses,
                         int count);
void cudasim_release_ranges(long token);

// --- Host threads ----------------------------------------------------------
// What one thread has observed counts for all (0, the default), or only after
// an edge between the two (1): strict, for programs that tell of their edges.
// Everything observed until now counts for every thread.
void cudasim_set_thread_clocks(int per_thread);
// The edge: what the releasing thread knows to be complete, a thread that
// acquires the same token later knows, too (of interest in the strict mode
// alone), and on the virtual clock it goes on from there at the earliest.
void cudasim_thread_release(uint64_t token);
void cudasim_thread_acquire(uint64_t token);

// --- Captures --------------------------------------------------------------
// How many captures are going on. Cheap: no lock.
long cudasim_captures(void);

// 0: the stream does not capture, 1: it does, 2: its capture was spoilt
// (cudaStreamCaptureStatus). `id` (may be null): of the capture, else 0.
int cudasim_stream_capture(void* stream, unsigned long long* id);

// A bridged operator as the next kernel node of the stream's capture: `run` is
// called at every launch of the graph, without any lock, on whichever thread
// executes; nonzero means that the operator failed: the device breaks with that
// error. `destroy` is called once, when the last graph that holds the node is
// gone or at once if the answer is an error. Both may call the functions of
// this file that say so, and no CUDA function.
// Returns 0 or the CUDA error of a launch on that stream.
int cudasim_capture_operator(void* stream, const char* name,
                             const cudasim_access* accesses, int count,
                             int (*run)(void* state),
                             void (*destroy)(void* state), void* state);

// `function` is told the id of every capture that ends, with or without a
// graph. It is called with locks held: it may only note the id. One at a time.
void cudasim_on_capture_end(void (*function)(unsigned long long id));

// --- Violations ------------------------------------------------------------
// "kind: sentence" (README.md lists the kinds). The first thousand are kept.
long cudasim_violation_count(void);
int cudasim_violation(long index, char* text, int bytes);
// The kind alone.
int cudasim_violation_kind(long index, char* text, int bytes);
void cudasim_clear_violations(void);
// 0 keeps violations and refused launches off stderr (they are still counted).
void cudasim_set_verbose(int verbose);

// --- What is alive ---------------------------------------------------------
long cudasim_live_handles(void);
long cudasim_live_reservations(void);
long cudasim_live_mappings(void);
long cudasim_live_events(void);
long cudasim_live_streams(void);
long cudasim_live_host_allocations(void);
// One line per live object; "no leaks" alone if there is none. Returns the
// length of the text.
int cudasim_leak_report(char* text, int bytes);
// Makes a mapping-leak violation of each mapping and each held handle; returns
// how many. CUDASIM_LEAK_VIOLATIONS=1 does it at exit.
long cudasim_report_leaks(void);

// --- Kernels ---------------------------------------------------------------
typedef void (*cudasim_twin)(void** kernel_arguments, const unsigned grid[3],
                             const unsigned block[3]);
// Runs on the host whenever a kernel of that name is launched, after the check
// of its pointer arguments if it is a module's. The name is the
// mangled one, the demangled one, or the demangled one without parameters.
// Pointers in the arguments are device addresses: cudasim_host_view().
void cudasim_register_twin(const char* kernel_name, cudasim_twin twin);
// The sizes in bytes of the kernel's parameters. Needed only to capture a
// launch of it into a graph, which has to keep the arguments, and not for
// kernels of modules whose image tells them.
void cudasim_set_twin_parameters(const char* kernel_name,
                                 const unsigned long* sizes, int count);
// Modules have a variable of that name (cuModuleGetGlobal), which begins as
// zeros. Their images are not looked at for it.
void cudasim_set_module_variable(const char* name, unsigned long bytes);
// Kernels of modules without a twin: those whose mangled or demangled name
// contains one of `names` (separated by semicolons; "all": every one, nullptr
// or "": none, which is how a process starts unless CUDASIM_CHECK_RAW_LAUNCHES
// says otherwise) are launched with their pointer arguments checked and compute
// NOTHING (raw_launches.h). Each call replaces the last one's names.
void cudasim_check_raw_launches(const char* names);
// How many launches were checked and computed nothing, and the last one's
// kernel. A launch whose pointers may not be used counts, too.
long cudasim_launches_checked(void);
int cudasim_last_checked_launch(char* text, int bytes);
// Inside a twin: the stream it was launched on, for cudasim_note_access().
void* cudasim_current_stream(void);
long cudasim_launches_without_twin(void);
long cudasim_launches_with_twin(void);
int cudasim_last_missing_twin(char* text, int bytes);

// --- Refused calls ---------------------------------------------------------
// Calls of functions, or with arguments, that the simulated device does not
// have. Launches without a twin are counted above, not here.
long cudasim_refused_calls(void);
// "cuLinkCreate 2, cudaGLSetGLDevice 1"; -1 if there was none.
int cudasim_refused_names(char* text, int bytes);
// The error with which `function` answers every call, because it exists only to
// refuse; 0 for every other name.
int cudasim_refusal(const char* function);

// The operator bridge counts what it computed here.
void cudasim_count_bridged(long operators);
long cudasim_bridged_ops(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_H_
