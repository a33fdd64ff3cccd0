// SPDX-License-Identifier: Apache-2.0
//
// device_model.h: what a simulated device says it is, from its card (cards.h).
// The driver's and the runtime's attribute numbers are the same.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_DEVICE_MODEL_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_DEVICE_MODEL_H_

#include "tests/simulator/cudasim/cards.h"

namespace cudasim {

// The driver and the runtime are those of CUDA 13.2, PyTorch 2.15's. They serve
// programs of every earlier CUDA 13.
inline constexpr int kDriverVersion = 13020;
inline constexpr int kLowestPriority = 0;
inline constexpr int kHighestPriority = -5;

// False for an attribute number CUDA does not have.
bool DeviceAttribute(const Card& card, int attribute, int device, int* value);

// Blocks of that many threads and dynamic shared bytes that fit on one
// multiprocessor.
int BlocksPerMultiprocessor(const Card& card, int block_threads,
                            unsigned long shared_bytes);

// The device of a PCI bus id ("0000:01:00.0"), -1 if none of `devices` has it.
int DeviceByBusId(const char* text, int devices);

// The 16 bytes of a device's UUID.
void DeviceUuid(int device, char bytes[16]);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_DEVICE_MODEL_H_
