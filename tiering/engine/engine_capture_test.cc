// SPDX-License-Identifier: Apache-2.0
// Capture: what a graph has captured runs again without a guard, so its bytes
// stay; and nothing leaves or is waited for on a stream that captures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/memory/external_streams.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr PoolId kGraph{1, 0};

class EngineCaptureTest : public EngineTest {
 protected:
  // A rig with `n` layers, and a stream to capture.
  std::vector<Address> OpenWith(int n) {
    Open({});
    stream_ = rig_->NewStream();
    return Layers(n);
  }
  void ReleaseAndFree(const std::vector<Address>& layers) {
    Release();
    ExpectLayers(layers);
    FreeAll(layers);
  }
  // What torch does before it captures, and then.
  void Route(StreamId stream) {
    ASSERT_TRUE(
        rig_->device()
            .BeginAllocateToPool(
                kGraph,
                [stream](StreamId s) { return s == stream && Captures(s); },
                stream)
            .has_value());
  }
  static void StartCapture(StreamId stream) {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream),
                                     cudaStreamCaptureModeGlobal),
              cudaSuccess);
  }
  void Begin(StreamId stream, bool allocates = true) {
    Route(stream);
    StartCapture(stream);
    if (allocates) inside_ = Malloc(kHandle, stream);
  }
  void End(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess)
        << "something spoiled it";
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
    if (inside_ != 0) Free(std::exchange(inside_, 0));
  }
  // Without torch, and noticed by the operator of it that allocates.
  void BeginRaw(StreamId stream) {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream),
                                     cudaStreamCaptureModeRelaxed),
              cudaSuccess);
    rig_->device().NoteCapture(stream);
    ASSERT_TRUE(rig_->device().MayCapture());
  }
  static void EndRaw(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  void Read(Address address, StreamId stream) {
    const Access access{address, kHandle, /*written=*/false};
    const Status entered =
        rig_->engine().EnterOperator(stream, "read", {&access, 1});
    ASSERT_TRUE(entered.has_value()) << entered.error().message;
    rig_->engine().LeaveOperator();
  }
  // The same through the engine, as torch's capture_begin does it.
  void BeginReading(StreamId stream, std::span<const Access> reads) {
    const Status begun = rig_->engine().BeginAllocateToPool(
        rig_->device(), kGraph,
        [stream](StreamId s) { return Captures(s) && s == stream; }, stream,
        reads);
    ASSERT_TRUE(begun.has_value()) << begun.error().message;
    StartCapture(stream);
  }
  static bool Captures(StreamId stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    EXPECT_EQ(cudaStreamIsCapturing(Rig::ToCuda(stream), &status), cudaSuccess);
    return status != cudaStreamCaptureStatusNone;
  }
  static void Spoil(StreamId stream) {  // by what may not be asked inside
    EXPECT_NE(cudaStreamSynchronize(Rig::ToCuda(stream)), cudaSuccess);
  }
  static void EndSpoilt(StreamId stream) {
    cudaGraph_t graph = nullptr;
    EXPECT_NE(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
  }
  void Release() {
    ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
  }

  StreamId stream_{};
  Address inside_ = 0;
};

TEST_F(EngineCaptureTest, WhatAGraphReadsStaysUntilItsPoolIsGone) {
  const auto layers = OpenWith(3);
  const StreamId other = rig_->NewStream();
  Begin(stream_);
  Read(layers[0], stream_);
  Read(layers[0], stream_);
  Read(layers[1], other);  // does not capture
  End(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  // A replay on a stream that no guard saw, still running when the graph goes.
  const cudasim_access access{layers[0], kHandle, 0};
  cudasim_note_access(Rig::ToCuda(other), "replay", &access, 1);
  Release();
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kHost);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineCaptureTest, AFreedBlockOfAGraphIsOrdinaryMemory) {
  const auto layers = OpenWith(1);
  Begin(stream_);
  Read(layers[0], stream_);
  End(stream_);
  FreeAll(layers);
  ASSERT_TRUE(rig_->device().EmptyCache().has_value());
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kUnmapped);
  Release();
  const auto again = Layers(1);
  EXPECT_EQ(again[0], layers[0]);
  EXPECT_EQ(Evict(), kHandle);
  ExpectLayers(again);
  FreeAll(again);
}

