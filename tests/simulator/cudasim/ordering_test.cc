// SPDX-License-Identifier: Apache-2.0
//
// Async mode: streams advance late, and every kind of missing edge is caught.
// Each planted mistake stands beside the same program with the edge in place,
// so that the check is shown to be neither blind nor shy.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class OrderingTest : public TwoStreamsTest {
 protected:
  // A bridged operator that writes the block.
  void Operator(const Block& block, cudaStream_t stream, bool write = true) {
    const cudasim_access access = {block.address, kHandle, write ? 1 : 0};
    cudasim_begin_operator(stream, "aten::relu_");
    cudasim_note_access(stream, "aten::relu_", &access, 1);
  }
};

TEST_F(OrderingTest, ACopyHappensNotBeforeItMust) {
  // No call steps a queue here: the control API never does.
  Block block;
  CopyIn(block, one_);
  EXPECT_EQ(block.Peek(), 0);
  EXPECT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(block.Peek(), 5);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, AQueryIsNotReadyFirstAndReadyInTheEnd) {
  Block block;
  bool was_not_ready = false;
  for (int i = 0; i < 20; ++i) CopyIn(block, one_);
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  int queries = 0;
  while (cudaEventQuery(event_) == cudaErrorNotReady) {
    was_not_ready = true;
    ASSERT_LT(++queries, 100);
  }
  (void)cudaGetLastError();
  EXPECT_TRUE(was_not_ready);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, UnmapWithAPendingCopyIsCaught) {
  Block block;
  CopyOut(block, one_);
  block.Unmap();
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("cuMemUnmap takes"), HasSubstr("+2097152 bytes"),
            HasSubstr("cudaMemcpyAsync on stream 0x57"), HasSubstr("reads")));
}

TEST_F(OrderingTest, UnmapAfterTheStreamWasSynchronisedIsFine) {
  Block block;
  CopyOut(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, UnmapAfterTheEventWasSynchronisedIsFine) {
  Block block;
  CopyOut(block, one_);
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, AnEventRecordedTooEarlyProvesNothing) {
  Block block;
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  CopyOut(block, one_);
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 1);
}

TEST_F(OrderingTest, SynchronisingAnotherStreamProvesNothing) {
  Block block;
  CopyOut(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 1);
}

TEST_F(OrderingTest, UnmapWithAPendingOperatorIsCaught) {
  Block block;
  Operator(block, one_);
  block.Unmap();
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("aten::relu_ on stream 0x57"));
}

TEST_F(OrderingTest, AStepThatHappenedToRunProvesNothing) {
  Block block;
  Operator(block, one_);
  // Plenty of calls that let streams advance, none of which is an edge.
  int device = 0;
  for (int i = 0; i < 64; ++i) {
    ASSERT_EQ(cudaSetDevice(device), cudaSuccess);
  }
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 1);
}

TEST_F(OrderingTest, AMissingEventBetweenTwoStreamsIsCaught) {
  Block block;
  CopyIn(block, one_);
  CopyOut(block, two_);
  // The block is read too early, and the host buffer written too early.
  EXPECT_EQ(cudasim_violation_count(), 2);
  EXPECT_THAT(Violation(0), HasSubstr("nothing orders the two"));
}

TEST_F(OrderingTest, AnEventBetweenTwoStreamsOrdersThem) {
  Block block;
  CopyIn(block, one_);
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two_, event_, 0), cudaSuccess);
  std::memset(pinned_, 5, kHandle);
  CopyOut(block, two_);
  // Synchronising the second proves the first as well, and orders the bytes.
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  EXPECT_EQ(block.Peek(), 5);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, AMissingEventBeforeAnOperatorIsCaught) {
  Block block;
  CopyIn(block, one_);
  Operator(block, two_, /*write=*/false);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), AllOf(HasSubstr("aten::relu_"), HasSubstr("reads"),
                                  HasSubstr("cudaMemcpyAsync")));
}

