// SPDX-License-Identifier: Apache-2.0
// A capture in global mode forbids every thread, on every device, the calls
// that CUDA takes for unsafe. Ours are made in relaxed mode: whatever the
// allocator and the engine do on device 0, a capture on device 1, which they
// know nothing of, is not spoilt.
#include <gtest/gtest.h>

#include <functional>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

class EngineGlobalCaptureTest : public EngineTest {
 protected:
  void Open2(bool background) {
    Rig::Options options;
    options.devices = 2;
    options.capacity = 32 * kMiB;
    options.host_budget = 16 * kMiB;
    options.disk_budget = 64 * kMiB;
    options.disk_dir = testing::TempDir();
    options.background = background;
    options.under_pressure = true;
    Open(options);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    stream_ = rig_->NewStream();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  }
  // Runs `work` while device 1 captures.
  void DuringACapture(const std::function<void()>& work) {
    ASSERT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream_),
                                     cudaStreamCaptureModeGlobal),
              cudaSuccess);
    work();
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream_), &graph), cudaSuccess)
        << "something spoiled it";
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
  }
  // Everything that asks the driver for something, on device 0.
  void WorkOnDevice0() {
    // More than device and host hold: buffers are made and pinned, the spill
    // file is written and read.
    const auto layers = Layers(20);
    EXPECT_GT(Evict(), 0u);
    ExpectLayers(layers);
    EXPECT_GT(Evict(), 0u);
    Restore();
    FreeAll(layers);
    // Events of other streams, asked for and waited for.
    const StreamId other = rig_->NewStream();
    for (int i = 0; i < 4; ++i) {
      const Address block = Malloc(kHandle);
      ASSERT_TRUE(rig_->device().RecordStream(block, other).has_value());
      Free(block);
    }
    Free(Malloc(kHandle));
    EXPECT_TRUE(rig_->device().EmptyCache().has_value());
    // Arrivals that malloc settles.
    const auto arriving = Layers(2);
    EXPECT_GE(Evict(), 2 * kHandle);
    ExpectLayers(arriving);
    Free(Malloc(kHandle));
    FreeAll(arriving);
    EXPECT_TRUE(rig_->device().EmptyCache().has_value());
  }

  StreamId stream_ = kDefaultStream;
};

TEST_F(EngineGlobalCaptureTest, TheCapturingThreadWorksElsewhere) {
  Open2(/*background=*/false);
  DuringACapture([&] { WorkOnDevice0(); });
}

TEST_F(EngineGlobalCaptureTest, AnotherThreadWorksElsewhere) {
  Open2(/*background=*/false);
  DuringACapture([&] { std::thread([&] { WorkOnDevice0(); }).join(); });
}

TEST_F(EngineGlobalCaptureTest, TheMoverThreadWorksElsewhere) {
  Open2(/*background=*/true);
  DuringACapture([&] {
    std::thread([&] { WorkOnDevice0(); }).join();
    // What was used next last time is away, and comes back ahead of its use.
    const auto layers = Layers(2);
    const Address other = Malloc(512);
    const auto pass = [&](bool wait) {
      // Uses closer than kBurstOperators count as one.
      for (int i = 0; i < 20; ++i) Write(other, 512, 77);
      ExpectReads(layers[0], kHandle, 1);
      if (wait) {
        EXPECT_TRUE(Eventually(
            [&] { return rig_->StateOf(layers[1]) != HandleState::kHost; }));
      }
      ExpectReads(layers[1], kHandle, 2);
    };
    pass(false);
    Evict();
    const std::uint64_t before = Counters().planned_handles;
    pass(true);
    EXPECT_GT(Counters().planned_handles, before);
    Free(other);
    FreeAll(layers);
  });
}

// What the work above asks only now and then, call by call.
TEST_F(EngineGlobalCaptureTest, NoCallOfADeviceSpoilsIt) {
  Open2(/*background=*/false);
  DuringACapture([&] {
    const Device& device = rig_->device().device();
    const Result<StreamId> stream = device.CreateStream();
    ASSERT_TRUE(stream.has_value());
    EXPECT_TRUE(device.SynchronizeStream(*stream).has_value());
    EXPECT_TRUE(device.IsIdle(*stream));
    EXPECT_TRUE(device.GetMemoryInfo().has_value());
    EXPECT_TRUE(device.EnablePeerAccess(DeviceIndex{1}).has_value());
    alignas(4096) static std::uint64_t words[512];
    EXPECT_TRUE(device.RegisterHost(words, sizeof words).has_value());
    EXPECT_TRUE(DeviceChecksum::Load(device, *stream, words).has_value());
    EXPECT_TRUE(device.UnregisterHost(words).has_value());
    const Result<EventId> event = device.CreateEvent();
    ASSERT_TRUE(event.has_value());
    EXPECT_TRUE(device.RecordEvent(*event, *stream).has_value());
    EXPECT_TRUE(device.IsEventDone(*event).has_value());
    EXPECT_TRUE(device.SynchronizeEvent(*event).has_value());
    device.DestroyEvent(*event);
    device.DestroyStream(*stream);
    alignas(4096) static char page[4096];
    EXPECT_TRUE(device.RegisterHost(page, sizeof page).has_value());
    EXPECT_TRUE(device.UnregisterHost(page).has_value());
    const Result<Address> plain = device.Malloc(kHandle);
    ASSERT_TRUE(plain.has_value());
    EXPECT_TRUE(device.FreeMalloc(*plain).has_value());
  });
}

}  // namespace
}  // namespace stratalloc