// Since nothing leaves while it lasts.
TEST_F(EngineCaptureTest, ACaptureFindsRoomOnADeviceThatWasFull) {
  for (const bool captures : {true, false}) {
    for (const bool full : {true, false}) {
      SCOPED_TRACE(std::string(captures ? "capture" : "MemPool") +
                   (full ? ", was full" : ""));
      Rig::Options options;
      options.under_pressure = full;
      Open(options);
      const StreamId stream = rig_->NewStream();
      const auto layers = Layers(3);
      const Access reads{layers[0], kHandle, /*written=*/false};
      ASSERT_TRUE(rig_->engine()
                      .BeginAllocateToPool(
                          rig_->device(), kGraph,
                          [=](StreamId s) { return !captures && s == stream; },
                          stream, {&reads, 1})
                      .has_value());
      EXPECT_EQ(Counters().evicted_handles, captures && full ? 3u : 0u);
      EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
      ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
      ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
      ExpectLayers(layers);
      FreeAll(layers);
      EXPECT_EQ(rig_->Close(), "");
      rig_.reset();
    }
  }
}

// Nothing had to leave before, so nothing made room; a program that tries again
// must not be refused for ever beside bytes that may leave.
TEST_F(EngineCaptureTest, ACaptureThatWasRefusedFindsRoomTheNextTime) {
  Rig::Options options;
  options.capacity = 32 * kMiB;
  Open(options);
  const StreamId stream = rig_->NewStream();
  const auto layers = Layers(3);
  const Bytes wanted = rig_->device().limit() - 2 * kHandle;
  const auto capture = [&] {
    BeginReading(stream, {});
    Result<AllocatedBlock> block = rig_->device().Malloc(
        {wanted, stream, LifetimeClass::kTransient, Charge{}});
    if (block) inside_ = block->address;
    End(stream);
    return block.has_value();
  };
  EXPECT_FALSE(rig_->engine().UnderPressure(DeviceIndex{0}));
  EXPECT_FALSE(capture());
  EXPECT_TRUE(rig_->engine().UnderPressure(DeviceIndex{0}));
  Release();
  EXPECT_TRUE(capture());
  EXPECT_EQ(Counters().evicted_handles, 3u);
  ReleaseAndFree(layers);
}

// Who needs room meanwhile gets it afterwards, though nobody says that a
// capture is over.
TEST_F(EngineCaptureTest, OtherThreadsWaitForTheEndOfACapture) {
  for (const bool routed : {true, false}) {
    for (const bool mallocs : {true, false}) {
      SCOPED_TRACE(std::string(routed ? "torch's, " : "a raw one, ") +
                   (mallocs ? "a malloc" : "an operator"));
      Rig::Options options;
      options.capacity = 32 * kMiB;
      Open(options);
      const StreamId stream = rig_->NewStream();
      const auto layers = Layers(1);
      ASSERT_EQ(Evict(), kHandle);
      const Bytes rest = rig_->device().limit();
      const Address all = Malloc(rest);
      Write(all, rest, 7);
      if (routed) {
        Begin(stream, /*allocates=*/false);
      } else {
        BeginRaw(stream);
      }
      bool served = false;
      std::atomic<bool> done = false;
      std::thread other([&] {
        // It has to do with the stream, and captures nothing all the same.
        EXPECT_TRUE(rig_->device().RecordStream(all, stream).has_value());
        if (mallocs) {
          const auto block = rig_->device().Malloc(
              {kHandle, kDefaultStream, LifetimeClass::kTransient, Charge{}});
          served = block.has_value();
          if (served) Free(block->address);
        } else {
          const Access access{layers[0], kHandle, /*written=*/false};
          served = rig_->engine()
                       .EnterOperator(kDefaultStream, "other", {&access, 1})
                       .has_value();
          if (served) rig_->engine().LeaveOperator();
        }
        done = true;
      });
      while (!done && !rig_->engine().IsCrowded()) std::this_thread::yield();
      if (routed) {
        End(stream);
      } else {
        EndRaw(stream);
      }
      other.join();
      EXPECT_TRUE(served);
      if (routed) Release();
      ExpectLayers(layers);
      ExpectReads(all, rest, 7);
      FreeAll(layers);
      Free(all);
      EXPECT_EQ(rig_->Close(), "");
      rig_.reset();
    }
  }
}

