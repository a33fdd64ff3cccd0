// SPDX-License-Identifier: Apache-2.0
// What a refusal says behind native's text: who holds what is on the device,
// and one thing that would have served the request.
//
// Any thread, no lock held. Nothing here fails: what cannot be found out is
// left away.
#ifndef STRATALLOC_PYTHON_SHIM_REFUSAL_TEXT_H_
#define STRATALLOC_PYTHON_SHIM_REFUSAL_TEXT_H_

#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"
#include "allocator/device_allocator.h"

namespace stratalloc {

// "Of the 24.00 MiB allocated on GPU 0, Net.layers.3 holds 8.00 MiB
// (parameter), Net.head 4.00 MiB (gradient), (no scope) 1.00 MiB (unknown)."
// The three largest. "" if nothing is allocated.
std::string LargestHolders(DeviceIndex device);

// kOutOfMemory says who holds the memory, too; other errors stay as they are.
void AddHolders(Error* error, DeviceIndex device);

// kOutOfMemory says what would have served the request, if anything would;
// other errors stay as they are. Tries it on a copy of the device's blocks
// (allocator/explanation.h).
void AddRemedy(Error* error, DeviceAllocator& device,
               const MallocRequest& request);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_REFUSAL_TEXT_H_
