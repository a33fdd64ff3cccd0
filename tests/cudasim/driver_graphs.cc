// SPDX-License-Identifier: Apache-2.0
//
// The driver's captures and graphs: runtime_graphs.cc in the driver's words.

#include <cuda.h>

#include <cstring>
#include <utility>

#include "tests/cudasim/copies.h"
#include "tests/cudasim/graph_calls.h"
#include "tests/cudasim/simulator.h"

#define CUDASIM_ANSWER(status) static_cast<CUresult>(status)

using cudasim::Lock;
using cudasim::Simulator;
using cudasim::Work;

namespace {

constexpr auto kBroken = cudasim::Entry::kAllowedWhenBroken;

CUresult Answer(cudasim::Status status) {
  return static_cast<CUresult>(status);
}

template <typename Handle>
uint64_t Number(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

// Handles as numbers; both are one machine word.
template <typename Handle>
uint64_t* Out(Handle* handle) {
  return reinterpret_cast<uint64_t*>(handle);
}
template <typename Handle>
const uint64_t* In(const Handle* handles) {
  return reinterpret_cast<const uint64_t*>(handles);
}

// Edges carry no data here: a port or a type other than the default is
// programmatic launch, which the simulated device does not have.
void ClearEdges(CUgraphEdgeData* edges, size_t count) {
  if (edges != nullptr) std::memset(edges, 0, count * sizeof(*edges));
}

bool ArePlain(const CUgraphEdgeData* edges, size_t count) {
  const CUgraphEdgeData plain = {};
  for (size_t i = 0; edges != nullptr && i < count; ++i) {
    if (std::memcmp(&edges[i], &plain, sizeof(plain)) != 0) return false;
  }
  return true;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

CUresult CUDAAPI cuStreamBeginCapture(CUstream stream,
                                      CUstreamCaptureMode mode) {
  CUDASIM_ENTER("cuStreamBeginCapture");
  return Answer(cudasim::StreamBeginCapture(
      Number(stream), static_cast<int>(mode), 0, nullptr, 0));
}

CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                             const CUgraphNode* dependencies,
                                             const CUgraphEdgeData* edges,
                                             size_t count,
                                             CUstreamCaptureMode mode) {
  CUDASIM_ENTER("cuStreamBeginCaptureToGraph");
  if (graph == nullptr) return Answer(cudasim::kInvalidValue);
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::StreamBeginCapture(Number(stream), static_cast<int>(mode),
                                  Number(graph), In(dependencies), count));
}

CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  CUDASIM_ENTER("cuStreamEndCapture", kBroken);
  return Answer(cudasim::StreamEndCapture(Number(stream), Out(graph)));
}

CUresult CUDAAPI cuStreamIsCapturing(CUstream stream,
                                     CUstreamCaptureStatus* status) {
  CUDASIM_ENTER("cuStreamIsCapturing", kBroken);
  cudasim::CaptureInfo info;
  const cudasim::Status answer =
      cudasim::StreamCaptureInfo(Number(stream), &info);
  *status = static_cast<CUstreamCaptureStatus>(info.status);
  return Answer(answer);
}

CUresult CUDAAPI cuStreamGetCaptureInfo(CUstream stream,
                                        CUstreamCaptureStatus* status,
                                        cuuint64_t* id, CUgraph* graph,
                                        const CUgraphNode** dependencies,
                                        const CUgraphEdgeData** edges,
                                        size_t* count) {
  CUDASIM_ENTER("cuStreamGetCaptureInfo", kBroken);
  cudasim::CaptureInfo info;
  const cudasim::Status answer =
      cudasim::StreamCaptureInfo(Number(stream), &info);
  *status = static_cast<CUstreamCaptureStatus>(info.status);
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = reinterpret_cast<CUgraph>(info.graph);
  if (dependencies != nullptr) {
    *dependencies = reinterpret_cast<const CUgraphNode*>(info.dependencies);
  }
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = info.count;
  return Answer(answer);
}

CUresult CUDAAPI cuStreamUpdateCaptureDependencies(CUstream stream,
                                                   CUgraphNode* nodes,
                                                   const CUgraphEdgeData* edges,
                                                   size_t count,
                                                   unsigned flags) {
  CUDASIM_ENTER("cuStreamUpdateCaptureDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::StreamUpdateCapture(Number(stream), In(nodes), count, flags));
}

CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  CUDASIM_ENTER("cuThreadExchangeStreamCaptureMode", kBroken);
  int value = mode == nullptr ? -1 : static_cast<int>(*mode);
  const cudasim::Status status = cudasim::ExchangeCaptureMode(&value);
  if (status == cudasim::kOk) *mode = static_cast<CUstreamCaptureMode>(value);
  return Answer(status);
}

