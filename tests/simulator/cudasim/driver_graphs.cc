// SPDX-License-Identifier: Apache-2.0
//
// The driver's captures and graphs: graph_calls.inc in its words.

#include <cuda.h>

#include <cstring>
#include <utility>

#include "tests/simulator/cudasim/driver.h"
#include "tests/simulator/cudasim/graph_calls.h"

using cudasim::In;
using cudasim::kBroken;
using cudasim::Number;
using cudasim::Out;
using cudasim::Work;
using cudasim::driver::Answer;

namespace {

using Stream = CUstream;
using Event = CUevent;
using CaptureMode = CUstreamCaptureMode;
using CaptureStatus = CUstreamCaptureStatus;
using Graph = CUgraph;
using GraphNode = CUgraphNode;
using GraphExec = CUgraphExec;
using EdgeData = CUgraphEdgeData;
using NodeType = CUgraphNodeType;
using HostNodeParams = CUDA_HOST_NODE_PARAMS;
using InstantiateParams = CUDA_GRAPH_INSTANTIATE_PARAMS;
using UpdateResult = CUgraphExecUpdateResultInfo;
using UserObject = CUuserObject;
using HostFunction = CUhostFn;
using Number64 = cuuint64_t;

constexpr auto kMoveUserObject = CU_GRAPH_USER_OBJECT_MOVE;
constexpr auto kInstantiated = CUDA_GRAPH_INSTANTIATE_SUCCESS;
constexpr auto kInvalidStructure = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
constexpr auto kUpdated = CU_GRAPH_EXEC_UPDATE_SUCCESS;
constexpr auto kTopologyChanged = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
constexpr auto kUpdateError = CU_GRAPH_EXEC_UPDATE_ERROR;
constexpr auto kErrorNode = &InstantiateParams::hErrNode_out;

}  // namespace

#include "tests/simulator/cudasim/graph_calls.inc"
