// SPDX-License-Identifier: Apache-2.0
// Who holds what is on a device, as a sentence behind a refusal.
//
// Any thread, no lock held. Nothing here fails.
#ifndef STRATALLOC_PYTHON_SHIM_HOLDERS_TEXT_H_
#define STRATALLOC_PYTHON_SHIM_HOLDERS_TEXT_H_

#include <string>

#include "allocator/base/bytes.h"
#include "allocator/base/ids.h"
#include "allocator/base/result.h"

namespace stratalloc {

// "Of the 24.00 MiB allocated on GPU 0, Net.layers.3 holds 8.00 MiB
// (parameter), Net.head 4.00 MiB (gradient), (no scope) 1.00 MiB (unknown)."
// The three largest. "" if nothing is allocated.
std::string LargestHolders(DeviceIndex device);

// kOutOfMemory says who holds the memory, too; other errors stay as they are.
void AddHolders(Error* error, DeviceIndex device);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_HOLDERS_TEXT_H_
