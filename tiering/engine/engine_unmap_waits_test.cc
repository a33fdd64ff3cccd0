// SPDX-License-Identifier: Apache-2.0
// A driver whose cuMemUnmap waits for all work of its device, whoever's it is.
// The allocator's lock is held meanwhile, so every malloc and free of the
// device waits too: for each run of adjacent handles that leaves, at the
// longest until the work ends that was queued when the run's one unmap began,
// never for what is launched meanwhile. Nothing may need that lock for the work
// to end.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

class EngineUnmapWaitsTest : public EngineTest {
 protected:
  void SetUp() override {
    Rig::Options options;
    options.prepare = [] { cudasim_set_unmap_waits(1); };
    Open(options);
    stream_ = Rig::ToCuda(rig_->NewStream());
  }
  void TearDown() override {
    EndAll();
    EngineTest::TearDown();
  }

  // Work of a stream that nobody waits for, until it is let end. The second
  // lies behind the first.
  void Begin(int work = 0) {
    const auto wait = [](void* ended) {
      while (!*static_cast<std::atomic<bool>*>(ended)) {
        std::this_thread::yield();
      }
    };
    ASSERT_EQ(cudaLaunchHostFunc(stream_, wait, &ended_[work]), cudaSuccess);
  }
  void End(int work = 0) { ended_[work] = true; }
  void EndAll() {
    for (auto& ended : ended_) ended = true;
  }
  static long Unmaps() { return cudasim_calls("cuMemUnmap"); }

  // Another thread, which may wait for the work. A test that fails ends both.
  class Meanwhile {
   public:
    Meanwhile(EngineUnmapWaitsTest* test, std::function<void()> f)
        : test_(test), thread_([this, f] {
            f();
            done_ = true;
          }) {}
    ~Meanwhile() {
      if (!thread_.joinable()) return;
      test_->EndAll();
      thread_.join();
    }
    bool done() const { return done_; }
    void Join() { thread_.join(); }

   private:
    EngineUnmapWaitsTest* const test_;
    std::atomic<bool> done_{false};
    std::thread thread_;
  };

  cudaStream_t stream_ = nullptr;
  std::array<std::atomic<bool>, 2> ended_{};
};

TEST_F(EngineUnmapWaitsTest, EverybodyGoesOnWhenTheWorkEnds) {
  const auto layers = Layers(8);
  const Address resident = Malloc(kHandle);
  Begin();
  const long before = Unmaps();
  Bytes moved = 0;
  Address block = 0;
  Meanwhile evicts(this, [&] { moved = EvictOnly(layers[0], 8 * kHandle); });
  ASSERT_TRUE(Eventually([&] { return Unmaps() > before; }));
  Meanwhile mallocs(this, [&] {
    block = Malloc(kHandle);
    Free(resident);
  });
  // Work is launched meanwhile, and what is resident may be used.
  EXPECT_EQ(cudaLaunchHostFunc(
                stream_, [](void*) {}, nullptr),
            cudaSuccess);
  const Access access{resident, kHandle, /*written=*/false};
  EXPECT_TRUE(
      rig_->engine().EnterOperator(kDefaultStream, "read", {&access, 1}));
  rig_->engine().LeaveOperator();
  End();
  evicts.Join();
  mallocs.Join();
  EXPECT_EQ(moved, 8 * kHandle);
  EXPECT_EQ(Unmaps(), before + 1);
  EXPECT_NE(block, 0u);
  ExpectLayers(layers);
  Free(block);
  FreeAll(layers);
}

// Whoever launches without a pause would keep a lock that waited for each
// handle by itself: behind every unmap there is work again.
TEST_F(EngineUnmapWaitsTest, ARunWaitsForNothingThatIsLaunchedMeanwhile) {
  const auto layers = Layers(8);
  const Address resident = Malloc(kHandle);
  Begin(0);
  const long before = Unmaps();
  Bytes moved = 0;
  Meanwhile evicts(this, [&] { moved = EvictOnly(layers[0], 8 * kHandle); });
  ASSERT_TRUE(Eventually([&] { return Unmaps() > before; }));
  Begin(1);
  End(0);
  ASSERT_TRUE(
      Eventually([&] { return evicts.done() || Unmaps() > before + 1; }));
  ASSERT_EQ(Unmaps(), before + 1);
  evicts.Join();
  EXPECT_EQ(moved, 8 * kHandle);
  // The second is running still, and nobody who unmaps nothing waits for it:
  // not a malloc out of a bin, nor one that maps.
  std::vector<Address> blocks;
  Meanwhile mallocs(this, [&] {
    Free(resident);
    blocks.push_back(Malloc(kHandle));
    blocks.push_back(Malloc(4 * kHandle));
  });
  ASSERT_TRUE(
      Eventually([&] { return mallocs.done() || Unmaps() > before + 1; }));
  EXPECT_EQ(Unmaps(), before + 1);
  mallocs.Join();
  End(1);
  ExpectLayers(layers);
  FreeAll(blocks);
  FreeAll(layers);
}

// A malloc that was refused evicts for itself.
TEST_F(EngineUnmapWaitsTest, ARefusedMallocGetsItsRoom) {
  const auto layers = Layers(32);
  Begin();
  Address block = 0;
  const long before = Unmaps();
  Meanwhile mallocs(this, [&] { block = Malloc(4 * kHandle); });
  ASSERT_TRUE(Eventually([&] { return Unmaps() > before; }));
  End();
  mallocs.Join();
  EXPECT_EQ(Unmaps(), before + 1);
  EXPECT_NE(block, 0u);
  Free(block);
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