TEST_F(EngineCaptureTest, WhoCapturesDoesNotWaitForItself) {
  for (const bool on_its_stream : {true, false}) {
    SCOPED_TRACE(on_its_stream ? "on its stream" : "on another");
    Rig::Options options;
    options.capacity = 32 * kMiB;
    Open(options);
    const StreamId stream = rig_->NewStream();
    const auto layers = Layers(3);
    std::atomic<bool> ran = false, done = false, waited = false;
    std::thread other([&] {  // with nobody else there no thread waits
      Read(layers[0], kDefaultStream);
      ran = true;
      while (!done) {
        if (rig_->engine().IsCrowded()) waited = true;
        std::this_thread::yield();
      }
    });
    while (!ran) std::this_thread::yield();
    Begin(stream);
    EXPECT_FALSE(rig_->device()
                     .Malloc({rig_->device().limit() - 2 * kHandle,
                              on_its_stream ? stream : kDefaultStream,
                              LifetimeClass::kTransient, Charge{}})
                     .has_value());
    done = true;
    other.join();
    EXPECT_FALSE(waited);
    End(stream);
    Release();
    FreeAll(layers);
    EXPECT_EQ(rig_->Close(), "");
    rig_.reset();
  }
}

TEST_F(EngineCaptureTest, NothingLeavesWhileAStreamCaptures) {
  const auto layers = OpenWith(2);
  Begin(stream_);
  EXPECT_EQ(Evict(), 0u);
  End(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ReleaseAndFree(layers);
}

// Of operators in place alone: its stream has no memory of its own.
TEST_F(EngineCaptureTest, NothingLeavesWhileAStreamCapturesThatNeverAllocated) {
  const auto layers = OpenWith(2);
  Read(layers[0], stream_);
  Begin(stream_, /*allocates=*/false);
  Read(layers[1], stream_);
  EXPECT_EQ(Evict(), 0u);
  End(stream_);
  EXPECT_EQ(Evict(), kHandle) << "the other is the graph's";
  ReleaseAndFree(layers);
}

// Torch sets a route and then begins its capture: an event that is recorded in
// between would be part of the graph.
TEST_F(EngineCaptureTest, NothingLeavesBetweenARouteAndItsFirstUse) {
  const auto layers = OpenWith(1);
  Route(stream_);
  Bytes elsewhere = 1;  // waits until it is known
  std::thread evicts([&] { elsewhere = Evict(); });
  StartCapture(stream_);
  evicts.join();
  EXPECT_EQ(elsewhere, 0u);
  End(stream_);
  EXPECT_EQ(Evict(), kHandle);
  ReleaseAndFree(layers);
}

// The first operator inside may need what is away, and room for it.
TEST_F(EngineCaptureTest, AMemPoolKeepsNothingFromLeaving) {
  Open({});
  const auto layers = Layers(1);
  ASSERT_TRUE(rig_->device()
                  .BeginAllocateToPool(kGraph, [](StreamId) { return true; })
                  .has_value());
  EXPECT_EQ(Evict(), kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

// Torch takes back the route of a capture that it could end, and no other.
TEST_F(EngineCaptureTest, ACaptureThatFailedBeforeItAllocatedStopsNoEviction) {
  const auto layers = OpenWith(2);
  BeginReading(stream_, {});
  EXPECT_EQ(Evict(), 0u) << "it captures";
  Spoil(stream_);
  Bytes elsewhere = 1;
  std::thread([&] { elsewhere = Evict(); }).join();
  EXPECT_EQ(elsewhere, 0u);
  EndSpoilt(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle) << "its thread is back";
  ExpectLayers(layers);
  EXPECT_FALSE(rig_->device().MayCapture());
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

TEST_F(EngineCaptureTest, WhatACaptureKeptThatFailedLeavesAgain) {
  const auto layers = OpenWith(3);
  Begin(stream_);  // of a graph that is kept, in the same pool
  Read(layers[0], stream_);
  End(stream_);
  BeginReading(stream_, {});
  Read(layers[0], stream_);
  Read(layers[1], stream_);
  Spoil(stream_);
  EndSpoilt(stream_);
  EXPECT_EQ(Evict(), 2 * kHandle) << "the other graph keeps what it reads";
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  ExpectLayers(layers);
  const Status ended = rig_->device().EndAllocateToPool(kGraph);
  ASSERT_FALSE(ended.has_value()) << "its graph would read what has left";
  EXPECT_THAT(ended.error().message, HasSubstr("capture again"));
  Release();
  Release();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

// Another thread cannot tell a capture that failed from one about to begin, but
// that takes no second.
TEST_F(EngineCaptureTest, ACaptureThatFailedInAThreadThatEndedStopsNoEviction) {
  const auto layers = OpenWith(2);
  std::thread([&] {
    BeginReading(stream_, {});
    Read(layers[0], stream_);
    Spoil(stream_);
    EndSpoilt(stream_);
  }).join();
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_FALSE(rig_->device().MayCapture());
  ExpectLayers(layers);
  ASSERT_FALSE(rig_->device().EndAllocateToPool(kGraph).has_value());
  Release();
  FreeAll(layers);
}

// A stream that somebody may destroy is asked by nobody who is not on it.
TEST_F(EngineCaptureTest, AFailedCaptureOfAStreamThatIsGoneStopsNoEviction) {
  Open({});
  const auto layers = Layers(2);
  cudaStream_t raw = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&raw, cudaStreamNonBlocking),
            cudaSuccess);
  const StreamId stream{reinterpret_cast<std::uint64_t>(raw)};
  ExternalStreams::Add(stream);
  BeginReading(stream, {});
  Read(layers[0], stream);
  EXPECT_EQ(Evict(), 0u) << "an operator ran on it";
  Spoil(stream);
  EndSpoilt(stream);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ASSERT_FALSE(rig_->device().EndAllocateToPool(kGraph).has_value());
  BeginReading(stream, {});
  Spoil(stream);
  EndSpoilt(stream);
  ASSERT_EQ(cudaStreamDestroy(raw), cudaSuccess);
  ExpectLayers(layers);
  EXPECT_EQ(Evict(), 2 * kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  Release();
  ReleaseAndFree(layers);
}

TEST_F(EngineCaptureTest, ARouteWaitsForTheEventsOfAnEviction) {
  Open({});
  DeviceAllocator& device = rig_->device();
  ASSERT_TRUE(device.BeginFencing());
  std::atomic<bool> begins{false};
  std::thread capture([&] {
    begins = true;
    EXPECT_TRUE(
        device.BeginAllocateToPool(kGraph, [](StreamId) { return false; })
            .has_value());
  });
  EXPECT_TRUE(Eventually([&] { return begins.load(); }));
  bool early = false;
  for (int i = 0; i < 1000; ++i) {
    early |= device.MayCapture();
    std::this_thread::yield();
  }
  EXPECT_FALSE(early);
  device.EndFencing();
  capture.join();
  EXPECT_TRUE(device.MayCapture());
  ASSERT_TRUE(device.EndAllocateToPool(kGraph).has_value());
  Release();
}

// An event from outside would spoil the capture: the copies are over before
// the operator goes on.
TEST_F(EngineCaptureTest, BytesThatAreAwayReturnBeforeTheyAreCaptured) {
  const auto layers = OpenWith(2);
  Read(layers[0], stream_);
  EXPECT_EQ(Evict(), 2 * kHandle);
  Begin(stream_);
  Read(layers[0], stream_);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  End(stream_);
  EXPECT_EQ(Evict(), 0u);
  ExpectLayers(layers);
  Release();
  FreeAll(layers);
}

// Seed and offset of a generator: filled before the capture, and no operator
// names them in it.
TEST_F(EngineCaptureTest, WhatIsReadUnnamedIsBroughtBackAndStays) {
  Open({});
  const auto layers = Layers(2);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const StreamId stream = rig_->NewStream();
  const Access read{layers[0], kHandle, /*written=*/true};
  ASSERT_EQ(cudasim_stick_copy(1, 1'000'000), 0) << "until it is waited for";
  BeginReading(stream, {&read, 1});
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident)
      << "replays on other streams wait for no copy";
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  End(stream);
  EXPECT_EQ(Evict(), 0u);
  EXPECT_EQ(rig_->device().Stays().of(StayReason::kGraph), kHandle);
  Release();
  EXPECT_EQ(Evict(), kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

// There is no room for it: the capture does not begin, and nothing is left.
TEST_F(EngineCaptureTest, WhatCannotBeBroughtBackFailsBeforeTheRoute) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(2);
  EXPECT_EQ(Evict(), 2 * kHandle);
  const Address full =
      Malloc(8 * kMiB, kDefaultStream, LifetimeClass::kTransient);
  const StreamId stream = rig_->NewStream();
  const Access read{layers[0], kHandle, /*written=*/false};
  const Status begun = rig_->engine().BeginAllocateToPool(
      rig_->device(), kGraph, [](StreamId) { return false; }, stream,
      {&read, 1});
  ASSERT_FALSE(begun.has_value());
  EXPECT_EQ(begun.error().code, ErrorCode::kOutOfMemory);
  EXPECT_FALSE(rig_->device().MayCapture());
  EXPECT_EQ(rig_->device().PoolUseCount(kGraph), 0);
  Free(full);
  ExpectLayers(layers);
  FreeAll(layers);
}

// A compiled graph's call captures what it launches without operators.
TEST_F(EngineCaptureTest, WhatOperatorsAroundACaptureUseStays) {
  const auto layers = OpenWith(3);
  const StreamId other = rig_->NewStream();
  EXPECT_EQ(Evict(), 3 * kHandle);
  const Access outer{layers[0], kHandle, false};
  const Access inner{layers[1], kHandle, false};
  ASSERT_TRUE(rig_->engine().EnterOperator(other, "call", {&outer, 1}));
  ASSERT_TRUE(rig_->engine().EnterOperator(other, "inside", {&inner, 1}));
  const Address made = Malloc(kHandle, other);
  BeginReading(stream_, {});
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  End(stream_);
  rig_->engine().LeaveOperator();
  rig_->engine().LeaveOperator();
  EXPECT_EQ(Evict(), 0u) << "what the operators used and made";
  EXPECT_EQ(rig_->StateOf(layers[2]), HandleState::kHost);
  Release();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
  Free(made);
}

TEST_F(EngineCaptureTest, AMemPoolKeepsNothingOfTheOperatorsAroundIt) {
  Open({});
  const auto layers = Layers(1);
  const Access outer{layers[0], kHandle, false};
  ASSERT_TRUE(
      rig_->engine().EnterOperator(kDefaultStream, "call", {&outer, 1}));
  ASSERT_TRUE(rig_->engine()
                  .BeginAllocateToPool(rig_->device(), kGraph,
                                       [](StreamId) { return true; },
                                       kDefaultStream, {})
                  .has_value());
  rig_->engine().LeaveOperator();
  EXPECT_EQ(Evict(), kHandle);
  ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
  ReleaseAndFree(layers);
}

}  // namespace
}  // namespace stratalloc
