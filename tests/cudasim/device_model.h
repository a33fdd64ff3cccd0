// SPDX-License-Identifier: Apache-2.0
//
// device_model.h: what the simulated device says it is: compute capability
// 9.0, 132 multiprocessors, the limits of that generation. The driver's and
// the runtime's attribute numbers are the same.

#ifndef STRATALLOC_TESTS_CUDASIM_DEVICE_MODEL_H_
#define STRATALLOC_TESTS_CUDASIM_DEVICE_MODEL_H_

namespace cudasim {

inline constexpr char kDeviceName[] = "cudasim (simulated device)";
inline constexpr int kDriverVersion = 13000;
inline constexpr int kComputeMajor = 9;
inline constexpr int kComputeMinor = 0;
inline constexpr int kMultiprocessors = 132;
inline constexpr int kThreadsPerMultiprocessor = 2048;
inline constexpr int kThreadsPerBlock = 1024;
inline constexpr int kSharedPerBlock = 48 << 10;
inline constexpr int kSharedPerBlockOptin = 227 << 10;
inline constexpr int kSharedPerMultiprocessor = 228 << 10;
inline constexpr int kL2Bytes = 50 << 20;
inline constexpr int kLowestPriority = 0;
inline constexpr int kHighestPriority = -5;

// False for an attribute number CUDA does not have.
bool DeviceAttribute(int attribute, int device, int* value);

// Blocks of that many threads and dynamic shared bytes that fit on one
// multiprocessor.
int BlocksPerMultiprocessor(int block_threads, unsigned long shared_bytes);

// The 16 bytes of a device's UUID.
void DeviceUuid(int device, char bytes[16]);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_CUDASIM_DEVICE_MODEL_H_
