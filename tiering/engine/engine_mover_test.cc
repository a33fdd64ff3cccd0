// SPDX-License-Identifier: Apache-2.0
// The engine with its mover thread: programs in cycles reach a state in which
// no more returns than must, and what stands still holds up nothing else.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

constexpr Bytes kCard = 64 * kMiB;
constexpr int kFit = static_cast<int>(kCard / kHandle);
constexpr int kFitThere = 4;  // on the second device
// Pages that the planner keeps free for operators of one page (the planner's
// Window), and the page in use.
constexpr int kWindow = 7 + 1;

// A host function that keeps its stream, and the thread that runs it, until it
// is let go. Held streams (cudasim_hold_streams) run where a thread waits for
// them, and there alone.
class Gate {
 public:
  ~Gate() { Open(); }
  void HoldUp(StreamId stream) {
    ASSERT_EQ(cudaLaunchHostFunc(Rig::ToCuda(stream), &Wait, this),
              cudaSuccess);
  }
  void Open() { open_.store(true); }
  bool entered() const { return entered_.load(); }

 private:
  static void Wait(void* gate) {
    auto* const self = static_cast<Gate*>(gate);
    self->entered_.store(true);
    while (!self->open_.load()) std::this_thread::yield();
  }
  std::atomic<bool> open_{false}, entered_{false};
};

