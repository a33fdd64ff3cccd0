// SPDX-License-Identifier: Apache-2.0
#include "allocator/memory/handle_table.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "allocator/blocks/operator_thread.h"
#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

TEST(HandleTable, FourRegionsEvictableFirstSmallFirst) {
  auto device = Device::Open(DeviceIndex{0});
  ASSERT_TRUE(device.has_value()) << device.error().message;
  auto table = HandleTable::Create(*device, 64 * kMiB, 4 * kMiB);
  ASSERT_TRUE(table.has_value()) << table.error().message;
  const HandleRegion& first = table->region(true, PoolKind::kSmall);
  const HandleRegion& second = table->region(true, PoolKind::kLarge);
  const HandleRegion& third = table->region(false, PoolKind::kSmall);
  EXPECT_EQ(first.base, table->base());
  EXPECT_EQ(second.base, first.base + first.bytes);
  EXPECT_EQ(third.base, table->evictable_end());
  EXPECT_EQ(first.handle_bytes, 2 * kMiB);
  EXPECT_EQ(second.handle_bytes, 4 * kMiB);
  EXPECT_EQ(table->RegionOf(second.base + 5), &second);
  EXPECT_EQ(table->RegionOf(table->end()), nullptr);
  EXPECT_EQ(table->RegionOf(table->base() - 1), nullptr);
  const HandleRef handle{table->RegionOf(second.base),
                         second.IndexOf(second.base + 9 * kMiB)};
  EXPECT_EQ(handle.address(), second.base + 8 * kMiB);
  EXPECT_EQ(handle.entry().state.load(), HandleState::kUnmapped);
  table->Destroy(*device);
  EXPECT_EQ(cudasim_live_reservations(), 0);
}

