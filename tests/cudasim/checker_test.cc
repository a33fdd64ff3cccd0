// SPDX-License-Identifier: Apache-2.0
//
// Every kind of violation, planted, beside the correct program that is not
// reported. Each report must name its kind, the block, both operations and the
// missing edge.

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "tests/cudasim/control.h"
#include "tests/cudasim/test_support.h"

namespace cudasim {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

class CheckerTest : public TwoStreamsTest {
 protected:
  void TearDown() override {
    cudasim_set_thread_clocks(0);
    TwoStreamsTest::TearDown();
  }

  // A bridged operator on 512 bytes of the block.
  void Operator(const char* name, CUdeviceptr address, cudaStream_t stream,
                int write) {
    const cudasim_access access = {address, 512, write};
    cudasim_note_access(stream, name, &access, 1);
  }
  void Edge(cudaStream_t earlier, cudaStream_t later) {
    ASSERT_EQ(cudaEventRecord(event_, earlier), cudaSuccess);
    ASSERT_EQ(cudaStreamWaitEvent(later, event_, 0), cudaSuccess);
  }
  static std::string Kind(long index) {
    char text[64] = "";
    return cudasim_violation_kind(index, text, sizeof(text)) < 0 ? "" : text;
  }
  static std::string Name(cudaStream_t stream) {
    char text[40];
    std::snprintf(
        text, sizeof(text), "stream 0x%llx",
        static_cast<unsigned long long>(reinterpret_cast<uint64_t>(stream)));
    return text;
  }
  void ExpectOne(const char* kind) {
    ASSERT_EQ(cudasim_violation_count(), 1) << Violation(0) << Violation(1);
    EXPECT_EQ(Kind(0), kind);
    EXPECT_THAT(Violation(0), StartsWith(std::string(kind) + ": "));
  }
  void ExpectClean() {
    EXPECT_EQ(cudasim_violation_count(), 0) << Violation(0);
  }
};

TEST_F(CheckerTest, ThereIsNoKindWithoutAViolation) {
  EXPECT_EQ(cudasim_violation_kind(0, nullptr, 0), -1);
}

TEST_F(CheckerTest, Race) {
  Block block;
  Operator("aten::add_", block.address + 1024, one_, 1);
  Edge(one_, two_);
  Operator("aten::mul_", block.address + 1024, two_, 1);
  ExpectClean();
  Operator("aten::relu_", block.address + 1024, one_, 1);
  ExpectOne("race");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("aten::relu_ on " + Name(one_) + " (operation 2) writes"),
            HasSubstr("+512 bytes) of handle 0x51"), HasSubstr("offset 1024"),
            HasSubstr("aten::mul_ on " + Name(two_) + " (operation 1) writes"),
            HasSubstr("missing edge: record an event on " + Name(two_) +
                      " after operation 1 and make " + Name(one_) +
                      " wait for it")));
}

TEST_F(CheckerTest, UseAfterFreeOfABlockHandedOutAgain) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  cudasim_block_freed(block.address, 512);
  Operator("aten::mul", block.address, one_, 1);  // same stream: fine
  ExpectClean();
  cudasim_block_freed(block.address, 512);
  Operator("aten::relu", block.address, two_, 1);
  ExpectOne("use-after-free");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("aten::relu on " + Name(two_)),
            HasSubstr("aten::mul on " + Name(one_)),
            HasSubstr("freed and handed out again in between"),
            HasSubstr("missing edge: record an event on " + Name(one_))));
}

TEST_F(CheckerTest, UseAfterFreeSeenByTheFirstWriteOfAFreshBlock) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  Edge(one_, two_);
  Operator("aten::relu", block.address, two_, 2);
  ExpectClean();
  Operator("aten::mul", block.address, one_, 2);
  ExpectOne("use-after-free");
}

TEST_F(CheckerTest, UseBeforeCopyIn) {
  Block block;
  CopyIn(block, one_);
  Operator("aten::embedding", block.address + 4096, two_, 0);
  ExpectOne("use-before-copy-in");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("aten::embedding on " + Name(two_)),
                    HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("offset 4096"), HasSubstr("missing edge")));
}

TEST_F(CheckerTest, UseAfterTheCopyInIsFine) {
  Block block;
  CopyIn(block, one_);
  Edge(one_, two_);
  Operator("aten::embedding", block.address + 4096, two_, 0);
  ExpectClean();
}

TEST_F(CheckerTest, UseAfterUnmap) {
  Block block;
  Operator("aten::add", block.address, one_, 0);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
  block.Unmap();
  EXPECT_EQ(cudaMemsetAsync(block.pointer(), 1, 64, one_),
            cudaErrorIllegalAddress);
  ExpectOne("use-after-unmap");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaMemsetAsync on " + Name(one_)),
                    HasSubstr("of what was handle 0x51"),
                    HasSubstr("cuMemUnmap (call "), HasSubstr("missing edge")));
}

