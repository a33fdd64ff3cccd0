// SPDX-License-Identifier: Apache-2.0
//
// Graphs: what a launch does, how often, in what order, and what it needs.

#include <memory>
#include <string>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class GraphTest : public SimulatorTest,
                  public testing::WithParamInterface<int> {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    cudasim_set_mode(GetParam());
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    EXPECT_EQ(cudasim_violation_count(), violations_);
    SimulatorTest::TearDown();
  }

  void Begin() {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal),
              cudaSuccess);
  }
  cudaGraphExec_t Instantiate() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    cudaGraphExec_t exec = nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    return exec;
  }
  void Launch(cudaGraphExec_t exec) {
    EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaSuccess);
  }
  void Finish() { EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess); }

  static void Append(void* text) { *static_cast<std::string*>(text) += "x"; }

  cudaStream_t stream_ = nullptr;
  long violations_ = 0;
};

TEST_P(GraphTest, CopiesFillsAndHostFunctionsRunAtEveryLaunch) {
  Block block;
  char* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(reinterpret_cast<void**>(&pinned), 64), cudaSuccess);
  char* const device = static_cast<char*>(block.pointer());
  std::string calls;
  Begin();
  ASSERT_EQ(cudaMemcpyAsync(device, pinned, 64, cudaMemcpyDefault, stream_),
            cudaSuccess);
  ASSERT_EQ(
      cudaMemcpyAsync(device + 64, device, 64, cudaMemcpyDefault, stream_),
      cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device, 9, 32, stream_), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(stream_, Append, &calls), cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  EXPECT_EQ(calls, "");
  for (const char value : {3, 4}) {
    std::memset(pinned, value, 64);
    Launch(exec);
    Finish();
    EXPECT_EQ(block.Peek(0), 9);
    EXPECT_EQ(block.Peek(33), value);
    EXPECT_EQ(block.Peek(64), value);
  }
  EXPECT_EQ(calls, "xx");
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_P(GraphTest, AnExecutableGraphMayGoWhileItRuns) {
  Block block;
  Begin();
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 7, 64, stream_), cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  Launch(exec);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  Finish();
  EXPECT_EQ(block.Peek(), 7);
  EXPECT_EQ(cudaGraphLaunch(exec, stream_), cudaErrorInvalidValue);
}

