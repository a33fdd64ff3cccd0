// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/collect.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace stratalloc {
namespace {

Event At(std::uint64_t ticks, EventKind kind, std::uint64_t aux = 0) {
  Event event;
  event.ticks = ticks;
  event.kind = kind;
  event.aux = aux;
  return event;
}

Event Thread(std::uint64_t number, std::uint64_t before) {
  Event event = At(0, EventKind::kThread);
  event.address = number;
  event.bytes = before;
  return event;
}

TEST(Collect, MergesByTime) {
  const Collected found =
      Collect({{7, {At(10, EventKind::kMark), At(30, EventKind::kMark)}},
               {8, {At(20, EventKind::kMark)}}},
              {10, 2.0});
  ASSERT_EQ(found.events.size(), 3u);
  EXPECT_EQ(found.events[0].time, 0);
  EXPECT_EQ(found.events[1].time, 20);
  EXPECT_EQ(found.events[2].time, 40);
  EXPECT_EQ(found.threads, (std::vector<std::uint64_t>{7, 8}));
  EXPECT_EQ(found.events[1].thread, 1);
}

// Two cores' clocks differ; the lock's order does not.
TEST(Collect, ADevicesEventsAreInItsOrder) {
  const Collected found =
      Collect({{1, {At(105, EventKind::kAlloc, OrderAndPool(1, 3))}},
               {2,
                {At(100, EventKind::kFreeRequested, OrderAndPool(2, 4)),
                 At(103, EventKind::kMark)}}},
              {0, 1.0});
  ASSERT_EQ(found.events.size(), 3u);
  EXPECT_EQ(found.events[1].kind, static_cast<int>(EventKind::kAlloc));
  EXPECT_EQ(found.events[1].pool, 3);
  EXPECT_EQ(found.events[2].kind, static_cast<int>(EventKind::kFreeRequested));
  EXPECT_EQ(found.events[2].time, 105) << "no earlier than the one before it";
  EXPECT_EQ(found.events[2].pool, 4);
}

TEST(Collect, SaysFromWhenOnNoEventIsMissing) {
  RingEvents whole{1, {At(5, EventKind::kMark)}};
  whole.NoteLost(0, 0);
  RingEvents some{2, {At(40, EventKind::kMark)}}, more = some;
  some.NoteLost(3, 0);
  more.events[0].ticks = 60;
  more.NoteLost(1, 0);
  const EventClock clock{10, 2.0};
  EXPECT_EQ(Collect({whole}, clock).complete_from, 0);
  EXPECT_EQ(Collect({whole, some}, clock).complete_from, 60);
  EXPECT_EQ(Collect({some, more, whole}, clock).complete_from, 100);
  RingEvents none{3, {}};
  none.NoteLost(1, 0);
  RingEvents gap{4, {At(20, EventKind::kMark), At(70, EventKind::kMark)}};
  gap.NoteLost(9, 1);
  EXPECT_EQ(Collect({gap, some}, clock).complete_from, 120);
  gap.events.clear();
  gap.NoteLost(9, 0);
  EXPECT_EQ(Collect({gap, some}, clock).complete_from, kNeverComplete);
  EXPECT_EQ(Collect({none, some}, clock).complete_from, kNeverComplete);
  EXPECT_EQ(Collect({some, none}, clock).complete_from, kNeverComplete);
}

TEST(Collect, NothingIsBeforeTheBeginning) {
  const Collected found = Collect(
      {{1, {At(7, EventKind::kMark), At(12, EventKind::kMark)}}}, {10, 1.0});
  ASSERT_EQ(found.events.size(), 2u);
  EXPECT_EQ(found.events[0].time, 0);
  EXPECT_EQ(found.events[1].time, 2);
}

// The ring's head knows the last one alone.
TEST(Collect, ARingThatChangedHandsSaysWho) {
  const Collected found = Collect(
      {{5, {At(1, EventKind::kMark), Thread(5, 9), At(2, EventKind::kMark)}}},
      {0, 1.0});
  ASSERT_EQ(found.events.size(), 2u);
  EXPECT_EQ(found.threads[found.events[0].thread], 9u);
  EXPECT_EQ(found.threads[found.events[1].thread], 5u);
}

TEST(Collect, ABlocksAuxIsItsSize) {
  Event small = At(1, EventKind::kAlloc, OrderAndPool(1, 1));
  small.bytes = 600;
  SetSize(small, 1024);
  Event unsplit = small, huge = small;
  unsplit.aux = OrderAndPool(2, 1);
  SetSize(unsplit, 4096);
  huge.aux = OrderAndPool(3, 1);
  SetSize(huge, std::uint64_t{1} << 40);
  const Collected found = Collect({{1, {small, unsplit, huge}}}, {0, 1.0});
  EXPECT_EQ(found.events[0].aux, 1024u);
  EXPECT_EQ(found.events[1].aux, 4096u);
  EXPECT_EQ(found.events[2].aux, 0u) << "not known";
}

TEST(Collect, DurationsAreNanoseconds) {
  const Collected found =
      Collect({{1, {At(4, EventKind::kStall, 100)}}}, {0, 0.5});
  EXPECT_EQ(found.events[0].aux, 50u);
}

TEST(Collect, WhatNobodyKnowsIsLeftOutAndCounted) {
  Event device = At(1, EventKind::kAlloc);
  device.device = 200;
  const Collected found =
      Collect({{1, {At(1, static_cast<EventKind>(99)), device}}}, {0, 1.0});
  EXPECT_EQ(found.events.size(), 0u);
  EXPECT_EQ(found.unknown, 2u);
}

}  // namespace
}  // namespace stratalloc