TEST_F(CheckerTest, AnOperatorThatUsesWhatIsUnmapped) {
  Block block;
  block.Unmap();
  Operator("aten::add", block.address, one_, 0);
  ExpectOne("use-after-unmap");
}

TEST_F(CheckerTest, MemoryThatWasNeverThere) {
  CUdeviceptr address = 0;
  ASSERT_EQ(cuMemAddressReserve(&address, kHandle, 0, 0, 0), CUDA_SUCCESS);
  Operator("aten::add", address, one_, 0);
  ExpectOne("illegal-address");
  EXPECT_EQ(cuMemAddressFree(address, kHandle), CUDA_SUCCESS);
}

TEST_F(CheckerTest, UnmapWhilePending) {
  Block block;
  CopyIn(block, one_);
  block.Unmap();
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(
      Violation(0),
      AllOf(HasSubstr("cuMemUnmap takes"), HasSubstr("of what was handle 0x51"),
            HasSubstr("cudaMemcpyAsync on " + Name(one_) + " (operation 1)"),
            HasSubstr("missing edge: synchronise " + Name(one_))));
}

TEST_F(CheckerTest, UnmapWhileAThreadComputes) {
  Block block;
  const cudasim_access access = {block.address, 512, 0};
  const long token = cudasim_hold_ranges("aten::add", &access, 1);
  std::thread([&] { block.Unmap(); }).join();
  cudasim_release_ranges(token);
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(Violation(0), HasSubstr("while aten::add is computing on it"));
}

TEST_F(CheckerTest, HoldsNestAndEndInAnyOrder) {
  Block block;
  const cudasim_access outer = {block.address, 512, 1};
  const cudasim_access inner = {block.address + 512, 512, 1};
  const long first = cudasim_hold_ranges("outer", &outer, 1);
  const long second = cudasim_hold_ranges("inner", &inner, 1);
  cudasim_release_ranges(first);
  cudasim_release_ranges(second);
  CopyIn(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  ExpectClean();
}

TEST_F(CheckerTest, DoubleReleaseOfAHandle) {
  CUmemGenericAllocationHandle handle = 0;
  const CUmemAllocationProp prop = DeviceProp();
  ASSERT_EQ(cuMemCreate(&handle, kHandle, &prop, 0), CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cuMemRelease (call 2) gives handle 0x51"),
                    HasSubstr("cuMemRelease (call 1)")));
}

TEST_F(CheckerTest, DoubleReleaseOfAMappedHandle) {
  Block block;  // released once already, the mapping keeps it
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
  EXPECT_EQ(cuMemRelease(handle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
}

TEST_F(CheckerTest, DoubleReleaseOfAMapping) {
  Block block;
  block.Unmap();
  EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_ERROR_INVALID_VALUE);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0), AllOf(HasSubstr("cuMemUnmap (call 2) takes"),
                                  HasSubstr("cuMemUnmap (call 1) had taken")));
}

TEST_F(CheckerTest, AMappingMayBeMadeAndTakenAgain) {
  Block block(2);
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cuMemUnmap(block.address, kHandle), CUDA_SUCCESS);
    EXPECT_EQ(cuMemMap(block.address, kHandle, 0, handle, 0), CUDA_SUCCESS);
  }
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
  ExpectClean();
}

TEST_F(CheckerTest, DoubleFreeOfAnAllocation) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1000), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  ExpectClean();
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  ExpectOne("double-release");
  EXPECT_THAT(Violation(0), HasSubstr("cudaFree (call 2) frees"));
}

TEST_F(CheckerTest, DoubleFreeOfHostMemory) {
  void* memory = nullptr;
  ASSERT_EQ(cudaHostAlloc(&memory, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(memory), cudaSuccess);
  ExpectClean();
  EXPECT_NE(cudaFreeHost(memory), cudaSuccess);
  ExpectOne("double-release");
}

TEST_F(CheckerTest, MappingLeak) {
  EXPECT_EQ(cudasim_report_leaks(), 0);
  ExpectClean();
  Block block;
  EXPECT_EQ(cudasim_report_leaks(), 1);
  ExpectOne("mapping-leak");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("of handle 0x51"), HasSubstr("still mapped"),
                    HasSubstr("cuMemUnmap")));
  CUmemGenericAllocationHandle handle = 0;
  ASSERT_EQ(cuMemRetainAllocationHandle(&handle, block.pointer()),
            CUDA_SUCCESS);
  block.Unmap();
  EXPECT_EQ(cudasim_report_leaks(), 1);
  EXPECT_THAT(Violation(1), HasSubstr("still held"));
  EXPECT_EQ(cuMemRelease(handle), CUDA_SUCCESS);
}

