// SPDX-License-Identifier: Apache-2.0
//
// Calls on destroyed streams, each reported by its name.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "tests/simulator/cudasim/checker_fixture_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST_F(CheckerTest, AStreamThatIsGone) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  Block block;
  Operator("aten::add", block.address, stream, 0);
  ExpectOne("stream-gone");
}

TEST_F(CheckerTest, EveryCallOnADestroyedStreamIsNamed) {
  Block block;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  const auto function = [](void*) {};
  const auto callback = [](cudaStream_t, cudaError_t, void*) {};
  cudaStreamCaptureStatus status;
  unsigned flags = 0;
  int number = 0;
  unsigned long long id = 0;
  void* memory = nullptr;
  const std::pair<const char*, std::function<cudaError_t(cudaStream_t)>>
      calls[] = {
          {"cudaStreamQuery",
           [](cudaStream_t stream) { return cudaStreamQuery(stream); }},
          {"cudaStreamSynchronize",
           [](cudaStream_t stream) { return cudaStreamSynchronize(stream); }},
          {"cudaStreamWaitEvent",
           [&](cudaStream_t stream) {
             return cudaStreamWaitEvent(stream, event_, 0);
           }},
          {"cudaEventRecord",
           [&](cudaStream_t stream) {
             return cudaEventRecord(event_, stream);
           }},
          {"cudaStreamIsCapturing",
           [&](cudaStream_t stream) {
             return cudaStreamIsCapturing(stream, &status);
           }},
          {"cudaStreamBeginCapture",
           [](cudaStream_t stream) {
             return cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
           }},
          {"cudaStreamEndCapture",
           [](cudaStream_t stream) {
             cudaGraph_t ended = nullptr;
             return cudaStreamEndCapture(stream, &ended);
           }},
          {"cudaStreamGetFlags",
           [&](cudaStream_t stream) {
             return cudaStreamGetFlags(stream, &flags);
           }},
          {"cudaStreamGetPriority",
           [&](cudaStream_t stream) {
             return cudaStreamGetPriority(stream, &number);
           }},
          {"cudaStreamGetId",
           [&](cudaStream_t stream) { return cudaStreamGetId(stream, &id); }},
          {"cudaLaunchHostFunc",
           [&](cudaStream_t stream) {
             return cudaLaunchHostFunc(stream, function, nullptr);
           }},
          {"cudaStreamAddCallback",
           [&](cudaStream_t stream) {
             return cudaStreamAddCallback(stream, callback, nullptr, 0);
           }},
          {"cudaMemcpyAsync",
           [&](cudaStream_t stream) {
             return cudaMemcpyAsync(pinned_, block.pointer(), 64,
                                    cudaMemcpyDefault, stream);
           }},
          {"cudaMemsetAsync",
           [&](cudaStream_t stream) {
             return cudaMemsetAsync(block.pointer(), 0, 64, stream);
           }},
          {"cudaMallocAsync",
           [&](cudaStream_t stream) {
             return cudaMallocAsync(&memory, 64, stream);
           }},
          {"cudaFreeAsync",
           [&](cudaStream_t stream) {
             return cudaFreeAsync(block.pointer(), stream);
           }},
          {"cudaGraphLaunch",
           [&](cudaStream_t stream) { return cudaGraphLaunch(exec, stream); }},
          {"cudaStreamDestroy",
           [](cudaStream_t stream) { return cudaStreamDestroy(stream); }},
      };
  for (const int mode : {0, 1}) {
    cudasim_set_mode(mode);
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(name);
      EXPECT_EQ(call(stream), cudaErrorInvalidResourceHandle);
      EXPECT_THAT(
          Violation(0),
          AllOf(HasSubstr(std::string("stream-gone: ") + name),
                HasSubstr(Name(stream) + ", which has been destroyed")));
      ExpectOne("stream-gone");
      cudasim_clear_violations();
    }
  }
  // A number that never was a stream's is an ordinary mistake.
  EXPECT_EQ(cudaStreamQuery(reinterpret_cast<cudaStream_t>(0x1234)),
            cudaErrorInvalidResourceHandle);
  ExpectClean();
  EXPECT_EQ(cudaGraphExecDestroy(exec), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace cudasim