// Runs one stream while the others are held.
class Pump {
 public:
  Pump(int device, StreamId stream)
      : thread_([this, device, stream] {
          cudaSetDevice(device);
          while (!stop_.load()) {
            cudasim_run_stream(Rig::ToCuda(stream), 100);
            std::this_thread::yield();
          }
        }) {}
  ~Pump() {
    stop_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class EngineMoverTest : public EngineTest {
 protected:
  void OpenRig(int devices = 1, bool async = false, std::int64_t quiet_ns = 0) {
    Rig::Options options;
    options.capacity = kCard;
    options.host_budget = 256 * kMiB;
    options.background = true;
    options.async = async;
    options.devices = devices;
    options.second_capacity = kFitThere * kHandle;
    options.quiet_ns = quiet_ns;
    options.running_ns = quiet_ns;
    Open(options);
  }
  // One operator for each page, in order. Their bytes are as they were.
  void Pass(const std::vector<Address>& layers) { ExpectLayers(layers); }
  // The same, each operator after the mover has caught up with the one before,
  // as where kernels take longer than copies.
  void SlowPass(const std::vector<Address>& layers) {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      ExpectReads(layers[i], kHandle, i + 1);
      ASSERT_TRUE(Settles());
    }
  }
  // Nothing moves any more.
  bool Settles() {
    return Eventually([&] {
      const EngineCounters before = Counters();
      for (int i = 0; i < 200; ++i) std::this_thread::yield();
      const EngineCounters after = Counters();
      return before.restored_handles == after.restored_handles &&
             before.evicted_handles == after.evicted_handles;
    });
  }
  std::uint64_t Restored() { return Counters().restored_handles; }

  // The clock of threads that wait for room, and how often they looked at it.
  std::atomic<std::int64_t> now_ns_{1};
  std::atomic<long> looks_{0};
};

TEST_F(EngineMoverTest, CycleLargerThanTheDeviceReturnsWhatItMust) {
  OpenRig();
  const int count = kFit + 8;
  const auto layers = Layers(count);
  for (int pass = 0; pass < 6; ++pass) SlowPass(layers);
  const std::uint64_t before = Restored();
  constexpr int kPasses = 4;
  for (int pass = 0; pass < kPasses; ++pass) SlowPass(layers);
  const std::uint64_t restored = Restored() - before;
  EXPECT_LE(restored, kPasses * (count - kFit + kWindow));
  EXPECT_GE(restored, kPasses * (count - kFit)) << "it does not fit";
  FreeAll(layers);
}

TEST_F(EngineMoverTest, CycleIsBroughtBackAheadOfUse) {
  OpenRig();
  const auto layers = Layers(kFit + 8);
  for (int pass = 0; pass < 6; ++pass) SlowPass(layers);
  const EngineCounters before = Counters();
  SlowPass(layers);
  const EngineCounters after = Counters();
  EXPECT_EQ(after.planned_handles - before.planned_handles,
            after.restored_handles - before.restored_handles);
  FreeAll(layers);
}

// Two operators on a page with another page between, as an optimizer's: what
// the plan has leave does not leave between the two.
TEST_F(EngineMoverTest, PageUsedTwiceInARowReturnsOncePerCycle) {
  OpenRig();
  const int count = kFit + 8;
  const auto layers = Layers(count);
  const auto pass = [&] {
    for (std::size_t i = 0; i < layers.size(); ++i) {
      const std::size_t next = (i + 1) % layers.size();
      ExpectReads(layers[i], kHandle, i + 1);
      ASSERT_TRUE(Settles());
      ExpectReads(layers[next], kHandle, next + 1);
      ASSERT_TRUE(Settles());
      ExpectReads(layers[i], kHandle, i + 1);
      ASSERT_TRUE(Settles());
    }
  };
  for (int i = 0; i < 6; ++i) pass();
  const std::uint64_t before = Restored();
  constexpr int kPasses = 3;
  for (int i = 0; i < kPasses; ++i) pass();
  EXPECT_LE(Restored() - before, kPasses * (count - kFit + kWindow));
  FreeAll(layers);
}

// An operator notes pages in another order when some of them were evicted.
TEST_F(EngineMoverTest, PagesOfAnOperatorInAnyOrderAreOneCycle) {
  OpenRig();
  const int count = kFit + 8;
  const auto layers = Layers(count);
  const auto pass = [&](bool forward) {
    for (int i = 0; i < count; i += 2) {
      std::vector<Access> accesses{{layers[i], kHandle, false},
                                   {layers[i + 1], kHandle, false}};
      if (!forward) std::swap(accesses[0], accesses[1]);
      ASSERT_TRUE(rig_->Operate(kDefaultStream, accesses, [] {}).has_value());
      ASSERT_TRUE(Settles());
    }
  };
  for (int i = 0; i < 6; ++i) pass(i % 2 == 0);
  const std::uint64_t before = Restored();
  for (int i = 0; i < 4; ++i) pass(i % 2 == 0);
  EXPECT_LE(Restored() - before, 4u * (count - kFit + kWindow + 2));
  FreeAll(layers);
}

TEST_F(EngineMoverTest, BytesHoldWithoutWaitingForTheMover) {
  OpenRig(1, /*async=*/true);
  const auto layers = Layers(kFit + 8);
  for (int pass = 0; pass < 12; ++pass) Pass(layers);
  EXPECT_GT(Restored(), 0u);
  FreeAll(layers);
}

TEST_F(EngineMoverTest, JobThatFitsMovesNothing) {
  OpenRig();
  const auto layers = Layers(kFit - 4);
  for (int pass = 0; pass < 6; ++pass) SlowPass(layers);
  EXPECT_EQ(Counters().evicted_handles, 0u);
  EXPECT_EQ(Restored(), 0u);
  FreeAll(layers);
}

TEST_F(EngineMoverTest, EvictedByNameStaysUntilTheNextUse) {
  OpenRig();
  const auto layers = Layers(kFit + 8);
  for (int pass = 0; pass < 6; ++pass) SlowPass(layers);
  Evict();
  EXPECT_TRUE(Settles());
  const std::uint64_t before = Restored();
  for (Address layer : layers) EXPECT_TRUE(rig_->IsAway(layer, kHandle));
  rig_->engine().NotePressure(DeviceIndex{0});
  EXPECT_TRUE(Settles());
  EXPECT_EQ(Restored(), before) << "nothing was used";
  ExpectReads(layers[0], kHandle, 1);
  EXPECT_TRUE(Eventually([&] { return Restored() > before + 1; }))
      << "what follows comes back ahead of use";
  Pass(layers);
  FreeAll(layers);
}

// As where a program has each layer leave by name after its copies: what comes
// next are other layers, and memory is free.
TEST_F(EngineMoverTest, EvictedByNameStaysWhileOthersAreUsed) {
  OpenRig();
  const auto layers = Layers(8);
  Evict();  // from now on uses are noted
  for (int pass = 0; pass < 4; ++pass) SlowPass(layers);
  Evict();
  EXPECT_TRUE(Settles());
  const std::uint64_t before = Restored();
  std::vector<Address> others;
  for (std::uint64_t i = 0; i < 4; ++i) {
    others.push_back(Malloc(kHandle));
    Write(others.back(), kHandle, i);
    ExpectReads(others.back(), kHandle, i);
    EXPECT_TRUE(Settles());
  }
  EXPECT_EQ(Restored(), before);
  FreeAll(others);
  FreeAll(layers);
}

// The stream of device 0 waits for what a thread does after its operators on
// device 1.
TEST_F(EngineMoverTest, HeldStreamDoesNotStopAnotherDevice) {
  OpenRig(2, /*async=*/true, /*quiet_ns=*/1'000'000'000);
  const auto layers = Layers(kFit);
  cudaSetDevice(1);
  const StreamId stream_there = rig_->NewStream();
  cudaSetDevice(0);
  const StreamId held = rig_->NewStream();
  cudaDeviceSynchronize();
  cudasim_hold_streams(1);
  for (Address layer : layers) {
    ASSERT_TRUE(
        rig_->Operate(held, {{layer, kHandle, false}}, [] {}).has_value());
  }
  Gate gate;
  gate.HoldUp(held);
  std::thread waits([&] {  // for room on device 0, hence for the held stream
    const auto block = rig_->Malloc(kHandle);
    if (block) Free(*block);
  });
  ASSERT_TRUE(Eventually([&] {
    return gate.entered() || rig_->engine().IsCrowded();
  })) << "nothing waits";
  std::vector<Address> there;
  {
    for (int i = 0; i < kFitThere + 1; ++i) {
      auto block = rig_->device(1).Malloc(
          {kHandle, stream_there, LifetimeClass::kPersistent, {}});
      ASSERT_TRUE(block.has_value()) << block.error().message;
      there.push_back(block->address);
    }
    for (Address layer : there) {
      const Access access{layer, kHandle, false};
      const Status entered =
          rig_->engine().EnterOperator(stream_there, "read", {&access, 1});
      ASSERT_TRUE(entered.has_value()) << entered.error().message;
      rig_->engine().LeaveOperator();
    }
  }
  gate.Open();
  cudasim_hold_streams(0);
  waits.join();
  for (Address layer : there) {
    EXPECT_TRUE(rig_->device(1).Free(layer).has_value());
  }
  FreeAll(layers);
}

TEST_F(EngineMoverTest, HeldStreamDoesNotStopPagesOfOtherStreams) {
  OpenRig(1, /*async=*/true);
  const auto layers = Layers(kFit);
  cudaDeviceSynchronize();
  EXPECT_EQ(EvictOnly(layers[0], kHandle), kHandle);
  const Address more = Malloc(kHandle);  // in its place
  const StreamId held = rig_->NewStream();
  cudasim_hold_streams(1);
  // The pages that would leave first were used there.
  for (int i = 1; i < kFit / 2; ++i) {
    ASSERT_TRUE(
        rig_->Operate(held, {{layers[i], kHandle, false}}, [] {}).has_value());
  }
  Gate gate;
  gate.HoldUp(held);
  {
    const Pump pump(0, kDefaultStream);
    for (int i = kFit / 2; i < kFit; ++i) {
      ExpectReads(layers[i], kHandle, static_cast<std::uint64_t>(i + 1));
    }
    ExpectReads(layers[0], kHandle, 1);
  }
  EXPECT_FALSE(gate.entered()) << "nothing waited for the held stream";
  gate.Open();
  cudasim_hold_streams(0);
  cudaDeviceSynchronize();
  Free(more);
  FreeAll(layers);
}

// What could leave is used by a kernel, which ends by itself: the malloc waits
// for longer than for threads that do nothing.
TEST_F(EngineMoverTest, LongKernelIsWaitedForBesideAnIdleThread) {
  Rig::Options options;
  options.capacity = kCard;
  options.host_budget = 256 * kMiB;
  options.background = true;
  options.now_ns = [this] {
    looks_.fetch_add(1);
    return now_ns_ += 10'000'000;
  };
  Open(options);
  const auto layers = Layers(kFit);
  cudaDeviceSynchronize();
  const StreamId held = rig_->NewStream();
  cudasim_hold_streams(1);
  for (Address layer : layers) {
    ASSERT_TRUE(
        rig_->Operate(held, {{layer, kHandle, false}}, [] {}).has_value());
  }
  std::atomic<bool> ended{false};
  std::string refused;
  std::thread waits([&] {
    const auto block = rig_->Malloc(kHandle);
    if (block) {
      Free(*block);
    } else {
      refused = block.error().message;
    }
    ended.store(true);
  });
  EXPECT_TRUE(Eventually([&] { return rig_->engine().IsCrowded(); }));
  const long looks = looks_.load();
  EXPECT_TRUE(
      Eventually([&] { return looks_.load() > looks + 100 || ended.load(); }));
  EXPECT_FALSE(ended.load());
  cudasim_hold_streams(0);
  waits.join();
  EXPECT_EQ(refused, "");
  EXPECT_LE(Counters().evicted_handles, 2u)
      << "more pages of the same stream would have been ready no sooner";
  FreeAll(layers);
}

// A choice that waits for a stream that stands still promises no room. What is
// cached serves the operator of another stream meanwhile.
TEST_F(EngineMoverTest, CachedMemoryServesBesideAChoiceThatStandsStill) {
  OpenRig(1, /*async=*/true);
  const auto layers = Layers(kFit);
  EXPECT_EQ(EvictOnly(layers.back(), kHandle), kHandle);
  Free(Malloc(kHandle, kDefaultStream, LifetimeClass::kTransient));
  const StreamId held = rig_->NewStream(), other = rig_->NewStream();
  cudaDeviceSynchronize();
  cudasim_hold_streams(1);
  for (int i = 0; i + 1 < kFit; ++i) {
    ASSERT_TRUE(
        rig_->Operate(held, {{layers[i], kHandle, false}}, [] {}).has_value());
  }
  Gate gate;
  gate.HoldUp(held);
  const long asked = cudasim_calls("cudaEventQuery");
  std::thread evicts([&] { EvictOnly(layers[0], kHandle); });
  EXPECT_TRUE(Eventually([&] {
    return cudasim_calls("cudaEventQuery") > asked + 16;
  })) << "nothing waits for a fence";
  std::atomic<bool> served{false};
  std::thread reads([&] {
    served = rig_->Operate(other, {{layers.back(), kHandle, false}}, [] {})
                 .has_value();
  });
  EXPECT_TRUE(Eventually([&] { return served.load(); }));
  gate.Open();
  cudasim_hold_streams(0);
  cudaDeviceSynchronize();
  reads.join();
  evicts.join();
  FreeAll(layers);
}

TEST_F(EngineMoverTest, TwoThreadsInCyclesOfTheirOwn) {
  OpenRig(1, /*async=*/true);
  const auto layers = Layers(kFit + 8);
  std::atomic<int> wrong{0};
  const auto run = [&](std::size_t from, std::size_t to) {
    const StreamId stream = kDefaultStream;
    for (int pass = 0; pass < 8; ++pass) {
      for (std::size_t i = from; i < to; ++i) {
        const auto reads = rig_->Reads(layers[i], kHandle, i + 1, stream);
        wrong += !reads.value_or(false);
      }
    }
  };
  std::thread first(run, 0, layers.size() / 2);
  std::thread second(run, layers.size() / 2, layers.size());
  first.join();
  second.join();
  EXPECT_EQ(wrong.load(), 0);
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