TEST_F(OrderingTest, AWaitedEventBeforeAnOperatorLetsItSeeTheBytes) {
  Block block;
  CopyIn(block, one_);
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two_, event_, 0), cudaSuccess);
  cudasim_begin_operator(two_, "aten::relu_");
  EXPECT_EQ(block.Peek(), 5);
  Operator(block, two_);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, ReadsOnTwoStreamsDoNotConflict) {
  Block block;
  Operator(block, one_, /*write=*/false);
  Operator(block, two_, /*write=*/false);
  EXPECT_EQ(cudasim_violation_count(), 0);
  // A write must come after both.
  ASSERT_EQ(cudaEventRecord(event_, one_), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(two_, event_, 0), cudaSuccess);
  Operator(block, two_);
  EXPECT_EQ(cudasim_violation_count(), 0);
  Operator(block, one_);
  EXPECT_EQ(cudasim_violation_count(), 1);
}

TEST_F(OrderingTest, HostMemoryFreedUnderACopyIsCaught) {
  Block block;
  CopyIn(block, one_);
  EXPECT_EQ(cudaFreeHost(pinned_), cudaSuccess);
  pinned_ = nullptr;
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("cudaFreeHost takes"));
}

TEST_F(OrderingTest, HostMemoryUnregisteredUnderACopyIsCaught) {
  Block block;
  std::vector<char> own(kHandle, 3);
  ASSERT_EQ(cudaHostRegister(own.data(), own.size(), 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(own.data(), block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(own.data()), cudaSuccess);
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("cudaHostUnregister takes"));
}

TEST_F(OrderingTest, HostMemoryWrittenUnderACopyIsCaught) {
  for (uint64_t seed = 0; seed < 16; ++seed) {
    cudasim_set_seed(seed);
    Block block;
    CopyIn(block, one_);
    const bool queued = block.Peek() == 0;
    static_cast<char*>(pinned_)[kHandle / 2] ^= 1;
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    if (queued) break;
  }
  ASSERT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0), HasSubstr("when the host wrote there"));
}

TEST_F(OrderingTest, HostMemoryWrittenByAnEarlierCopyIsFine) {
  Block from;
  Block to;
  ASSERT_EQ(cudaMemsetAsync(from.pointer(), 8, kHandle, one_), cudaSuccess);
  CopyOut(from, one_);
  CopyIn(to, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(to.Peek(), 8);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, CudaFreeWaitsForTheDeviceLikeTheRealOne) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, kHandle), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(memory, 1, kHandle, one_), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, PageableSourcesAreTakenAtTheCall) {
  Block block;
  std::vector<char> own(kHandle, 3);
  ASSERT_EQ(cudaMemcpyAsync(block.pointer(), own.data(), kHandle,
                            cudaMemcpyHostToDevice, one_),
            cudaSuccess);
  std::memset(own.data(), 4, own.size());
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(block.Peek(), 3);
}

TEST_F(OrderingTest, PageableDestinationsAreFilledAtTheReturn) {
  Block block;
  CopyIn(block, one_);
  std::vector<char> own(kHandle, 3);
  ASSERT_EQ(cudaMemcpyAsync(own.data(), block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  EXPECT_EQ(own[kHandle - 1], 5);
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 0);
}

TEST_F(OrderingTest, TheDefaultStreamIsOrderedWithBlockingStreamsOnly) {
  Block block;
  cudaStream_t blocking = nullptr;
  ASSERT_EQ(cudaStreamCreate(&blocking), cudaSuccess);
  CopyIn(block, blocking);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 6, kHandle, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 7, kHandle, blocking),
            cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 0);
  ASSERT_EQ(cudaStreamSynchronize(blocking), cudaSuccess);
  EXPECT_EQ(block.Peek(), 7);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 8, kHandle, nullptr), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(block.pointer(), 9, kHandle, one_), cudaSuccess);
  EXPECT_EQ(cudasim_violation_count(), 1);
  ASSERT_EQ(cudaStreamDestroy(blocking), cudaSuccess);
}

