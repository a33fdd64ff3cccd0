// SPDX-License-Identifier: Apache-2.0
// The random numbers of a captured graph: where its kernels find seed and
// offset.
//
// From 2.12 on the first random operator of a capture makes the two tensors, on
// the default stream, and the core keeps what an operator of a capture makes
// (allocator/streams/captures.h). Here is what 2.11 needs:
//
// CUDAGraph::capture_begin registers the default generator (others were, by
// register_generator_state) and fills a tensor with each one's seed and one
// with its offset. Then it calls beginAllocateToPool, on the same thread, and
// only then begins to capture. Random kernels of the graph read the two tensors
// at every replay, and no operator ever names them to the guard.
//
// Their owner is the generator's state, which torch shows to nobody: the path
// goes from the default generator over the graphs registered with it, so it
// ends empty where torch changed a name, with a compile error.
//
// Thread-safety: as torch's own registration: not while another thread begins,
// resets or destroys a graph of the same device. Takes no lock, asks no driver.
#ifndef STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GRAPH_GENERATORS_H_
#define STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GRAPH_GENERATORS_H_

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <vector>

#include "tiering/engine/access.h"

namespace stratalloc {

// Seed and offset of every generator that is registered with a graph of `pool`
// on `device`; empty for a pool of no graph, while tiering is off, and with a
// torch that makes them inside the capture. The
// generators hold the tensors as long as one of their graphs lives.
std::vector<Access> GeneratorTensors(c10::DeviceIndex device,
                                     const c10::MempoolId_t& pool);

}  // namespace stratalloc

#endif  // STRATALLOC_PYTHON_SHIM_TORCH_BRIDGE_ALLOCATOR_GRAPH_GENERATORS_H_
