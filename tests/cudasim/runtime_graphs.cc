// SPDX-License-Identifier: Apache-2.0
//
// The runtime's captures and graphs.

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "tests/cudasim/copies.h"
#include "tests/cudasim/graph_calls.h"
#include "tests/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::kBroken;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Simulator;
using cudasim::Work;

namespace {

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
void ClearEdges(cudaGraphEdgeData* edges, size_t count) {
  if (edges != nullptr) std::memset(edges, 0, count * sizeof(*edges));
}

bool ArePlain(const cudaGraphEdgeData* edges, size_t count) {
  const cudaGraphEdgeData plain = {};
  for (size_t i = 0; edges != nullptr && i < count; ++i) {
    if (std::memcmp(&edges[i], &plain, sizeof(plain)) != 0) return false;
  }
  return true;
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

cudaError_t CUDARTAPI cudaStreamBeginCapture(cudaStream_t stream,
                                             cudaStreamCaptureMode mode) {
  CUDASIM_ENTER("cudaStreamBeginCapture");
  return Answer(cudasim::StreamBeginCapture(
      Number(stream), static_cast<int>(mode), 0, nullptr, 0));
}

cudaError_t CUDARTAPI cudaStreamBeginCaptureToGraph(
    cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
    const cudaGraphEdgeData* edges, size_t count, cudaStreamCaptureMode mode) {
  CUDASIM_ENTER("cudaStreamBeginCaptureToGraph");
  if (graph == nullptr) return Answer(cudasim::kInvalidValue);
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::StreamBeginCapture(Number(stream), static_cast<int>(mode),
                                  Number(graph), In(dependencies), count));
}

cudaError_t CUDARTAPI cudaStreamEndCapture(cudaStream_t stream,
                                           cudaGraph_t* graph) {
  CUDASIM_ENTER("cudaStreamEndCapture", kBroken);
  return Answer(cudasim::StreamEndCapture(Number(stream), Out(graph)));
}

cudaError_t CUDARTAPI cudaStreamIsCapturing(cudaStream_t stream,
                                            cudaStreamCaptureStatus* status) {
  CUDASIM_ENTER("cudaStreamIsCapturing", kBroken);
  cudasim::CaptureInfo info;
  const cudasim::Status answer =
      cudasim::StreamCaptureInfo(Number(stream), &info);
  *status = static_cast<cudaStreamCaptureStatus>(info.status);
  return Answer(answer);
}

cudaError_t CUDARTAPI
cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph,
                         const cudaGraphNode_t** dependencies,
                         const cudaGraphEdgeData** edges, size_t* count) {
  CUDASIM_ENTER("cudaStreamGetCaptureInfo", kBroken);
  cudasim::CaptureInfo info;
  const cudasim::Status answer =
      cudasim::StreamCaptureInfo(Number(stream), &info);
  *status = static_cast<cudaStreamCaptureStatus>(info.status);
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = reinterpret_cast<cudaGraph_t>(info.graph);
  if (dependencies != nullptr) {
    *dependencies = reinterpret_cast<const cudaGraphNode_t*>(info.dependencies);
  }
  if (edges != nullptr) *edges = nullptr;
  if (count != nullptr) *count = info.count;
  return Answer(answer);
}

cudaError_t CUDARTAPI cudaStreamUpdateCaptureDependencies(
    cudaStream_t stream, cudaGraphNode_t* nodes, const cudaGraphEdgeData* edges,
    size_t count, unsigned flags) {
  CUDASIM_ENTER("cudaStreamUpdateCaptureDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::StreamUpdateCapture(Number(stream), In(nodes), count, flags));
}

cudaError_t CUDARTAPI
cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  CUDASIM_ENTER("cudaThreadExchangeStreamCaptureMode", kBroken);
  int value = mode == nullptr ? -1 : static_cast<int>(*mode);
  const cudasim::Status status = cudasim::ExchangeCaptureMode(&value);
  if (status == cudasim::kOk) *mode = static_cast<cudaStreamCaptureMode>(value);
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  CUDASIM_ENTER("cudaGraphCreate");
  return Answer(cudasim::GraphCreate(flags, Out(graph)));
}