TEST_F(OrderingTest, ACopyStillQueuedWhenItsMemoryGoesBreaksTheDevice) {
  // With some seeds the copy is stepped before the unmap; then the mistake is
  // caught all the same, and only the fault does not happen.
  int faults = 0;
  for (uint64_t seed = 0; seed < 32; ++seed) {
    cudasim_set_seed(seed);
    Block block;
    CopyIn(block, one_);
    block.Unmap();
    const cudaError_t result = cudaStreamSynchronize(one_);
    EXPECT_TRUE(result == cudaSuccess || result == cudaErrorIllegalAddress);
    if (result != cudaSuccess) ++faults;
    cudasim_clear_errors();
  }
  EXPECT_GT(faults, 0);
  EXPECT_LT(faults, 32);
  EXPECT_EQ(cudasim_violation_count(), 32 + faults);
}

TEST_F(OrderingTest, HostFunctionsRunInStreamOrder) {
  Block block;
  CopyIn(block, one_);
  struct Seen {
    const Block* block;
    char byte;
  } seen = {&block, 0};
  ASSERT_EQ(cudaLaunchHostFunc(
                one_,
                [](void* argument) {
                  auto* out = static_cast<Seen*>(argument);
                  out->byte = out->block->Peek();
                },
                &seen),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(seen.byte, 5);
}

TEST_F(OrderingTest, AnOperationThatTouchedManyPiecesIsReportedOnce) {
  Block block;
  CopyOut(block, one_);
  for (size_t at = 0; at < kHandle; at += kHandle / 8) {
    const cudasim_access access = {block.address + at, 512, 0};
    cudasim_note_access(one_, "step", &access, 1);
  }
  cudasim_clear_violations();
  const cudasim_access access = {block.address, kHandle, 1};
  cudasim_note_access(two_, "write", &access, 1);
  // The copy's stamp was replaced by the steps' on their pieces.
  EXPECT_EQ(cudasim_violation_count(), 9);
  EXPECT_THAT(Violation(0), HasSubstr("cudaMemcpyAsync"));
}

TEST_F(OrderingTest, NobodyMayDisturbAComputationInProgress) {
  cudasim_set_mode(0);
  Block block;
  Block other;
  const cudasim_access access = {block.address, kHandle, 0};
  const long token = cudasim_hold_ranges("aten::embedding", &access, 1);
  // Reading along, and writing elsewhere, is fine.
  std::thread([&] {
    CopyOut(block, one_);
    CopyIn(other, one_);
  }).join();
  EXPECT_EQ(cudasim_violation_count(), 0);
  std::thread([&] { CopyIn(block, one_); }).join();
  EXPECT_EQ(cudasim_violation_count(), 1);
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaMemcpyAsync"), HasSubstr("writes"),
                    HasSubstr("while aten::embedding is computing on it")));
  block.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 2);
  EXPECT_THAT(Violation(1), HasSubstr("cuMemUnmap takes"));
  cudasim_release_ranges(token);
  other.Unmap();
  EXPECT_EQ(cudasim_violation_count(), 2);
}

TEST_F(OrderingTest, TheLogForgetsWhatWasObserved) {
  // Thousands of observed accesses must not pile up: a second pass over the
  // same memory costs no more than the first and finds no conflict.
  Block block(4);
  for (int pass = 0; pass < 50; ++pass) {
    for (size_t at = 0; at < block.bytes(); at += block.bytes() / 256) {
      const cudasim_access access = {block.address + at, 512, pass % 2};
      cudasim_note_access(pass % 2 ? one_ : two_, "step", &access, 1);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  }
  EXPECT_EQ(cudasim_violation_count(), 0);
}

}  // namespace
}  // namespace cudasim
