// SPDX-License-Identifier: Apache-2.0
// What people are told of a state that lasts: once, however often it is met.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tiering/engine/engine_fixture_test.h"
#include "tiering/engine/told.h"

namespace stratalloc {
namespace {

std::vector<std::string> lines;

class EngineToldTest : public EngineTest {
 protected:
  void SetUp() override {
    lines.clear();
    SetLogSink([](int, const char* text) { lines.push_back(text); });
  }
  void TearDown() override {
    EngineTest::TearDown();
    SetLogSink(nullptr);
  }
  static long Count(const std::string& words) {
    return std::count_if(lines.begin(), lines.end(), [&](const auto& line) {
      return line.find(words) != std::string::npos;
    });
  }
  static std::string All() {
    std::string all;
    for (const std::string& line : lines) all += line + "\n";
    return all;
  }
  // By name, and as a malloc does that lacks memory.
  void Try(int times) {
    for (int i = 0; i < times; ++i) {
      (void)rig_->engine().Evict(rig_->device(), {});
      Unserved wants(kHandle);
      EXPECT_FALSE(rig_->engine().Reclaim(DeviceIndex{0}, wants));
    }
  }
};

TEST(ToldTest, AReasonIsToldOnceUntilItChangesOrIsOver) {
  lines.clear();
  SetLogSink([](int, const char* text) { lines.push_back(text); });
  Told told;
  EXPECT_FALSE(told.lasts());
  told.Tell(LogLevel::kWarning, "full", "full, 1 byte");
  told.Tell(LogLevel::kWarning, "full", "full, 2 bytes");
  EXPECT_TRUE(told.lasts());
  told.Tell(LogLevel::kWarning, "broken", "broken");
  told.Over();
  EXPECT_FALSE(told.lasts());
  told.Tell(LogLevel::kWarning, "broken", "broken again");
  SetLogSink(nullptr);
  EXPECT_EQ(lines, (std::vector<std::string>{"full, 1 byte", "broken",
                                             "broken again"}));
}

TEST_F(EngineToldTest, ABrokenDeviceIsToldOnce) {
  Open({});
  const auto layers = Layers(3);
  for (int round = 1; round <= 2; ++round) {
    ASSERT_EQ(cudasim_fail("cudaMemcpyAsync", 1, cudaErrorIllegalAddress, 0),
              0);
    Try(5);
    EXPECT_EQ(Count("eviction stopped"), round) << All();
    EXPECT_EQ(Count("does not synchronise any more"), round) << All();
    EXPECT_EQ(lines.size(), 2u * static_cast<std::size_t>(round)) << All();
    // It is healthy again, and the next error is news.
    cudasim_clear_errors();
    cudasim_clear_faults();
    EXPECT_EQ(Evict(), 3 * kHandle);
    for (std::size_t i = 0; i < layers.size(); ++i) {
      Write(layers[i], kHandle, i + 1);  // what is clean leaves without a copy
    }
  }
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineToldTest, WhicheverCallFailsItIsTheSameState) {
  Open({});
  const auto layers = Layers(3);
  for (int i = 0; i < 4; ++i) {
    for (const char* call : {"cudaMemcpyAsync", "cuLaunchKernel"}) {
      ASSERT_EQ(cudasim_fail(call, 1, cudaErrorUnknown, 1), 0);
      (void)rig_->engine().Evict(rig_->device(), {});
      cudasim_clear_faults();
    }
  }
  EXPECT_EQ(lines.size(), 1u) << All();
  EXPECT_EQ(Evict(), 3 * kHandle);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineToldTest, ASpentBudgetIsToldOnceUntilEverythingLeft) {
  Rig::Options options;
  options.host_budget = 8 * kMiB;
  Open(options);
  auto layers = Layers(8);
  Evict();
  Try(5);
  EXPECT_EQ(Count("left the device, not all"), 1) << All();
  while (layers.size() > 1) {
    Free(layers.back());
    layers.pop_back();
  }
  Restore();
  EXPECT_EQ(Evict(), kHandle);
  EXPECT_EQ(lines.size(), 1u) << All();
  const auto more = Layers(8);
  Evict();
  EXPECT_EQ(Count("left the device, not all"), 2) << All();
  ExpectLayers(layers);
  FreeAll(layers);
  FreeAll(more);
}

}  // namespace
}  // namespace stratalloc
