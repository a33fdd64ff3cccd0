// SPDX-License-Identifier: Apache-2.0
//
// graph_calls.h: captures and graphs as both the driver and the runtime offer
// them. Handles are numbers, as the program passes them.
//
// Arrays of the getters follow CUDA: with no array only the count is answered;
// with one, at most *count entries are written, the rest of the array becomes
// zero, and *count says how many there were.
//
// Thread-safety: take the simulator's lock themselves. GraphLaunch in eager
// mode runs the nodes before it returns; host functions and bridged operators
// in it run without the lock.

#ifndef STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_CALLS_H_
#define STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/graph.h"
#include "tests/simulator/cudasim/status.h"

namespace cudasim {

struct CaptureInfo {
  int status = 0;  // cudaStreamCaptureStatus
  uint64_t id = 0;
  Graph* graph = nullptr;
  GraphNode* const* dependencies = nullptr;  // until the stream's next call
  size_t count = 0;
};

// `graph` 0: a new one.
Status StreamBeginCapture(uint64_t stream, int mode, uint64_t graph,
                          const uint64_t* dependencies, size_t count);
Status StreamEndCapture(uint64_t stream, uint64_t* graph);
Status StreamCaptureInfo(uint64_t stream, CaptureInfo* info);
Status StreamUpdateCapture(uint64_t stream, const uint64_t* nodes, size_t count,
                           unsigned flags);
// The thread's mode and *mode change places.
Status ExchangeCaptureMode(int* mode);

Status GraphCreate(unsigned flags, uint64_t* graph);
Status GraphDestroy(uint64_t graph);
Status GraphClone(uint64_t graph, uint64_t* clone);
Status GraphNodes(uint64_t graph, bool roots_only, uint64_t* nodes,
                  size_t* count);
Status GraphEdges(uint64_t graph, uint64_t* from, uint64_t* to, size_t* count);
Status GraphNodeNeighbours(uint64_t node, bool dependents, uint64_t* nodes,
                           size_t* count);
Status GraphNodeType(uint64_t node, int* type);
Status GraphChangeEdges(uint64_t graph, bool add, const uint64_t* from,
                        const uint64_t* to, size_t count);
Status GraphDestroyNode(uint64_t node);
Status GraphWriteDot(uint64_t graph, const char* path);

// A node made of a work. kInvalidValue: a dependency is not of this graph.
Status GraphAdd(uint64_t graph, const uint64_t* dependencies, size_t count,
                Work work, uint64_t* node);
Status GraphAddChild(uint64_t graph, const uint64_t* dependencies, size_t count,
                     uint64_t child, uint64_t* node);
Status GraphAddEvent(uint64_t graph, const uint64_t* dependencies, size_t count,
                     bool record, uint64_t event, uint64_t* node);
Work HostWork(void (*function)(void*), void* argument);

Status GraphInstantiate(uint64_t graph, uint64_t flags, uint64_t* exec);
Status GraphUpdate(uint64_t exec, uint64_t graph);
Status GraphExecFlags(uint64_t exec, uint64_t* flags);
Status GraphExecDestroy(uint64_t exec);
Status GraphUpload(uint64_t exec, uint64_t stream);
Status GraphLaunch(uint64_t exec, uint64_t stream);

Status UserObjectCreate(void* pointer, void (*destroy)(void*), unsigned count,
                        unsigned flags, uint64_t* object);
Status UserObjectRetain(uint64_t object, unsigned count);
Status UserObjectRelease(uint64_t object, unsigned count);
// `move`: the caller's references become the graph's.
Status GraphRetainUser(uint64_t graph, uint64_t object, unsigned count,
                       bool move);
Status GraphReleaseUser(uint64_t graph, uint64_t object, unsigned count);

}  // namespace cudasim

#endif  // STRATALLOC_TESTS_SIMULATOR_CUDASIM_GRAPH_CALLS_H_
