// SPDX-License-Identifier: Apache-2.0
//
// What a capture takes, what it refuses, and what a refusal does to it.

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

class CaptureTest : public SimulatorTest {
 protected:
  void SetUp() override {
    SimulatorTest::SetUp();
    block_ = std::make_unique<Block>();
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking),
              cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&event_), cudaSuccess);
    ASSERT_EQ(cudaEventCreate(&other_event_), cudaSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(cudaEventDestroy(event_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(other_event_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(side_), cudaSuccess);
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
    block_.reset();
    SimulatorTest::TearDown();
  }

  void Begin(cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal) {
    ASSERT_EQ(cudaStreamBeginCapture(stream_, mode), cudaSuccess);
  }
  // Ends the capture; destroys its graph.
  cudaError_t End() {
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(stream_, &graph);
    EXPECT_EQ(graph != nullptr, error == cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    return error;
  }
  cudaStreamCaptureStatus State(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
    return status;
  }
  cudaError_t Fill(cudaStream_t stream) {
    return cudaMemsetAsync(block_->pointer(), 1, 64, stream);
  }

  std::unique_ptr<Block> block_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t side_ = nullptr;
  cudaEvent_t event_ = nullptr;
  cudaEvent_t other_event_ = nullptr;
};

TEST_F(CaptureTest, NothingRunsDuringACapture) {
  Begin();
  EXPECT_EQ(State(stream_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(State(side_), cudaStreamCaptureStatusNone);
  EXPECT_EQ(Fill(stream_), cudaSuccess);
  EXPECT_EQ(block_->Peek(), 0);
  EXPECT_EQ(End(), cudaSuccess);
  EXPECT_EQ(block_->Peek(), 0);
  EXPECT_EQ(State(stream_), cudaStreamCaptureStatusNone);
}

TEST_F(CaptureTest, WhereACaptureCannotBegin) {
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal),
            cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaErrorIllegalState);
  Begin();
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal),
            cudaErrorIllegalState);
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_F(CaptureTest, CallsThatFailAndSpoilTheCapture) {
  ASSERT_EQ(cudaEventRecord(other_event_, side_), cudaSuccess);
  void* pointer = nullptr;
  char host[64];
  const std::vector<std::pair<std::function<cudaError_t()>, cudaError_t>>
      calls = {
          {[&] { return cudaStreamSynchronize(stream_); },
           cudaErrorStreamCaptureUnsupported},
          {[&] { return cudaStreamQuery(stream_); },
           cudaErrorStreamCaptureUnsupported},
          {[] { return cudaDeviceSynchronize(); },
           cudaErrorStreamCaptureUnsupported},
          {[&] {
             EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
             return cudaEventQuery(event_);
           },
           cudaErrorCapturedEvent},
          {[&] {
             EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
             return cudaEventSynchronize(event_);
           },
           cudaErrorCapturedEvent},
          {[&] { return cudaEventQuery(other_event_); },
           cudaErrorStreamCaptureUnsupported},
          {[&] { return cudaStreamWaitEvent(stream_, other_event_, 0); },
           cudaErrorStreamCaptureIsolation},
          {[&] { return cudaMalloc(&pointer, 64); },
           cudaErrorStreamCaptureUnsupported},
          {[&] { return cudaFree(block_->pointer()); },
           cudaErrorStreamCaptureUnsupported},
          {[&] { return cudaMallocHost(&pointer, 64); },
           cudaErrorStreamCaptureUnsupported},
          {[&] { return cudaHostRegister(host, 64, 0); },
           cudaErrorStreamCaptureUnsupported},
          {[&] {
             return cudaMemcpy(host, block_->pointer(), 64, cudaMemcpyDefault);
           },
           cudaErrorStreamCaptureUnsupported},
          {[&] {
             return cudaStreamAddCallback(
                 stream_, [](cudaStream_t, cudaError_t, void*) {}, nullptr, 0);
           },
           cudaErrorStreamCaptureUnsupported},
      };
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(i);
    Begin();
    EXPECT_EQ(Fill(stream_), cudaSuccess);
    EXPECT_EQ(calls[i].first(), calls[i].second);
    EXPECT_EQ(State(stream_), cudaStreamCaptureStatusInvalidated);
    EXPECT_EQ(Fill(stream_), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
    // The stream is an ordinary one again.
    EXPECT_EQ(Fill(stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }
}

TEST_F(CaptureTest, RelaxedAllowsWhatOnlyMightSynchronize) {
  void* pointer = nullptr;
  Begin(cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(cudaMalloc(&pointer, 64), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  EXPECT_EQ(End(), cudaSuccess);

  // The same by the thread's own mode.
  Begin(cudaStreamCaptureModeGlobal);
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeGlobal);
  EXPECT_EQ(cudaMalloc(&pointer, 64), cudaSuccess);
  EXPECT_EQ(cudaFree(pointer), cudaSuccess);
  // A synchronisation conflicts in every mode.
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorStreamCaptureUnsupported);
  ASSERT_EQ(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
  EXPECT_EQ(mode, cudaStreamCaptureModeRelaxed);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureTest, OtherThreadsAreForbiddenInGlobalModeOnly) {
  const auto allocate_elsewhere = [](int mode) {
    cudaError_t error = cudaSuccess;
    std::thread([&] {
      auto own = static_cast<cudaStreamCaptureMode>(mode);
      EXPECT_EQ(cudaThreadExchangeStreamCaptureMode(&own), cudaSuccess);
      void* pointer = nullptr;
      error = cudaMalloc(&pointer, 64);
      if (error == cudaSuccess) {
        EXPECT_EQ(cudaFree(pointer), cudaSuccess);
      }
    }).join();
    return error;
  };
  for (const auto capture :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    for (const auto thread :
         {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
          cudaStreamCaptureModeRelaxed}) {
      SCOPED_TRACE(10 * capture + thread);
      Begin(capture);
      const bool forbidden = capture == cudaStreamCaptureModeGlobal &&
                             thread == cudaStreamCaptureModeGlobal;
      EXPECT_EQ(allocate_elsewhere(thread),
                forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess);
      EXPECT_EQ(End(),
                forbidden ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
    }
  }
}

// Captures that no framework routed: what a thread may do beside one depends on
// the mode it was begun with, and on whose thread it is.
TEST_F(CaptureTest, WhatSpoilsARawCaptureFromWhichThread) {
  ASSERT_EQ(cudaEventRecord(other_event_, side_), cudaSuccess);
  char host[64];
  void* pinned = nullptr;
  ASSERT_EQ(cudaMallocHost(&pinned, 64), cudaSuccess);
  enum Rule {
    kAlways,   // it concerns the capture itself
    kUnsafe,   // it might synchronise: forbidden as the mode says
    kAllowed,  // never forbidden
  };
  struct Call {
    const char* name;
    Rule rule;
    std::function<cudaError_t()> make;
    cudaError_t error = cudaErrorStreamCaptureUnsupported;
  };
  const std::vector<Call> calls = {
      {"cudaStreamSynchronize of the capturing stream", kAlways,
       [&] { return cudaStreamSynchronize(stream_); }},
      {"cudaStreamQuery of the capturing stream", kAlways,
       [&] { return cudaStreamQuery(stream_); }},
      {"cudaDeviceSynchronize", kAlways,
       [] { return cudaDeviceSynchronize(); }},
      {"cudaEventQuery of a captured event", kAlways,
       [&] { return cudaEventQuery(event_); }, cudaErrorCapturedEvent},
      {"cudaEventSynchronize of a captured event", kAlways,
       [&] { return cudaEventSynchronize(event_); }, cudaErrorCapturedEvent},
      {"cudaMalloc", kUnsafe,
       [] {
         void* memory = nullptr;
         const cudaError_t error = cudaMalloc(&memory, 64);
         if (memory != nullptr) {
           EXPECT_EQ(cudaFree(memory), cudaSuccess);
         }
         return error;
       }},
      {"cudaFreeHost", kUnsafe,
       [&] {
         const cudaError_t error = cudaFreeHost(pinned);
         if (error == cudaSuccess) {
           EXPECT_EQ(cudaMallocHost(&pinned, 64), cudaSuccess);
         }
         return error;
       }},
      {"cudaMemcpy", kUnsafe,
       [&] {
         return cudaMemcpy(host, block_->pointer(), 64, cudaMemcpyDefault);
       }},
      {"cudaEventQuery of another event", kUnsafe,
       [&] { return cudaEventQuery(other_event_); }},
      {"cudaMemsetAsync on another stream", kAllowed,
       [&] { return Fill(side_); }},
      {"cudaStreamSynchronize of another stream", kAllowed,
       [&] { return cudaStreamSynchronize(side_); }},
      {"cuMemCreate to cuMemUnmap", kAllowed,
       [] {
         Block block;
         block.Unmap();
         return cudaSuccess;
       }},
      {"cudaEventCreate", kAllowed,
       [] {
         cudaEvent_t event = nullptr;
         EXPECT_EQ(cudaEventCreate(&event), cudaSuccess);
         return cudaEventDestroy(event);
       }},
  };
  for (const auto mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed}) {
    for (const bool own_thread : {true, false}) {
      for (const Call& call : calls) {
        SCOPED_TRACE(std::string(call.name) + " in mode " +
                     std::to_string(mode) +
                     (own_thread ? " on its thread" : " on another thread"));
        Begin(mode);
        EXPECT_EQ(Fill(stream_), cudaSuccess);
        EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
        cudaError_t error = cudaSuccess;
        if (own_thread) {
          error = call.make();
        } else {
          std::thread([&] { error = call.make(); }).join();
        }
        const bool spoils =
            call.rule == kAlways ||
            (call.rule == kUnsafe &&
             (mode == cudaStreamCaptureModeGlobal ||
              (mode == cudaStreamCaptureModeThreadLocal && own_thread)));
        EXPECT_EQ(error, spoils ? call.error : cudaSuccess);
        EXPECT_EQ(End(),
                  spoils ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
      }
    }
  }
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
}

TEST_F(CaptureTest, ACaptureThroughTheDriver) {
  const auto stream = reinterpret_cast<CUstream>(stream_);
  ASSERT_EQ(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL),
            CUDA_SUCCESS);
  EXPECT_EQ(State(stream_), cudaStreamCaptureStatusActive);
  CUdeviceptr memory = 0;
  EXPECT_EQ(cuMemAlloc(&memory, 64), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(stream, &graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheLegacyStreamStandsForBlockingStreams) {
  // A capture on a non-blocking stream does not concern it.
  Begin();
  EXPECT_EQ(Fill(nullptr), cudaSuccess);
  EXPECT_EQ(State(nullptr), cudaStreamCaptureStatusNone);
  EXPECT_EQ(End(), cudaSuccess);

  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  cudaGraph_t graph = nullptr;
  for (const bool wait : {false, true}) {
    ASSERT_EQ(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeGlobal),
              cudaSuccess);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(nullptr, &status),
              cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(State(blocking), cudaStreamCaptureStatusActive);
    EXPECT_EQ(wait ? cudaStreamSynchronize(nullptr) : Fill(nullptr),
              cudaErrorStreamCaptureImplicit);
    EXPECT_EQ(cudaStreamEndCapture(blocking, &graph),
              cudaErrorStreamCaptureInvalidated);
  }
  EXPECT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(CaptureTest, ForkAndJoinThroughEvents) {
  Begin();
  EXPECT_EQ(Fill(stream_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side_, event_, 0), cudaSuccess);
  EXPECT_EQ(State(side_), cudaStreamCaptureStatusActive);
  EXPECT_EQ(Fill(side_), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(other_event_, side_), cudaSuccess);
  EXPECT_EQ(Fill(stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(stream_, other_event_, 0), cudaSuccess);
  EXPECT_EQ(Fill(stream_), cudaSuccess);

  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  size_t nodes = 0, edges = 0, roots = 0;
  EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &nodes), cudaSuccess);
  EXPECT_EQ(cudaGraphGetRootNodes(graph, nullptr, &roots), cudaSuccess);
  EXPECT_EQ(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges),
            cudaSuccess);
  EXPECT_EQ(nodes, 4u);
  EXPECT_EQ(roots, 1u);
  EXPECT_EQ(edges, 4u);
  EXPECT_EQ(State(side_), cudaStreamCaptureStatusNone);
  // The events stand for nothing until they are recorded again.
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventSynchronize(event_), cudaErrorInvalidValue);
  EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(event_), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(CaptureTest, AForkThatDoesNotComeBack) {
  const auto fork = [&] {
    Begin();
    EXPECT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(side_, event_, 0), cudaSuccess);
  };
  fork();
  EXPECT_EQ(Fill(side_), cudaSuccess);
  EXPECT_EQ(End(), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(State(side_), cudaStreamCaptureStatusNone);
  // Without work there is nothing to join.
  fork();
  EXPECT_EQ(End(), cudaSuccess);
}

TEST_F(CaptureTest, TwoCapturesDoNotMerge) {
  Begin();
  ASSERT_EQ(cudaStreamBeginCapture(side_, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(side_, event_, 0), cudaErrorStreamCaptureMerge);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph),
            cudaErrorStreamCaptureInvalidated);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureTest, TheEndBelongsToTheStreamAndTheThreadOfTheBeginning) {
  cudaGraph_t graph = nullptr;
  Begin();
  std::thread([&] {
    EXPECT_EQ(cudaStreamEndCapture(stream_, &graph),
              cudaErrorStreamCaptureWrongThread);
  }).join();
  EXPECT_EQ(End(), cudaSuccess);

  Begin(cudaStreamCaptureModeRelaxed);
  std::thread([&] { EXPECT_EQ(End(), cudaSuccess); }).join();

  Begin();
  ASSERT_EQ(cudaEventRecord(event_, stream_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(side_, event_, 0), cudaSuccess);
  EXPECT_EQ(cudaStreamEndCapture(side_, &graph),
            cudaErrorStreamCaptureUnmatched);
  EXPECT_EQ(End(), cudaErrorStreamCaptureInvalidated);
}

TEST_F(CaptureTest, InfoNamesTheGraphAndTheFrontier) {
  Begin();
  ASSERT_EQ(Fill(stream_), cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  cudaGraph_t graph = nullptr;
  const cudaGraphNode_t* dependencies = nullptr;
  const cudaGraphEdgeData* edges = nullptr;
  size_t count = 0;
  ASSERT_EQ(cudaStreamGetCaptureInfo(stream_, &status, &id, &graph,
                                     &dependencies, &edges, &count),
            cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_NE(id, 0u);
  ASSERT_EQ(count, 1u);
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  EXPECT_EQ(cudaGraphNodeGetType(dependencies[0], &type), cudaSuccess);
  EXPECT_EQ(type, cudaGraphNodeTypeMemset);

  // A node of the program's own, put in front of the next one.
  cudaGraphNode_t mine = nullptr;
  ASSERT_EQ(cudaGraphAddEmptyNode(&mine, graph, dependencies, count),
            cudaSuccess);
  ASSERT_EQ(cudaStreamUpdateCaptureDependencies(
                stream_, &mine, nullptr, 1, cudaStreamSetCaptureDependencies),
            cudaSuccess);
  ASSERT_EQ(Fill(stream_), cudaSuccess);
  cudaGraph_t ended = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &ended), cudaSuccess);
  EXPECT_EQ(ended, graph);
  cudaGraphNode_t after = nullptr;
  count = 1;
  EXPECT_EQ(cudaGraphNodeGetDependentNodes(mine, &after, nullptr, &count),
            cudaSuccess);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(cudaGraphDestroy(ended), cudaSuccess);
}

TEST_F(CaptureTest, AStreamDestroyedInItsCaptureTakesItAlong) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking),
            cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudasim_captures(), 0);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

}  // namespace
}  // namespace cudasim
