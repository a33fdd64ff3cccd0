// SPDX-License-Identifier: Apache-2.0
// What libraries keep as workspaces never leaves, whatever its class.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <vector>

#include "allocator/state/workspaces.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

std::vector<Address> named;
std::atomic<int> answers{0};
int busy_at = -1;  // the answer that cannot be given

int List(void (*each)(void* context, void* address), void* context) {
  if (busy_at >= 0 && answers++ >= busy_at) return 0;
  for (Address address : named) {
    each(context, reinterpret_cast<void*>(address));
  }
  return 1;
}

class EngineWorkspacesTest : public EngineTest {
 protected:
  void SetUp() override {
    EngineTest::SetUp();
    named.clear();
    answers = 0;
    busy_at = -1;
    LibraryWorkspaces::Use(&List);
  }
  void TearDown() override {
    LibraryWorkspaces::Use(nullptr);
    EngineTest::TearDown();
  }
};

TEST_F(EngineWorkspacesTest, IsLeftByNameAndWithEverything) {
  Open({});
  const auto layers = Layers(3);
  named = {layers[1]};
  EXPECT_EQ(EvictOnly(layers[1], kHandle), 0u);
  EXPECT_EQ(Evict(), 2 * kHandle);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineWorkspacesTest, IsNoVictim) {
  Open({});
  const auto layers = Layers(3);
  named = {layers[0]};  // the coldest
  Unserved wants(64 * kMiB);
  EXPECT_FALSE(rig_->engine().Reclaim(DeviceIndex{0}, wants));
  EXPECT_EQ(Counters().evicted_handles, 2u);
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineWorkspacesTest, NothingLeavesWhileNobodyCanTell) {
  Open({});
  const auto layers = Layers(2);
  for (busy_at = 0; busy_at < 2; ++busy_at) {
    answers = 0;
    Unserved wants(kHandle);
    EXPECT_FALSE(rig_->engine().Reclaim(DeviceIndex{0}, wants)) << busy_at;
    EXPECT_EQ(Counters().evicted_handles, 0u) << busy_at;
    EXPECT_NE(
        std::string(rig_->engine().LastRefusal(DeviceIndex{0})).find("tables"),
        std::string::npos);
  }
  busy_at = 0;
  EXPECT_EQ(Evict(), 0u);
  busy_at = -1;
  EXPECT_EQ(Evict(), 2 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