TEST_P(GraphTest, ALaunchOnUnmappedMemoryIsNamed) {
  auto block = std::make_unique<Block>();
  Begin();
  ASSERT_EQ(cudaMemsetAsync(block->pointer(), 7, 64, stream_), cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  block.reset();
  const cudaError_t launched = cudaGraphLaunch(exec, stream_);
  EXPECT_EQ(launched, GetParam() == 0 ? cudaErrorIllegalAddress : cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  violations_ = 1;
  EXPECT_NE(Violation(0).find("cudaMemsetAsync in a graph on stream"),
            std::string::npos)
      << Violation(0);
  cudasim_clear_errors();
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_P(GraphTest, BuiltByHand) {
  Block block;
  std::string calls;
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaMemsetParams fill = {};
  fill.dst = block.pointer();
  fill.value = 0x0102;
  fill.elementSize = 2;
  fill.width = 8;
  fill.height = 1;
  cudaGraphNode_t first = nullptr, second = nullptr, third = nullptr;
  char* const bytes = static_cast<char*>(block.pointer());
  // Added before what it depends on.
  ASSERT_EQ(cudaGraphAddMemcpyNode1D(&second, graph, nullptr, 0, bytes + 64,
                                     bytes, 16, cudaMemcpyDefault),
            cudaSuccess);
  ASSERT_EQ(cudaGraphAddMemsetNode(&first, graph, nullptr, 0, &fill),
            cudaSuccess);
  ASSERT_EQ(cudaGraphAddDependencies(graph, &first, &second, nullptr, 1),
            cudaSuccess);
  cudaHostNodeParams host = {Append, &calls};
  ASSERT_EQ(cudaGraphAddHostNode(&third, graph, &second, 1, &host),
            cudaSuccess);

  cudaGraph_t clone = nullptr;
  ASSERT_EQ(cudaGraphClone(&clone, graph), cudaSuccess);
  cudaGraphNode_t child = nullptr;
  ASSERT_EQ(cudaGraphAddChildGraphNode(&child, graph, &third, 1, clone),
            cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(clone), cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  // What is changed now does not concern it.
  ASSERT_EQ(cudaGraphAddDependencies(graph, &child, &first, nullptr, 1),
            cudaSuccess);
  cudaGraphExec_t circle = nullptr;
  EXPECT_EQ(cudaGraphInstantiate(&circle, graph, 0), cudaErrorInvalidValue);
  Launch(exec);
  Finish();
  EXPECT_EQ(calls, "xx");
  EXPECT_EQ(block.Peek(64), 2);
  EXPECT_EQ(block.Peek(65), 1);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaErrorInvalidValue);
}

TEST_P(GraphTest, ALaunchInACaptureBecomesAChild) {
  Block block;
  std::string calls;
  Begin();
  ASSERT_EQ(cudaLaunchHostFunc(stream_, Append, &calls), cudaSuccess);
  cudaGraphExec_t inner = Instantiate();
  Begin();
  Launch(inner);
  Launch(inner);
  cudaGraphExec_t outer = Instantiate();
  EXPECT_EQ(cudaGraphExecDestroy(inner), cudaSuccess);
  EXPECT_EQ(calls, "");
  Launch(outer);
  Finish();
  EXPECT_EQ(calls, "xx");
  EXPECT_EQ(cudaGraphExecDestroy(outer), cudaSuccess);
}

TEST_P(GraphTest, ExternalEventsAreRecordedAtTheLaunch) {
  Block block;
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  cudaStream_t other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking),
            cudaSuccess);
  Begin();
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 5, 64, stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecordWithFlags(event, stream_, cudaEventRecordExternal),
            cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  Launch(exec);
  // The edge it makes is a real one: no violation.
  ASSERT_EQ(cudaStreamWaitEvent(other, event, 0), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 6, 64, other), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(block.Peek(), 6);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
}

TEST_P(GraphTest, AReplayCountsAsPendingUntilAnEdge) {
  Block block;
  Begin();
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 5, 64, stream_), cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  Launch(exec);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 6, 64, nullptr), cudaSuccess);
  violations_ = GetParam();  // async sees it
  if (GetParam() != 0) {
    EXPECT_NE(Violation(0).find("cudaMemsetAsync in a graph"),
              std::string::npos)
        << Violation(0);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_P(GraphTest, UpdateTakesNewAddressesOver) {
  Block block;
  char* const bytes = static_cast<char*>(block.pointer());
  Begin();
  ASSERT_EQ(cudaMemsetAsync(bytes, 5, 64, stream_), cudaSuccess);
  cudaGraphExec_t exec = Instantiate();
  for (const bool same : {true, false}) {
    Begin();
    ASSERT_EQ(cudaMemsetAsync(bytes + 64, 6, 64, stream_), cudaSuccess);
    if (!same) {
      ASSERT_EQ(cudaMemsetAsync(bytes + 128, 6, 64, stream_), cudaSuccess);
    }
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
    cudaGraphExecUpdateResultInfo info = {};
    EXPECT_EQ(cudaGraphExecUpdate(exec, graph, &info),
              same ? cudaSuccess : cudaErrorGraphExecUpdateFailure);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  Launch(exec);
  Finish();
  EXPECT_EQ(block.Peek(0), 0);
  EXPECT_EQ(block.Peek(64), 6);
  EXPECT_EQ(block.Peek(128), 0);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
}

TEST_P(GraphTest, UserObjectsLiveAsLongAsTheirGraphs) {
  std::string destroyed;
  cudaUserObject_t object = nullptr;
  ASSERT_EQ(cudaUserObjectCreate(&object, &destroyed, Append, 1,
                                 cudaUserObjectNoDestructorSync),
            cudaSuccess);
  Begin();
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  ASSERT_EQ(
      cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove),
      cudaSuccess);
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(destroyed, "");
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(destroyed, "x");
}

int increments = 0;
void Increment(void** arguments, const unsigned*, const unsigned*) {
  increments += *static_cast<int*>(arguments[0]);
}

TEST_P(GraphTest, TwinsKeepTheirArguments) {
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  ASSERT_EQ(cuModuleLoadData(&module, "image"), CUDA_SUCCESS);
  ASSERT_EQ(cuModuleGetFunction(&function, module, "graph_increment"),
            CUDA_SUCCESS);
  cudasim_register_twin("graph_increment", Increment);
  increments = 0;
  int amount = 3;
  void* arguments[] = {&amount};
  const auto launch = [&] {
    return cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream_, arguments,
                          nullptr);
  };
  cudaGraph_t graph = nullptr;
  if (GetParam() == 0) {  // the first of the two runs: nobody told the sizes
    Begin();
    EXPECT_EQ(launch(), CUDA_ERROR_NOT_SUPPORTED);
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              cudaErrorStreamCaptureInvalidated);
  }
  const unsigned long size = sizeof(int);
  cudasim_set_twin_parameters("graph_increment", &size, 1);
  Begin();
  EXPECT_EQ(launch(), CUDA_SUCCESS);
  cudaGraphExec_t exec = Instantiate();
  amount = 100;
  EXPECT_EQ(increments, 0);
  Launch(exec);
  Launch(exec);
  Finish();
  EXPECT_EQ(increments, 6);
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cuModuleUnload(module), CUDA_SUCCESS);
}

INSTANTIATE_TEST_SUITE_P(Modes, GraphTest, testing::Values(0, 1),
                         [](const auto& info) {
                           return info.param == 0 ? "Eager" : "Async";
                         });

}  // namespace
}  // namespace cudasim