TEST_F(CheckerTest, HostFreeInFlight) {
  Block block;
  void* other = nullptr;
  ASSERT_EQ(cudaHostAlloc(&other, kHandle, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(other, block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
  ExpectOne("host-free-in-flight");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaFreeHost takes"),
                    HasSubstr("of the pinned host range at"),
                    HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("missing edge: synchronise " + Name(one_))));
}

TEST_F(CheckerTest, HostFreeAfterTheCopyIsFine) {
  Block block;
  void* other = nullptr;
  ASSERT_EQ(cudaHostAlloc(&other, kHandle, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(other, block.pointer(), kHandle,
                            cudaMemcpyDeviceToHost, one_),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(other), cudaSuccess);
  ExpectClean();
}

TEST_F(CheckerTest, HostWriteInFlight) {
  // Seed after seed until the copy was still queued at the write.
  for (uint64_t seed = 0; seed < 16; ++seed) {
    cudasim_set_seed(seed);
    Block block;
    CopyIn(block, one_);
    const bool queued = block.Peek() == 0;
    static_cast<char*>(pinned_)[100] ^= 1;
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    if (queued) break;
  }
  ExpectOne("host-write-in-flight");
  EXPECT_THAT(Violation(0),
              AllOf(HasSubstr("cudaMemcpyAsync on " + Name(one_)),
                    HasSubstr("missing edge: synchronise " + Name(one_))));
}

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

// --- The same handle at two addresses ----------------------------------------

class TwoMappings {
 public:
  TwoMappings() {
    EXPECT_EQ(cuMemAddressReserve(&base_, 2 * kHandle, 0, 0, 0), CUDA_SUCCESS);
    const CUmemAllocationProp prop = DeviceProp();
    EXPECT_EQ(cuMemCreate(&handle_, kHandle, &prop, 0), CUDA_SUCCESS);
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(cuMemMap(at(i), kHandle, 0, handle_, 0), CUDA_SUCCESS);
      EXPECT_EQ(Grant(at(i), kHandle, CU_MEM_ACCESS_FLAGS_PROT_READWRITE),
                CUDA_SUCCESS);
    }
  }
  ~TwoMappings() {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 2; ++i) {
      if (mapped_[i]) Unmap(i);
    }
    EXPECT_EQ(cuMemRelease(handle_), CUDA_SUCCESS);
    EXPECT_EQ(cuMemAddressFree(base_, 2 * kHandle), CUDA_SUCCESS);
  }
  TwoMappings(const TwoMappings&) = delete;
  TwoMappings& operator=(const TwoMappings&) = delete;
  CUdeviceptr at(int i) const { return base_ + i * kHandle; }
  void Unmap(int i) {
    EXPECT_EQ(cuMemUnmap(at(i), kHandle), CUDA_SUCCESS);
    mapped_[i] = false;
  }

 private:
  CUdeviceptr base_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  bool mapped_[2] = {true, true};
};

TEST_F(CheckerTest, OneHandleAtTwoAddressesIsTheSameBytes) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  Operator("aten::mul", both.at(1) + 512, two_, 0);  // other bytes
  ExpectClean();
  Operator("aten::mul", both.at(1), two_, 0);
  ExpectOne("race");
}

TEST_F(CheckerTest, UnmappingOneAddressNeedsOnlyItsOwnUsersDone) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  both.Unmap(1);
  ExpectClean();
}

TEST_F(CheckerTest, AWriteThroughTheOtherAddressHidesNoPendingUse) {
  TwoMappings both;
  Operator("aten::add_", both.at(0), one_, 1);
  Operator("aten::mul_", both.at(1), one_, 1);
  ExpectClean();
  both.Unmap(0);
  ExpectOne("unmap-while-pending");
  EXPECT_THAT(Violation(0), HasSubstr("aten::add_"));
}

// --- Host threads ------------------------------------------------------------

TEST_F(CheckerTest, WhatOneThreadObservedCountsForAllByDefault) {
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  }).join();
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksAnEdgeIsNeeded) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  }).join();
  block.Unmap();
  ExpectOne("unmap-while-pending");
}

TEST_F(CheckerTest, WithThreadClocksATokenIsAnEdge) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    cudasim_thread_release(7);
  }).join();
  cudasim_thread_acquire(8);  // another token tells nothing
  Operator("aten::add", block.address, two_, 0);
  ExpectOne("use-before-copy-in");
  cudasim_clear_violations();
  cudasim_thread_acquire(7);
  Operator("aten::add", block.address, two_, 0);
  ASSERT_EQ(cudaStreamSynchronize(two_), cudaSuccess);
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksAnEventCarriesWhatItsThreadKnew) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  std::thread([&] {
    ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
    ASSERT_EQ(cudaEventRecord(event_, two_), cudaSuccess);
  }).join();
  ASSERT_EQ(cudaEventSynchronize(event_), cudaSuccess);
  block.Unmap();
  ExpectClean();
}

TEST_F(CheckerTest, WithThreadClocksANewThreadKnowsWhatWasKnown) {
  cudasim_set_thread_clocks(1);
  Block block;
  CopyIn(block, one_);
  ASSERT_EQ(cudaStreamSynchronize(one_), cudaSuccess);
  std::thread([&] { block.Unmap(); }).join();
  ExpectClean();
}

}  // namespace
}  // namespace cudasim
