// SPDX-License-Identifier: Apache-2.0
// The engine with more than one thread: who is inside an operator while
// something leaves, operators that wait for each other, the background thread.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "accounting/scope_stack.h"
#include "tiering/engine/engine_fixture_test.h"

namespace stratalloc {
namespace {

using EngineThreadsTest = EngineTest;

TEST_F(EngineThreadsTest, FreedWhileLeavingIsReleasedAtTheEnd) {
  Open({});
  const auto layers = Layers(2);
  Busy busy(rig_->engine(), {});
  std::thread evictor([&] { EXPECT_EQ(Evict(), 2 * kHandle); });
  ASSERT_TRUE(Eventually(
      [&] { return rig_->StateOf(layers[0]) == HandleState::kLeaving; }));
  Free(layers[0]);
  busy.Leave();
  evictor.join();
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kUnmapped);
  EXPECT_EQ(rig_->StateOf(layers[1]), HandleState::kHost);
  EXPECT_EQ(rig_->Check(), "");
  EXPECT_EQ(rig_->engine().HostUsed(), kHandle);
  ExpectReads(layers[1], kHandle, 2);
  Free(layers[1]);
}

TEST_F(EngineThreadsTest, ALookCancelsWhatIsLeaving) {
  Open({});
  const auto layers = Layers(1);
  Busy busy(rig_->engine(), {});
  Bytes moved = 1;
  std::thread evictor([&] { moved = Evict(); });
  ASSERT_TRUE(Eventually(
      [&] { return rig_->StateOf(layers[0]) == HandleState::kLeaving; }));
  std::thread looker([&] { ExpectReads(layers[0], kHandle, 1); });
  ASSERT_TRUE(
      Eventually([&] { return rig_->EntryOf(layers[0]).pins.load() > 0; }));
  busy.Leave();
  evictor.join();
  looker.join();
  EXPECT_EQ(moved, 0u);
  EXPECT_EQ(Counters().evicted_handles, 0u);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, WhatAnOperatorUsesDoesNotLeave) {
  Open({});
  const auto layers = Layers(2);
  {
    Busy busy(rig_->engine(), {{layers[0], kHandle, false}});
    std::thread evictor([&] { EXPECT_EQ(Evict(), kHandle); });
    ASSERT_TRUE(Eventually(
        [&] { return rig_->StateOf(layers[1]) == HandleState::kLeaving; }));
    EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
    busy.Leave();
    evictor.join();
  }
  EXPECT_EQ(rig_->StateOf(layers[0]), HandleState::kResident);
  ExpectLayers(layers);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, TwoOperatorsThatDoNotFitTogetherTakeTurns) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(6);
  const auto Three = [&](int first) {
    std::vector<Access> three;
    for (int i = first; i < first + 3; ++i) {
      three.push_back({layers[i], kHandle, false});
    }
    return three;
  };
  Busy busy(rig_->engine(), Three(0));
  std::atomic<bool> done{false};
  std::thread other([&] {
    Status status = rig_->Operate(kDefaultStream, Three(3), [] {});
    EXPECT_TRUE(status.has_value()) << status.error().message;
    done = true;
  });
  // Refused at least once, and waiting with nothing pinned.
  ASSERT_TRUE(Eventually([&] {
    return Counters().stalls >= 2 && rig_->EntryOf(layers[5]).pins.load() == 0;
  }));
  EXPECT_FALSE(done);
  busy.Leave();
  other.join();
  EXPECT_TRUE(done);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, ARefusedWriterStillMakesItsOperandsDirty) {
  Rig::Options options;
  options.capacity = 8 * kMiB;
  Open(options);
  const auto layers = Layers(5);
  const Address a = layers[0];
  Evict();
  Busy busy(rig_->engine(),
            {{layers[3], kHandle, false}, {layers[4], kHandle, false}});
  ExpectReads(a, kHandle, 1);  // resident, clean
  // Needs three of four handles, of which two are in use.
  std::thread writer([&] {
    Status status = rig_->Operate(kDefaultStream,
                                  {{a, kHandle, true},
                                   {layers[1], kHandle, false},
                                   {layers[2], kHandle, false}},
                                  [&] { Rig::Fill(a, kHandle, 50); });
    EXPECT_TRUE(status.has_value()) << status.error().message;
  });
  // While it waits, what it will write leaves once more. (Stalls: the busy
  // operator's, the read's, and the writer's refusal.)
  ASSERT_TRUE(Eventually([&] { return Counters().stalls >= 3; }));
  std::thread evictor([&] {
    // The writer may hold its pins for a moment still.
    while (EvictOnly(a, kHandle) == 0) {
    }
  });
  EXPECT_TRUE(
      Eventually([&] { return rig_->StateOf(a) != HandleState::kResident; }));
  busy.Leave();
  evictor.join();
  writer.join();
  Evict();
  EXPECT_EQ(Counters().dirty_by_checksum, 0u);
  ExpectReads(a, kHandle, 50);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, TheBackgroundThreadRestoresWhatTheNextScopesUsed) {
  Rig::Options options;
  options.background = true;
  Open(options);
  const auto layers = Layers(3);
  const Address other = Malloc(512);
  Evict();  // from here on the planner learns
  SetScopeListener(&rig_->engine());
  const auto Pass = [&](bool wait) {
    for (int i = 0; i < 3; ++i) {
      PushScope({ScopeId{static_cast<std::uint32_t>(10 + i)},
                 Category::kUnknown, LifetimeClass::kTransient});
      if (wait) {
        EXPECT_TRUE(Eventually([&] {
          return rig_->StateOf(layers[i]) != HandleState::kHost;
        })) << i;
      }
      ExpectReads(layers[i], kHandle, i + 1);
      PopScope();
    }
    // Uses closer than kBurstOperators count as one.
    for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  };
  for (int i = 0; i < 20; ++i) Write(other, 512, 77);
  Pass(false);
  Evict();
  const std::uint64_t before = Counters().planned_handles;
  Pass(true);
  SetScopeListener(nullptr);
  EXPECT_GT(Counters().planned_handles, before);
  Free(other);
  FreeAll(layers);
}

TEST_F(EngineThreadsTest, TheBackgroundThreadRelievesPressure) {
  Rig::Options options;
  options.background = true;
  options.capacity = 32 * kMiB;
  Open(options);
  const auto layers = Layers(15);  // 30 of 32 MiB
  EXPECT_TRUE(Eventually([&] {
    return rig_->device().Stats().allocated_bytes.stats[0].current <=
           static_cast<std::int64_t>(32 * kMiB * 85 / 100);
  }));
  ExpectLayers(layers);
  FreeAll(layers);
}

}  // namespace
}  // namespace stratalloc