TEST(HandleTable, EveryStateHasItsName) {
  std::set<std::string> names;
  for (int i = 0; i < kHandleStates; ++i) {
    names.insert(HandleStateName(static_cast<HandleState>(i)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kHandleStates));
}

TEST(StreamTable, GivesEachStreamABitUntilThereAreNone) {
  StreamTable table;
  EXPECT_EQ(table.BitOf(kDefaultStream), 0);
  for (int i = 1; i < StreamTable::kOverflowBit; ++i) {
    const StreamId stream{static_cast<std::uint64_t>(1000 + i)};
    EXPECT_EQ(table.BitOf(stream), i);
    EXPECT_EQ(table.BitOf(stream), i);
    EXPECT_EQ(table.StreamOf(i), stream);
  }
  EXPECT_EQ(table.BitOf(StreamId{5}), StreamTable::kOverflowBit);
  EXPECT_EQ(table.BitOf(kDefaultStream), 0);
}

TEST(StreamTable, ThreadsThatMeetANewStreamAgree) {
  StreamTable table;
  std::vector<std::vector<int>> bits(4);
  std::vector<std::thread> threads;
  for (auto& mine : bits) {
    threads.emplace_back([&] {
      for (std::uint64_t s = 1; s <= 60; ++s) {
        mine.push_back(table.BitOf(StreamId{s}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& mine : bits) EXPECT_EQ(mine, bits[0]);
  EXPECT_EQ(std::set<int>(bits[0].begin(), bits[0].end()).size(), 60u);
}

TEST(OperatorThread, PinsLastForTheirOperator) {
  HandleEntry a, b, c;
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  thread.Pin(a);
  thread.Enter();  // nested
  thread.Pin(b);
  thread.PinForOutermost(c);
  EXPECT_EQ(thread.depth(), 2);
  thread.Leave();
  EXPECT_EQ(a.pins.load(), 1u);
  EXPECT_EQ(b.pins.load(), 0u);
  EXPECT_EQ(c.pins.load(), 1u) << "allocated inside: until the outermost";
  thread.Leave();
  EXPECT_EQ(a.pins.load(), 0u);
  EXPECT_EQ(c.pins.load(), 0u);
  EXPECT_EQ(thread.depth(), 0);
}

TEST(OperatorThread, WhileItWaitsItPinsNothingAndForgetsNothing) {
  HandleEntry a, b;
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  thread.Pin(a);
  thread.PinForOutermost(b);
  a.used_streams.store(5);
  a.dirty.store(true);
  thread.Suspend();
  EXPECT_TRUE(thread.suspended.load());
  EXPECT_EQ(a.pins.load(), 0u);
  EXPECT_EQ(b.pins.load(), 0u);
  // An eviction takes what was noted, and a restore makes it clean.
  a.used_streams.store(0);
  a.dirty.store(false);
  thread.Resume();
  EXPECT_FALSE(thread.suspended.load());
  EXPECT_EQ(a.pins.load(), 1u);
  EXPECT_EQ(b.pins.load(), 1u);
  // Refused once more, before anything was noted again.
  thread.Suspend();
  EXPECT_EQ(a.pins.load(), 0u);
  thread.Resume();
  thread.NoteAgain();
  EXPECT_EQ(a.used_streams.load(), 5u);
  EXPECT_TRUE(a.dirty.load());
  EXPECT_EQ(b.used_streams.load(), 0u);
  EXPECT_FALSE(b.dirty.load());
  thread.Leave();
  EXPECT_EQ(a.pins.load(), 0u);
  EXPECT_EQ(b.pins.load(), 0u);
}

TEST(OperatorThread, WhatAFailedWaitNotedEndsWithTheOperator) {
  HandleEntry a, b;
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  thread.Pin(a);
  thread.Suspend();
  thread.Resume();
  thread.Leave();  // it was never noted again
  thread.Enter();
  thread.Pin(b);
  thread.Suspend();
  EXPECT_EQ(a.pins.load(), 0u);
  EXPECT_EQ(b.pins.load(), 0u);
  thread.Resume();
  EXPECT_EQ(b.pins.load(), 1u);
  thread.NoteAgain();
  thread.Leave();
}

TEST(OperatorThread, TheNewestPinsCanBeTakenBack) {
  HandleEntry a, b;
  OperatorThread& thread = OperatorThread::ThisThread();
  thread.Enter();
  thread.Pin(a);
  thread.Pin(b);
  thread.Pin(b);
  thread.DropPins(2);
  EXPECT_EQ(a.pins.load(), 1u);
  EXPECT_EQ(b.pins.load(), 0u);
  thread.Leave();
  EXPECT_EQ(a.pins.load(), 0u);
}

TEST(OperatorThread, OthersAreSeenToGetOn) {
  OperatorThread& mine = OperatorThread::ThisThread();
  mine.Enter();
  EXPECT_FALSE(LookAtOthers().inside) << "this thread does not count";
  const std::uint64_t before = LookAtOthers().progress;
  std::atomic<int> stage{0};
  const auto Next = [&](int to) {
    stage = to;
    stage.notify_all();
  };
  std::thread other([&] {
    OperatorThread& thread = OperatorThread::ThisThread();
    thread.Enter();
    thread.ticket = 7;
    Next(1);
    stage.wait(1);
    thread.Suspend();
    Next(3);
    stage.wait(3);
    thread.Resume();
    thread.Leave();
    EXPECT_EQ(thread.ticket, 0u) << "of one operator";
    Next(5);
    stage.wait(5);
  });
  while (stage != 1) std::this_thread::yield();
  EXPECT_TRUE(LookAtOthers().any);
  EXPECT_TRUE(LookAtOthers().inside);
  const std::uint64_t inside = LookAtOthers().progress;
  EXPECT_NE(inside, before);
  std::uint64_t seen_by_another = 0;
  std::thread([&] { seen_by_another = LookAtOthers().progress; }).join();
  EXPECT_EQ(seen_by_another, inside) << "nobody takes it for a change";
  Next(2);
  while (stage != 3) std::this_thread::yield();
  EXPECT_FALSE(LookAtOthers().inside) << "who waits is in nobody's way";
  EXPECT_EQ(LookAtOthers().progress, inside) << "waiting is no progress";
  Next(4);
  while (stage != 5) std::this_thread::yield();
  EXPECT_FALSE(LookAtOthers().inside);
  EXPECT_NE(LookAtOthers().progress, inside);
  Next(6);
  other.join();
  mine.Leave();
}

}  // namespace
}  // namespace stratalloc
