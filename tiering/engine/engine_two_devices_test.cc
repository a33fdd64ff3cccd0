// SPDX-License-Identifier: Apache-2.0
// What devices have to do with each other: a capture on one of what lies on
// another, which stays as well although the other has no route and knows of no
// capture; and what each keeps on its own account.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr PoolId kGraph{1, 0};

class EngineTwoDevicesTest : public EngineTest {
 protected:
  void SetUp() override {
    Rig::Options options;
    options.devices = 2;
    Open(options);
    ASSERT_TRUE(rig_->device(1).EnablePeer(DeviceIndex{0}).has_value());
    here_ = rig_->NewStream();
    cudaSetDevice(1);
    there_ = rig_->NewStream();
    cudaSetDevice(0);
    for (Address& layer : layers_) {
      auto block = rig_->device(1).Malloc(
          {kHandle, there_, LifetimeClass::kPersistent, {}});
      ASSERT_TRUE(block.has_value()) << block.error().message;
      layer = block->address;
    }
    ASSERT_EQ(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming),
              cudaSuccess);
    cudaSetDevice(1);
    ASSERT_EQ(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming),
              cudaSuccess);
    cudaSetDevice(0);
  }
  void TearDown() override {
    for (const Address layer : layers_) {
      EXPECT_TRUE(rig_->device(1).Free(layer).has_value());
    }
    EXPECT_EQ(cudaEventDestroy(forked_), cudaSuccess);
    EXPECT_EQ(cudaEventDestroy(joined_), cudaSuccess);
    EngineTest::TearDown();
  }
  void Begin() {
    ASSERT_TRUE(rig_->device()
                    .BeginAllocateToPool(
                        kGraph,
                        [this](StreamId s) {
                          return rig_->device().device().IsCapturing(s);
                        },
                        here_)
                    .has_value());
    ASSERT_EQ(
        cudaStreamBeginCapture(Rig::ToCuda(here_), cudaStreamCaptureModeGlobal),
        cudaSuccess);
    inside_ = Malloc(kHandle, here_, LifetimeClass::kTransient);
  }
  void End() {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(here_), &graph), cudaSuccess)
        << "something spoiled it";
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    ASSERT_TRUE(rig_->device().EndAllocateToPool(kGraph).has_value());
    Free(inside_);
  }
  void Enter(Address address, StreamId stream) {
    const Access access{address, kHandle, /*written=*/false};
    const Status entered =
        rig_->engine().EnterOperator(stream, "copy", {&access, 1});
    ASSERT_TRUE(entered.has_value()) << entered.error().message;
  }
  void Leave() { rig_->engine().LeaveOperator(); }
  Bytes EvictThere() {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(1), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }

  StreamId here_{}, there_{};
  std::vector<Address> layers_ = std::vector<Address>(3);
  Address inside_ = 0;
  cudaEvent_t forked_ = nullptr, joined_ = nullptr;
};

// An operator on two devices enters on each; the order is nobody's promise.
TEST_F(EngineTwoDevicesTest, WhatAGraphReadsThereStaysUntilItsPoolIsGone) {
  Begin();
  Enter(inside_, here_);
  Enter(layers_[0], there_);
  Leave();
  Leave();
  Enter(layers_[1], there_);
  Enter(inside_, here_);
  Leave();
  Leave();
  Enter(layers_[2], there_);  // is not captured
  Leave();
  End();
  EXPECT_EQ(EvictThere(), kHandle);
  EXPECT_EQ(rig_->StateOf(layers_[0]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers_[1]), HandleState::kResident);
  EXPECT_EQ(rig_->StateOf(layers_[2]), HandleState::kHost);
  // A replay on this device, still running when the graph goes: the end of the
  // test looks for violations.
  const cudasim_access access{layers_[0], kHandle, 0};
  cudasim_note_access(Rig::ToCuda(here_), "replay", &access, 1);
  ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
  EXPECT_EQ(EvictThere(), 2 * kHandle);
}

TEST_F(EngineTwoDevicesTest, AStreamThereThatJoinedIsNotAskedForAnEvent) {
  Enter(layers_[0], there_);
  Leave();
  Begin();
  ASSERT_EQ(cudaEventRecord(forked_, Rig::ToCuda(here_)), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(Rig::ToCuda(there_), forked_, 0), cudaSuccess);
  Enter(layers_[1], there_);
  Leave();
  EXPECT_EQ(EvictThere(), 0u);
  ASSERT_EQ(cudaEventRecord(joined_, Rig::ToCuda(there_)), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(Rig::ToCuda(here_), joined_, 0), cudaSuccess);
  End();
  EXPECT_EQ(EvictThere(), 2 * kHandle) << "the third is the graph's";
  EXPECT_EQ(rig_->StateOf(layers_[1]), HandleState::kResident);
  ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
}

// Whether the graph that is gone still runs, only the devices know; and to ask
// one would spoil what it captures meanwhile.
TEST_F(EngineTwoDevicesTest, WhatAGraphReadThereWaitsForACaptureHere) {
  Begin();
  Enter(inside_, here_);
  Enter(layers_[0], there_);
  Leave();
  Leave();
  End();
  ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
  Begin();
  EXPECT_EQ(EvictThere(), 0u);
  End();
  EXPECT_EQ(EvictThere(), 3 * kHandle);
  ASSERT_TRUE(rig_->device().ReleasePool(kGraph).has_value());
}

