// SPDX-License-Identifier: Apache-2.0
// Facts of a refused request, gathered for the sentences behind native's text
// (cause.h).
//
// Thread-safety: any thread, no lock held. Errors: none; a fact that cannot be
// read is left out.
#ifndef STRATALLOC_PYTHON_SHIM_REFUSALS_ADD_CAUSE_H_
#define STRATALLOC_PYTHON_SHIM_REFUSALS_ADD_CAUSE_H_

#include "allocator/base/result.h"
#include "allocator/device_allocator.h"
#include "allocator/explain/trials.h"

namespace stratalloc {

// Appends the cause to a kOutOfMemory; other errors stay as they are. Tries the
// request on copies of the device's blocks.
void AddCause(Error* error, DeviceAllocator& device,
              const RefusedRequest& refused);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_REFUSALS_ADD_CAUSE_H_
