// SPDX-License-Identifier: Apache-2.0
// Which kind of physical memory a driver really gives: made for export to other
// processes, made for GPUDirect RDMA. Attributes do not tell: WSL2 says that it
// makes handles for RDMA, makes them, and refuses access rights to them; some
// drivers and containers refuse handles that can be exported. So one handle is
// made, mapped and granted, and what is refused is asked for without one flag
// and then without the other.
//
// Thread-safety: any thread; takes no lock, leaves nothing behind. Does not
// wait for the device. Costs 2 MiB of the card meanwhile.
#ifndef STRATALLOC_ALLOCATOR_CUDA_HANDLE_PROBE_H_
#define STRATALLOC_ALLOCATOR_CUDA_HANDLE_PROBE_H_

#include "allocator/cuda/device.h"

namespace stratalloc {

// The device, making handles of the best kind that can be used. If the card has
// no memory for the trial just now, plain ones. If not even those can be used,
// the device without virtual memory management. Never fails.
Device ProbeHandles(const Device& device);

}  // namespace stratalloc

#endif  // STRATALLOC_ALLOCATOR_CUDA_HANDLE_PROBE_H_