// One that fails is no reason for the other to stay where it is.
TEST_F(EngineTwoDevicesTest, AllMeansThoseAfterOneThatFailsToo) {
  const Address layer = Malloc(kHandle);
  Write(layer, kHandle, 1);
  EXPECT_TRUE(rig_->engine().EvictAll().has_value());
  ASSERT_EQ(cudasim_fail("cudaMemcpyAsync", 1, 1, /*forever=*/0), 0);
  EXPECT_FALSE(rig_->engine().RestoreAll().has_value());
  cudasim_clear_faults();
  EXPECT_EQ(rig_->StateOf(layer), HandleState::kHost);
  for (const Address there : layers_) {
    EXPECT_EQ(rig_->StateOf(there), HandleState::kResident);
  }
  Free(layer);
}

class PointersOfTwoDevicesTest : public EngineTest {
 protected:
  void SetUp() override {
    Rig::Options options;
    options.devices = 2;
    Open(options);
    for (int device : {0, 1}) {
      for (Address& layer : layers_[device]) {
        auto block = rig_->device(device).Malloc(
            {kHandle, kDefaultStream, LifetimeClass::kPersistent, {}});
        ASSERT_TRUE(block.has_value()) << block.error().message;
        layer = block->address;
      }
    }
  }
  void TearDown() override {
    for (int device : {0, 1}) {
      for (Address layer : layers_[device]) {
        EXPECT_TRUE(rig_->device(device).Free(layer).has_value());
      }
    }
    EngineTest::TearDown();
  }
  void HandOut(int device) {
    for (Address layer : layers_[device]) rig_->engine().HandOut(layer);
  }
  Bytes EvictFrom(int device) {
    Result<Bytes> moved = rig_->engine().Evict(rig_->device(device), {});
    EXPECT_TRUE(moved.has_value()) << moved.error().message;
    return moved ? *moved : 0;
  }
  Address layers_[2][4] = {};  // as much as the share of each device
};

TEST_F(PointersOfTwoDevicesTest, EachDeviceHasAShareOfItsOwn) {
  HandOut(0);
  HandOut(1);
  EXPECT_EQ(EvictFrom(0), 0u);
  EXPECT_EQ(EvictFrom(1), 0u);
}

TEST_F(PointersOfTwoDevicesTest, OnlyTheDeviceThatLacksRoomLetsGo) {
  HandOut(0);
  HandOut(1);
  Unserved wants(4 * kHandle);
  EXPECT_FALSE(rig_->engine().Reclaim(DeviceIndex{1}, wants));
  EXPECT_EQ(Counters().evicted_handles, 4u);
  EXPECT_EQ(EvictFrom(0), 0u);
}

// A thread that waits for room of device 0 while another captures. The clock
// moves on when those who wait look at it, so that it says how often they did.
class WaitingBesideACaptureTest : public EngineTest {
 protected:
  static constexpr std::int64_t kQuiet = 100, kRunning = 1000;

  void Open2() {
    Rig::Options options;
    options.devices = 2;
    options.capacity = 16 * kMiB;
    options.host_budget = kHandle;
    options.quiet_ns = kQuiet;
    options.running_ns = kRunning;
    options.now_ns = [this] { return now_ += 10; };
    Open(options);
  }
  // What `wait` looked at the clock for, while a thread that has run operators
  // captures on `device`.
  std::int64_t LookedFor(int device, const std::function<void()>& wait) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    const StreamId stream = rig_->NewStream();
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    std::atomic<bool> captures{false}, done{false};
    std::thread other([&] {
      EXPECT_TRUE(rig_->engine().EnterOperator(stream, "any", {}).has_value());
      rig_->engine().LeaveOperator();
      EXPECT_EQ(cudaStreamBeginCapture(Rig::ToCuda(stream),
                                       cudaStreamCaptureModeRelaxed),
                cudaSuccess);
      rig_->device(static_cast<std::size_t>(device)).NoteCapture(stream);
      captures = true;
      while (!done) std::this_thread::yield();
      cudaGraph_t graph = nullptr;
      EXPECT_EQ(cudaStreamEndCapture(Rig::ToCuda(stream), &graph), cudaSuccess);
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    });
    while (!captures) std::this_thread::yield();
    const std::int64_t before = now_;
    wait();
    const std::int64_t after = now_;
    done = true;
    other.join();
    return after - before;
  }

  std::atomic<std::int64_t> now_{0};
};

TEST_F(WaitingBesideACaptureTest, AMallocMindsThoseOfItsOwnDevice) {
  Open2();
  const auto wait = [&] {
    Unserved wants(kHandle);
    EXPECT_FALSE(rig_->engine().Reclaim(DeviceIndex{0}, wants));
  };
  EXPECT_GE(LookedFor(0, wait), kRunning);
  EXPECT_LT(LookedFor(1, wait), kRunning) << "its end would help nobody";
}

// What it needs is all that the host holds, so that nothing can leave for it.
TEST_F(WaitingBesideACaptureTest, AnOperatorMindsThoseOfItsOperandsDevices) {
  Open2();
  const auto layers = Layers(1);
  ASSERT_EQ(Evict(), kHandle);
  const Address rest = Malloc(rig_->device().limit());
  const auto wait = [&] {
    const Access access{layers[0], kHandle, /*written=*/false};
    const Status entered =
        rig_->engine().EnterOperator(kDefaultStream, "read", {&access, 1});
    ASSERT_FALSE(entered.has_value());
    EXPECT_EQ(entered.error().code, ErrorCode::kOutOfMemory);
  };
  EXPECT_GE(LookedFor(0, wait), kRunning);
  EXPECT_LT(LookedFor(1, wait), kRunning);
  Free(rest);
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
