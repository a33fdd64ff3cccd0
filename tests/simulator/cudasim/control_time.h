// SPDX-License-Identifier: Apache-2.0
//
// control_time.h: the part of control.h that is about virtual time
// (virtual_clock.h): what time it is, what took how long, and what the host and
// operators cost. Include control.h; what it says of threads, locks, failures
// and texts holds here too. All times are 0 while no card or profile is in
// force.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TIME_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TIME_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// 1 if they are kept: a card or profile is in force on some device.
int cudasim_time_is_kept(void);
// The calling thread's now, and when all work of the stream, or of the device,
// is over.
int64_t cudasim_virtual_now_ns(void);
int64_t cudasim_stream_virtual_ns(void* stream);
int64_t cudasim_device_virtual_ns(int device);
// "h2d_bytes", "d2h_bytes", "d2d_bytes", "memset_bytes", "operators", "flops",
// "kernel_ns", "copy_ns", "compute_busy_ns", "up_busy_ns", "down_busy_ns",
// "peer_busy_ns", "host_wait_ns", "calls_ns"; -1 for another name.
double cudasim_virtual_total(const char* what);
// All of them, with "now_ns" and "end_ns", as one JSON object.
int cudasim_virtual_report(char* text, int bytes);
void cudasim_virtual_reset(void);
// The calling thread worked for that long without calling CUDA (read a file,
// say).
void cudasim_host_work(double ns);
// It computed a checksum over so many bytes of the host, at the card's
// "host_checksum_gb_per_s".
void cudasim_host_checksum(uint64_t bytes);
// It looked at so many candidates for an eviction, at the card's
// "choose_ns_per_candidate".
void cudasim_host_chose(uint64_t candidates);
// The calling thread is one of the program's (0) or waits on its own account
// (1). Threads named "stratalloc..." start with 1.
void cudasim_set_background(int background);

// What an operator costs: floating-point operations in `dtype`, bytes read and
// written. cudasim_operator_cost also charges the calling thread for an
// operator of PyTorch, cudasim_kernel_cost does not (replayed work, twins).
enum {
  CUDASIM_FP64 = 0,
  CUDASIM_FP32 = 1,
  CUDASIM_TF32 = 2,
  CUDASIM_FP16 = 3,
  CUDASIM_BF16 = 4,
  CUDASIM_FP8 = 5,
  CUDASIM_INT8 = 6
};
void cudasim_operator_cost(void* stream, double flops, double bytes, int dtype);
// A copy between pageable host memory and the device that was no CUDA call.
void cudasim_copy_cost(void* stream, int to_device, double bytes);
void cudasim_kernel_cost(void* stream, double flops, double bytes, int dtype);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_CONTROL_TIME_H_
