// SPDX-License-Identifier: Apache-2.0
// What happens to a handle between its marking and its leaving: the moment in
// which torch's tables of workspaces are asked, and here they take their time.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "allocator/state/workspaces.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

std::atomic<int> asked{0};
std::atomic<bool> marked{false}, go_on{false};

// An eviction by name asks once, after the marks.
int SlowTables(void (*)(void*, void*), void*) {
  if (++asked == 1) {
    marked = true;
    while (!go_on) std::this_thread::yield();
  }
  return 1;
}

class EngineLeavingTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    asked = 0;
    marked = go_on = false;
    LibraryWorkspaces::Use(&SlowTables);
    Open({});
    layers_ = Layers(2);
    evictor_ = std::thread([this] { moved_ = Evict(); });
    ASSERT_TRUE(Eventually([] { return marked.load(); }));
    ASSERT_EQ(rig_->StateOf(layers_[0]), HandleState::kLeaving);
  }
  void TearDown() override {
    LibraryWorkspaces::Use(nullptr);
    EngineTest::TearDown();
  }
  void GoOn() {
    go_on = true;
    evictor_.join();
  }

  std::vector<Address> layers_;
  std::thread evictor_;
  Bytes moved_ = 0;
};

TEST_F(EngineLeavingTest, FreedWhileLeavingIsReleasedAtTheEnd) {
  Free(layers_[0]);
  GoOn();
  EXPECT_EQ(moved_, 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers_[0]), HandleState::kUnmapped);
  EXPECT_EQ(rig_->StateOf(layers_[1]), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().HostUsed(), kHandle);
  ExpectReads(layers_[1], kHandle, 2);
  Free(layers_[1]);
}

TEST_F(EngineLeavingTest, ALookCancelsWhatIsLeaving) {
  std::thread looker([&] { ExpectReads(layers_[0], kHandle, 1); });
  ASSERT_TRUE(
      Eventually([&] { return rig_->UseOf(layers_[0]).pins.load() > 0; }));
  GoOn();
  looker.join();
  EXPECT_EQ(moved_, kHandle) << "the other one";
  EXPECT_EQ(rig_->StateOf(layers_[1]), HandleState::kHost);
  EXPECT_EQ(Counters().evicted_handles, 1u);
  EXPECT_EQ(Counters().restored_handles, 0u);
  FreeAll(layers_);
}

}  // namespace
}  // namespace stratalloc