cudaError_t CUDARTAPI cudaGraphDestroy(cudaGraph_t graph) {
  CUDASIM_ENTER("cudaGraphDestroy", kBroken);
  return Answer(cudasim::GraphDestroy(Number(graph)));
}

cudaError_t CUDARTAPI cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  CUDASIM_ENTER("cudaGraphClone");
  return Answer(cudasim::GraphClone(Number(graph), Out(clone)));
}

cudaError_t CUDARTAPI cudaGraphGetNodes(cudaGraph_t graph,
                                        cudaGraphNode_t* nodes, size_t* count) {
  CUDASIM_ENTER("cudaGraphGetNodes", kBroken);
  return Answer(cudasim::GraphNodes(Number(graph), false, Out(nodes), count));
}

cudaError_t CUDARTAPI cudaGraphGetRootNodes(cudaGraph_t graph,
                                            cudaGraphNode_t* nodes,
                                            size_t* count) {
  CUDASIM_ENTER("cudaGraphGetRootNodes", kBroken);
  return Answer(cudasim::GraphNodes(Number(graph), true, Out(nodes), count));
}

cudaError_t CUDARTAPI cudaGraphGetEdges(cudaGraph_t graph,
                                        cudaGraphNode_t* from,
                                        cudaGraphNode_t* to,
                                        cudaGraphEdgeData* edges,
                                        size_t* count) {
  CUDASIM_ENTER("cudaGraphGetEdges", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(cudasim::GraphEdges(Number(graph), Out(from), Out(to), count));
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                   cudaGraphNode_t* nodes,
                                                   cudaGraphEdgeData* edges,
                                                   size_t* count) {
  CUDASIM_ENTER("cudaGraphNodeGetDependencies", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(
      cudasim::GraphNodeNeighbours(Number(node), false, Out(nodes), count));
}

cudaError_t CUDARTAPI cudaGraphNodeGetDependentNodes(cudaGraphNode_t node,
                                                     cudaGraphNode_t* nodes,
                                                     cudaGraphEdgeData* edges,
                                                     size_t* count) {
  CUDASIM_ENTER("cudaGraphNodeGetDependentNodes", kBroken);
  if (count != nullptr) ClearEdges(edges, *count);
  return Answer(
      cudasim::GraphNodeNeighbours(Number(node), true, Out(nodes), count));
}

cudaError_t CUDARTAPI cudaGraphNodeGetType(cudaGraphNode_t node,
                                           cudaGraphNodeType* type) {
  CUDASIM_ENTER("cudaGraphNodeGetType", kBroken);
  int value = 0;
  const cudasim::Status status = cudasim::GraphNodeType(Number(node), &value);
  if (status == cudasim::kOk) *type = static_cast<cudaGraphNodeType>(value);
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGraphAddDependencies(cudaGraph_t graph,
                                               const cudaGraphNode_t* from,
                                               const cudaGraphNode_t* to,
                                               const cudaGraphEdgeData* edges,
                                               size_t count) {
  CUDASIM_ENTER("cudaGraphAddDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::GraphChangeEdges(Number(graph), true, In(from), In(to), count));
}

cudaError_t CUDARTAPI cudaGraphRemoveDependencies(
    cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
    const cudaGraphEdgeData* edges, size_t count) {
  CUDASIM_ENTER("cudaGraphRemoveDependencies");
  if (!ArePlain(edges, count)) return Answer(cudasim::kNotSupported);
  return Answer(
      cudasim::GraphChangeEdges(Number(graph), false, In(from), In(to), count));
}

cudaError_t CUDARTAPI cudaGraphDestroyNode(cudaGraphNode_t node) {
  CUDASIM_ENTER("cudaGraphDestroyNode", kBroken);
  return Answer(cudasim::GraphDestroyNode(Number(node)));
}

cudaError_t CUDARTAPI cudaGraphDebugDotPrint(cudaGraph_t graph,
                                             const char* path, unsigned) {
  CUDASIM_ENTER("cudaGraphDebugDotPrint", kBroken);
  return Answer(cudasim::GraphWriteDot(Number(graph), path));
}

cudaError_t CUDARTAPI cudaGraphAddEmptyNode(cudaGraphNode_t* node,
                                            cudaGraph_t graph,
                                            const cudaGraphNode_t* before,
                                            size_t count) {
  CUDASIM_ENTER("cudaGraphAddEmptyNode");
  Work work;
  work.name = "an empty node";
  return Answer(cudasim::GraphAdd(Number(graph), In(before), count,
                                  std::move(work), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddHostNode(cudaGraphNode_t* node,
                                           cudaGraph_t graph,
                                           const cudaGraphNode_t* before,
                                           size_t count,
                                           const cudaHostNodeParams* params) {
  CUDASIM_ENTER("cudaGraphAddHostNode");
  if (params == nullptr || params->fn == nullptr) {
    return Answer(cudasim::kInvalidValue);
  }
  return Answer(cudasim::GraphAdd(
      Number(graph), In(before), count,
      cudasim::HostWork(params->fn, params->userData), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node,
                                               cudaGraph_t graph,
                                               const cudaGraphNode_t* before,
                                               size_t count, void* to,
                                               const void* from, size_t bytes,
                                               cudaMemcpyKind kind) {
  CUDASIM_ENTER("cudaGraphAddMemcpyNode1D");
  cudasim::CopyRequest request;
  request.destination = Number(to);
  request.source = Number(from);
  request.width = bytes;
  request.direction = static_cast<cudasim::Direction>(static_cast<int>(kind));
  Work work;
  cudasim::Status status = cudasim::kOk;
  {
    Lock lock(Simulator::Get().mu);
    status = cudasim::CopyWork("cudaGraphAddMemcpyNode1D", request, &work);
  }
  if (status != cudasim::kOk) return Answer(status);
  return Answer(cudasim::GraphAdd(Number(graph), In(before), count,
                                  std::move(work), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddMemsetNode(cudaGraphNode_t* node,
                                             cudaGraph_t graph,
                                             const cudaGraphNode_t* before,
                                             size_t count,
                                             const cudaMemsetParams* params) {
  CUDASIM_ENTER("cudaGraphAddMemsetNode");
  if (params == nullptr) return Answer(cudasim::kInvalidValue);
  cudasim::FillRequest request;
  request.destination = Number(params->dst);
  request.value = params->value;
  request.value_bytes = params->elementSize;
  request.width = params->width * params->elementSize;
  request.height = params->height;
  request.pitch = params->pitch;
  Work work;
  cudasim::Status status = cudasim::kOk;
  {
    Lock lock(Simulator::Get().mu);
    status = cudasim::FillWork("cudaGraphAddMemsetNode", request, &work);
  }
  if (status != cudasim::kOk) return Answer(status);
  return Answer(cudasim::GraphAdd(Number(graph), In(before), count,
                                  std::move(work), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddChildGraphNode(cudaGraphNode_t* node,
                                                 cudaGraph_t graph,
                                                 const cudaGraphNode_t* before,
                                                 size_t count,
                                                 cudaGraph_t child) {
  CUDASIM_ENTER("cudaGraphAddChildGraphNode");
  return Answer(cudasim::GraphAddChild(Number(graph), In(before), count,
                                       Number(child), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddEventRecordNode(cudaGraphNode_t* node,
                                                  cudaGraph_t graph,
                                                  const cudaGraphNode_t* before,
                                                  size_t count,
                                                  cudaEvent_t event) {
  CUDASIM_ENTER("cudaGraphAddEventRecordNode");
  return Answer(cudasim::GraphAddEvent(Number(graph), In(before), count, true,
                                       Number(event), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphAddEventWaitNode(cudaGraphNode_t* node,
                                                cudaGraph_t graph,
                                                const cudaGraphNode_t* before,
                                                size_t count,
                                                cudaEvent_t event) {
  CUDASIM_ENTER("cudaGraphAddEventWaitNode");
  return Answer(cudasim::GraphAddEvent(Number(graph), In(before), count, false,
                                       Number(event), Out(node)));
}

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* exec,
                                           cudaGraph_t graph,
                                           unsigned long long flags) {
  CUDASIM_ENTER("cudaGraphInstantiate");
  return Answer(cudasim::GraphInstantiate(Number(graph), flags, Out(exec)));
}

cudaError_t CUDARTAPI cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec,
                                                    cudaGraph_t graph,
                                                    unsigned long long flags) {
  CUDASIM_ENTER("cudaGraphInstantiateWithFlags");
  return Answer(cudasim::GraphInstantiate(Number(graph), flags, Out(exec)));
}

cudaError_t CUDARTAPI
cudaGraphInstantiateWithParams(cudaGraphExec_t* exec, cudaGraph_t graph,
                               cudaGraphInstantiateParams* params) {
  CUDASIM_ENTER("cudaGraphInstantiateWithParams");
  if (params == nullptr) return Answer(cudasim::kInvalidValue);
  const cudasim::Status status =
      cudasim::GraphInstantiate(Number(graph), params->flags, Out(exec));
  params->errNode_out = nullptr;
  params->result_out = status == cudasim::kOk
                           ? cudaGraphInstantiateSuccess
                           : cudaGraphInstantiateInvalidStructure;
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGraphExecUpdate(cudaGraphExec_t exec,
                                          cudaGraph_t graph,
                                          cudaGraphExecUpdateResultInfo* info) {
  CUDASIM_ENTER("cudaGraphExecUpdate");
  const cudasim::Status status =
      cudasim::GraphUpdate(Number(exec), Number(graph));
  if (info != nullptr) {
    info->errorNode = nullptr;
    info->errorFromNode = nullptr;
    info->result = status == cudasim::kOk ? cudaGraphExecUpdateSuccess
                   : status == cudasim::kGraphExecUpdateFailure
                       ? cudaGraphExecUpdateErrorTopologyChanged
                       : cudaGraphExecUpdateError;
  }
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGraphExecGetFlags(cudaGraphExec_t exec,
                                            unsigned long long* flags) {
  CUDASIM_ENTER("cudaGraphExecGetFlags", kBroken);
  uint64_t value = 0;
  const cudasim::Status status = cudasim::GraphExecFlags(Number(exec), &value);
  if (status == cudasim::kOk) *flags = value;
  return Answer(status);
}

cudaError_t CUDARTAPI cudaGraphExecDestroy(cudaGraphExec_t exec) {
  CUDASIM_ENTER("cudaGraphExecDestroy", kBroken);
  return Answer(cudasim::GraphExecDestroy(Number(exec)));
}

cudaError_t CUDARTAPI cudaGraphUpload(cudaGraphExec_t exec,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaGraphUpload");
  return Answer(cudasim::GraphUpload(Number(exec), Number(stream)));
}

cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t exec,
                                      cudaStream_t stream) {
  CUDASIM_ENTER("cudaGraphLaunch");
  return Answer(cudasim::GraphLaunch(Number(exec), Number(stream)));
}

cudaError_t CUDARTAPI cudaUserObjectCreate(cudaUserObject_t* object,
                                           void* pointer, cudaHostFn_t destroy,
                                           unsigned count, unsigned flags) {
  CUDASIM_ENTER("cudaUserObjectCreate");
  return Answer(
      cudasim::UserObjectCreate(pointer, destroy, count, flags, Out(object)));
}

cudaError_t CUDARTAPI cudaUserObjectRetain(cudaUserObject_t object,
                                           unsigned count) {
  CUDASIM_ENTER("cudaUserObjectRetain");
  return Answer(cudasim::UserObjectRetain(Number(object), count));
}

cudaError_t CUDARTAPI cudaUserObjectRelease(cudaUserObject_t object,
                                            unsigned count) {
  CUDASIM_ENTER("cudaUserObjectRelease", kBroken);
  return Answer(cudasim::UserObjectRelease(Number(object), count));
}

cudaError_t CUDARTAPI cudaGraphRetainUserObject(cudaGraph_t graph,
                                                cudaUserObject_t object,
                                                unsigned count,
                                                unsigned flags) {
  CUDASIM_ENTER("cudaGraphRetainUserObject");
  if (flags > cudaGraphUserObjectMove) return Answer(cudasim::kInvalidValue);
  return Answer(cudasim::GraphRetainUser(Number(graph), Number(object), count,
                                         flags != 0));
}

cudaError_t CUDARTAPI cudaGraphReleaseUserObject(cudaGraph_t graph,
                                                 cudaUserObject_t object,
                                                 unsigned count) {
  CUDASIM_ENTER("cudaGraphReleaseUserObject", kBroken);
  return Answer(
      cudasim::GraphReleaseUser(Number(graph), Number(object), count));
}

}  // extern "C"
#pragma GCC visibility pop