CUresult CUDAAPI cuGraphCreate(CUgraph* graph, unsigned flags) {
  CUDASIM_ENTER("cuGraphCreate");
  return Answer(cudasim::GraphCreate(flags, Out(graph)));
}

CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
  CUDASIM_ENTER("cuGraphDestroy", kBroken);
  return Answer(cudasim::GraphDestroy(Number(graph)));
}

CUresult CUDAAPI cuGraphClone(CUgraph* clone, CUgraph graph) {
  CUDASIM_ENTER("cuGraphClone");
  return Answer(cudasim::GraphClone(Number(graph), Out(clone)));
}

CUresult CUDAAPI cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes,
                                 size_t* count) {
  CUDASIM_ENTER("cuGraphGetNodes", kBroken);
  return Answer(cudasim::GraphNodes(Number(graph), false, Out(nodes), count));
}

CUresult CUDAAPI cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes,
                                     size_t* count) {
  CUDASIM_ENTER("cuGraphGetRootNodes", kBroken);
  return Answer(cudasim::GraphNodes(Number(graph), true, Out(nodes), count));
}

CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode* from,
                                 CUgraphNode* to, CUgraphEdgeData* edges,
                                 size_t* count) {
  CUDASIM_ENTER("cuGraphGetEdges", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(cudasim::GraphEdges(Number(graph), Out(from), Out(to), count));
}

CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node,
                                            CUgraphNode* nodes,
                                            CUgraphEdgeData* edges,
                                            size_t* count) {
  CUDASIM_ENTER("cuGraphNodeGetDependencies", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(
      cudasim::GraphNodeNeighbours(Number(node), false, Out(nodes), count));
}

CUresult CUDAAPI cuGraphNodeGetDependentNodes(CUgraphNode node,
                                              CUgraphNode* nodes,
                                              CUgraphEdgeData* edges,
                                              size_t* count) {
  CUDASIM_ENTER("cuGraphNodeGetDependentNodes", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(
      cudasim::GraphNodeNeighbours(Number(node), true, Out(nodes), count));
}

CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
  CUDASIM_ENTER("cuGraphNodeGetType", kBroken);
  int value = 0;
  const cudasim::Status status = cudasim::GraphNodeType(Number(node), &value);
  if (status == cudasim::kOk) *type = static_cast<CUgraphNodeType>(value);
  return Answer(status);
}

CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                        const CUgraphNode* to,
                                        const CUgraphEdgeData* edges,
                                        size_t count) {
  CUDASIM_ENTER("cuGraphAddDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::GraphChangeEdges(Number(graph), true, In(from), In(to), count));
}

CUresult CUDAAPI cuGraphRemoveDependencies(CUgraph graph,
                                           const CUgraphNode* from,
                                           const CUgraphNode* to,
                                           const CUgraphEdgeData* edges,
                                           size_t count) {
  CUDASIM_ENTER("cuGraphRemoveDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::GraphChangeEdges(Number(graph), false, In(from), In(to), count));
}

CUresult CUDAAPI cuGraphDestroyNode(CUgraphNode node) {
  CUDASIM_ENTER("cuGraphDestroyNode", kBroken);
  return Answer(cudasim::GraphDestroyNode(Number(node)));
}

CUresult CUDAAPI cuGraphDebugDotPrint(CUgraph graph, const char* path,
                                      unsigned) {
  CUDASIM_ENTER("cuGraphDebugDotPrint", kBroken);
  return Answer(cudasim::GraphWriteDot(Number(graph), path));
}

CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph,
                                     const CUgraphNode* before, size_t count) {
  CUDASIM_ENTER("cuGraphAddEmptyNode");
  Work work;
  work.name = "an empty node";
  return Answer(cudasim::GraphAdd(Number(graph), In(before), count,
                                  std::move(work), Out(node)));
}

CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* node, CUgraph graph,
                                    const CUgraphNode* before, size_t count,
                                    const CUDA_HOST_NODE_PARAMS* params) {
  CUDASIM_ENTER("cuGraphAddHostNode");
  if (params == nullptr || params->fn == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(cudasim::GraphAdd(
      Number(graph), In(before), count,
      cudasim::HostWork(params->fn, params->userData), Out(node)));
}

CUresult CUDAAPI cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph,
                                          const CUgraphNode* before,
                                          size_t count, CUgraph child) {
  CUDASIM_ENTER("cuGraphAddChildGraphNode");
  return Answer(cudasim::GraphAddChild(Number(graph), In(before), count,
                                       Number(child), Out(node)));
}

CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                           const CUgraphNode* before,
                                           size_t count, CUevent event) {
  CUDASIM_ENTER("cuGraphAddEventRecordNode");
  return Answer(cudasim::GraphAddEvent(Number(graph), In(before), count, true,
                                       Number(event), Out(node)));
}

CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph,
                                         const CUgraphNode* before,
                                         size_t count, CUevent event) {
  CUDASIM_ENTER("cuGraphAddEventWaitNode");
  return Answer(cudasim::GraphAddEvent(Number(graph), In(before), count, false,
                                       Number(event), Out(node)));
}

CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                             unsigned long long flags) {
  CUDASIM_ENTER("cuGraphInstantiateWithFlags");
  return Answer(cudasim::GraphInstantiate(Number(graph), flags, Out(exec)));
}

CUresult CUDAAPI cuGraphInstantiateWithParams(
    CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* params) {
  CUDASIM_ENTER("cuGraphInstantiateWithParams");
  if (params == nullptr) return Answer(cudasim::kInvalidValue);
  const cudasim::Status status =
      cudasim::GraphInstantiate(Number(graph), params->flags, Out(exec));
  params->hErrNode_out = nullptr;
  params->result_out = status == cudasim::kOk
                           ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                           : CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
  return Answer(status);
}

CUresult CUDAAPI cuGraphExecUpdate(CUgraphExec exec, CUgraph graph,
                                   CUgraphExecUpdateResultInfo* info) {
  CUDASIM_ENTER("cuGraphExecUpdate");
  const cudasim::Status status =
      cudasim::GraphUpdate(Number(exec), Number(graph));
  if (info != nullptr) {
    info->errorNode = nullptr;
    info->errorFromNode = nullptr;
    info->result = status == cudasim::kOk ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                   : status == cudasim::kGraphExecUpdateFailure
                       ? CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
                       : CU_GRAPH_EXEC_UPDATE_ERROR;
  }
  return Answer(status);
}

CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
  CUDASIM_ENTER("cuGraphExecGetFlags", kBroken);
  uint64_t value = 0;
  const cudasim::Status status = cudasim::GraphExecFlags(Number(exec), &value);
  if (status == cudasim::kOk) *flags = value;
  return Answer(status);
}

CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
  CUDASIM_ENTER("cuGraphExecDestroy", kBroken);
  return Answer(cudasim::GraphExecDestroy(Number(exec)));
}

CUresult CUDAAPI cuGraphUpload(CUgraphExec exec, CUstream stream) {
  CUDASIM_ENTER("cuGraphUpload");
  return Answer(cudasim::GraphUpload(Number(exec), Number(stream)));
}

CUresult CUDAAPI cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  CUDASIM_ENTER("cuGraphLaunch");
  return Answer(cudasim::GraphLaunch(Number(exec), Number(stream)));
}

CUresult CUDAAPI cuUserObjectCreate(CUuserObject* object, void* pointer,
                                    CUhostFn destroy, unsigned count,
                                    unsigned flags) {
  CUDASIM_ENTER("cuUserObjectCreate");
  return Answer(
      cudasim::UserObjectCreate(pointer, destroy, count, flags, Out(object)));
}

CUresult CUDAAPI cuUserObjectRetain(CUuserObject object, unsigned count) {
  CUDASIM_ENTER("cuUserObjectRetain");
  return Answer(cudasim::UserObjectRetain(Number(object), count));
}

CUresult CUDAAPI cuUserObjectRelease(CUuserObject object, unsigned count) {
  CUDASIM_ENTER("cuUserObjectRelease", kBroken);
  return Answer(cudasim::UserObjectRelease(Number(object), count));
}

CUresult CUDAAPI cuGraphRetainUserObject(CUgraph graph, CUuserObject object,
                                         unsigned count, unsigned flags) {
  CUDASIM_ENTER("cuGraphRetainUserObject");
  if (flags > CU_GRAPH_USER_OBJECT_MOVE) return Answer(cudasim::kInvalidValue);
  return Answer(cudasim::GraphRetainUser(Number(graph), Number(object), count,
                                         flags != 0));
}

CUresult CUDAAPI cuGraphReleaseUserObject(CUgraph graph, CUuserObject object,
                                          unsigned count) {
  CUDASIM_ENTER("cuGraphReleaseUserObject", kBroken);
  return Answer(
      cudasim::GraphReleaseUser(Number(graph), Number(object), count));
}

}  // extern "C"
#pragma GCC visibility pop
