// SPDX-License-Identifier: Apache-2.0
// A driver whose cuMemUnmap waits for all work of its device, whoever's it is.
// The allocator's lock is held meanwhile, so a malloc that no bin serves waits
// too, at the longest until the work ends that was queued when the unmap began:
// what is unmapped after it finds the device idle. Nothing may need that lock
// for the work to end.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/cudasim/control.h"
#include "tests/cudasim/cuda_calls.h"
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
  // Work of a stream that nobody waits for, until it is let end.
  void Begin() {
    const auto wait = [](void* ended) {
      while (!*static_cast<std::atomic<bool>*>(ended)) {
        std::this_thread::yield();
      }
    };
    ASSERT_EQ(cudaLaunchHostFunc(stream_, wait, &ended_), cudaSuccess);
  }
  void End() { ended_ = true; }

  cudaStream_t stream_ = nullptr;
  std::atomic<bool> ended_{false};
};

TEST_F(EngineUnmapWaitsTest, EverybodyGoesOnWhenTheWorkEnds) {
  const auto layers = Layers(8);
  const Address resident = Malloc(kHandle);
  Begin();
  const long before = cudasim_calls("cuMemUnmap");
  Bytes moved = 0;
  Address block = 0;
  std::thread evicts([&] { moved = EvictOnly(layers[0], 8 * kHandle); });
  ASSERT_TRUE(Eventually([&] { return cudasim_calls("cuMemUnmap") > before; }));
  std::thread mallocs([&] {
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
  evicts.join();
  mallocs.join();
  EXPECT_EQ(moved, 8 * kHandle);
  EXPECT_NE(block, 0u);
  ExpectLayers(layers);
  Free(block);
  FreeAll(layers);
}

// A malloc that was refused evicts for itself.
TEST_F(EngineUnmapWaitsTest, ARefusedMallocGetsItsRoom) {
  const auto layers = Layers(32);
  Begin();
  Address block = 0;
  const long before = cudasim_calls("cuMemUnmap");
  std::thread mallocs([&] { block = Malloc(4 * kHandle); });
  ASSERT_TRUE(Eventually([&] { return cudasim_calls("cuMemUnmap") > before; }));
  End();
  mallocs.join();
  EXPECT_NE(block, 0u);
  Free(block);
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
