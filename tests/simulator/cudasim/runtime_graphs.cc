// SPDX-License-Identifier: Apache-2.0
//
// The runtime's captures and graphs: graph_calls.inc in its words, and the
// nodes that the driver offers in another form.

#include <cuda_runtime_api.h>

#include <cstring>
#include <utility>

#include "tests/simulator/cudasim/copies.h"
#include "tests/simulator/cudasim/graph_calls.h"
#include "tests/simulator/cudasim/runtime.h"

using cudasim::Answer;
using cudasim::In;
using cudasim::kBroken;
using cudasim::Lock;
using cudasim::Number;
using cudasim::Out;
using cudasim::Simulator;
using cudasim::Work;

namespace {

using Stream = cudaStream_t;
using Event = cudaEvent_t;
using CaptureMode = cudaStreamCaptureMode;
using CaptureStatus = cudaStreamCaptureStatus;
using Graph = cudaGraph_t;
using GraphNode = cudaGraphNode_t;
using GraphExec = cudaGraphExec_t;
using EdgeData = cudaGraphEdgeData;
using NodeType = cudaGraphNodeType;
using HostNodeParams = cudaHostNodeParams;
using InstantiateParams = cudaGraphInstantiateParams;
using UpdateResult = cudaGraphExecUpdateResultInfo;
using UserObject = cudaUserObject_t;
using HostFunction = cudaHostFn_t;
using Number64 = unsigned long long;

constexpr auto kMoveUserObject = cudaGraphUserObjectMove;
constexpr auto kInstantiated = cudaGraphInstantiateSuccess;
constexpr auto kInvalidStructure = cudaGraphInstantiateInvalidStructure;
constexpr auto kUpdated = cudaGraphExecUpdateSuccess;
constexpr auto kTopologyChanged = cudaGraphExecUpdateErrorTopologyChanged;
constexpr auto kUpdateError = cudaGraphExecUpdateError;
constexpr auto kErrorNode = &InstantiateParams::errNode_out;

}  // namespace

#include "tests/simulator/cudasim/graph_calls.inc"

#pragma GCC visibility push(default)
extern "C" {

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

cudaError_t CUDARTAPI cudaGraphInstantiate(cudaGraphExec_t* exec,
                                           cudaGraph_t graph,
                                           unsigned long long flags) {
  CUDASIM_ENTER("cudaGraphInstantiate");
  return Answer(cudasim::GraphInstantiate(Number(graph), flags, Out(exec)));
}

}  // extern "C"
#pragma GCC visibility pop
