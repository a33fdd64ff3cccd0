// SPDX-License-Identifier: Apache-2.0
// Room for a capture, and for threads that need memory while it lasts.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>

#include "tiering/engine/engine_capture_fixture_test.h"

namespace stratalloc {
namespace {

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

// What is cached on other streams is of no use to the capture.
TEST_F(EngineCaptureTest, CaptureFindsRoomWhereACacheFillsTheDevice) {
  Rig::Options options;
  options.capacity = 32 * kMiB;
  options.under_pressure = true;
  Open(options);
  const StreamId stream = rig_->NewStream();
  const auto layers = Layers(4);
  Free(Malloc(20 * kMiB, kDefaultStream, LifetimeClass::kTransient));
  BeginReading(stream, {});
  for (const Address layer : layers) Read(layer, stream);
  inside_ = Malloc(20 * kMiB, stream, LifetimeClass::kTransient);
  End(stream);
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

}  // namespace
}  // namespace stratalloc
