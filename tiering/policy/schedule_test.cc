// SPDX-License-Identifier: Apache-2.0
#include "tiering/policy/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tiering/policy/range_maximum.h"

namespace stratalloc {
namespace {

constexpr Bytes kPage = 2 * kMiB;

// Pages that do not adjoin each other.
Address Apart(std::size_t number) { return (number + 1) * 4 * kPage; }
Address Adjacent(std::size_t number) { return (number + 1) * kPage; }

std::vector<CycleUse> Forward(std::size_t pages,
                              Address (*address)(std::size_t) = Apart) {
  std::vector<CycleUse> cycle;
  for (std::size_t i = 0; i < pages; ++i) {
    cycle.push_back({.page = address(i), .bytes = kPage});
  }
  return cycle;
}

std::vector<std::size_t> Marked(const Schedule& schedule) {
  std::vector<std::size_t> marked;
  for (std::size_t i = 0; i < schedule.leaves.size(); ++i) {
    if (schedule.leaves[i] != 0) marked.push_back(i);
  }
  return marked;
}

// The most bytes on the device at any use, when marked pages leave at once and
// come back at their next use.
Bytes Peak(const std::vector<CycleUse>& cycle,
           const std::vector<std::uint8_t>& leaves) {
  const std::size_t n = cycle.size();
  std::vector<Bytes> live(n, 0);
  for (std::size_t i = 0; i < n; ++i) {
    if (cycle[i].freed) continue;
    std::size_t next = i + 1;
    while (cycle[next % n].page != cycle[i].page) ++next;
    live[i] += cycle[i].bytes;
    for (std::size_t at = i + 1; at < next && leaves[i] == 0; ++at) {
      live[at % n] += cycle[i].bytes;
    }
  }
  return *std::max_element(live.begin(), live.end());
}

TEST(Schedule, CycleThatFitsKeepsEverything) {
  EXPECT_TRUE(
      Marked(MakeSchedule(Forward(8), {.capacity = 8 * kPage})).empty());
  EXPECT_TRUE(MakeSchedule({}, {}).leaves.empty());
}

// The last pages of a cycle that fits whole would return in each cycle.
TEST(Schedule, CycleThatFitsIntoTheWindowToo) {
  const ScheduleLimits limits{.capacity = 10 * kPage, .window = 4 * kPage};
  EXPECT_TRUE(Marked(MakeSchedule(Forward(10), limits)).empty());
  EXPECT_GE(Marked(MakeSchedule(Forward(11), limits)).size(), 5u);
}

TEST(Schedule, ForwardLeavesTheLeastPagesSpread) {
  const auto cycle = Forward(64);
  const Schedule schedule =
      MakeSchedule(cycle, {.capacity = 52 * kPage, .window = 4 * kPage});
  const auto marked = Marked(schedule);
  ASSERT_EQ(marked.size(), 16u + 1) << "a page is on the device at its own use";
  for (std::size_t i = 1; i < 16; ++i) {
    EXPECT_LE(marked[i] - marked[i - 1], 4u);
  }
  EXPECT_LE(marked.front() + 64 - marked.back(), 4u) << "over the end as well";
  EXPECT_EQ(schedule.bytes_in, 17 * kPage);
  EXPECT_EQ(schedule.bytes_out, 0u);
  EXPECT_EQ(schedule.shortfall, 0u);
}

TEST(Schedule, LongestGapsLeaveFirst) {
  // Forward and backward: the first pages have the longest gap within, the
  // last ones the longest gap over the end.
  auto cycle = Forward(16);
  auto backward = cycle;
  std::reverse(backward.begin(), backward.end());
  cycle.insert(cycle.end(), backward.begin(), backward.end());
  const Schedule schedule = MakeSchedule(cycle, {.capacity = 13 * kPage});
  for (std::size_t i : Marked(schedule)) {
    EXPECT_TRUE(i < 6 || (i >= 16 && i < 22)) << i;
  }
  EXPECT_LE(Peak(cycle, schedule.leaves), 13 * kPage);
}

TEST(Schedule, DeadPageLeavesFirst) {
  auto cycle = Forward(8);
  cycle.insert(cycle.begin(),
               {.page = Apart(100), .bytes = kPage, .written = true});
  cycle.push_back({.page = Apart(100), .bytes = kPage, .freed = true});
  const Schedule schedule = MakeSchedule(cycle, {.capacity = 8 * kPage});
  EXPECT_EQ(Marked(schedule), (std::vector<std::size_t>{0, 1}))
      << "and a page that makes room for its creation";
  EXPECT_EQ(schedule.bytes_in, kPage);
  EXPECT_EQ(schedule.bytes_out, kPage);
}

TEST(Schedule, FreePageTakesNoRoom) {
  // Ten pages, of which at most six live at a time.
  std::vector<CycleUse> cycle;
  for (std::size_t i = 0; i < 10; ++i) {
    cycle.push_back({.page = Apart(i), .bytes = kPage, .written = true});
    if (i >= 5) {
      cycle.push_back({.page = Apart(i - 5), .bytes = kPage, .freed = true});
    }
  }
  for (std::size_t i = 5; i < 10; ++i) {
    cycle.push_back({.page = Apart(i), .bytes = kPage, .freed = true});
  }
  EXPECT_TRUE(Marked(MakeSchedule(cycle, {.capacity = 6 * kPage})).empty());
  EXPECT_FALSE(Marked(MakeSchedule(cycle, {.capacity = 5 * kPage})).empty());
}

TEST(Schedule, AdjacentPagesLeaveAsOneUnit) {
  const auto cycle = Forward(64, Adjacent);
  const auto marked = Marked(MakeSchedule(
      cycle, {.capacity = 32 * kPage, .window = 2 * kPage, .unit = 4 * kPage}));
  ASSERT_GE(marked.size(), 34u);
  std::size_t runs = 0;
  for (std::size_t i = 0; i < marked.size(); ++i) {
    runs += i == 0 || marked[i] != marked[i - 1] + 1;
  }
  EXPECT_LE(runs, 9u) << "about 35 pages, by four";
  const auto single = Marked(MakeSchedule(
      cycle, {.capacity = 62 * kPage, .window = 0, .unit = 8 * kPage}));
  EXPECT_EQ(single.size(), 3u) << "what a unit has too much is dropped";
}

TEST(Schedule, LargePagesCountByTheirBytes) {
  auto cycle = Forward(8);
  for (std::size_t i = 0; i < 4; ++i) cycle[2 * i].bytes = 8 * kPage;
  const Bytes all = 36 * kPage;
  const Schedule schedule = MakeSchedule(cycle, {.capacity = all - kPage});
  EXPECT_LE(Peak(cycle, schedule.leaves), all - kPage);
  EXPECT_LE(schedule.bytes_in, 2 * kPage);
}

TEST(Schedule, WrittenPageIsCopiedOut) {
  auto cycle = Forward(4);
  for (CycleUse& use : cycle) use.written = true;
  const Schedule schedule = MakeSchedule(cycle, {.capacity = 2 * kPage});
  EXPECT_GT(schedule.bytes_in, 0u);
  EXPECT_EQ(schedule.bytes_out, schedule.bytes_in);
}

TEST(Schedule, WriteIsRememberedUpToTheLeave) {
  // The first page is written, then read, and then has the longest gap.
  std::vector<CycleUse> cycle = {
      {.page = Apart(50), .bytes = kPage, .written = true},
      {.page = Apart(51), .bytes = kPage},
      {.page = Apart(50), .bytes = kPage},
  };
  for (int turn = 0; turn < 2; ++turn) {
    const auto forward = Forward(4);
    cycle.insert(cycle.end(), forward.begin(), forward.end());
  }
  const Schedule schedule = MakeSchedule(cycle, {.capacity = 4 * kPage});
  EXPECT_EQ(schedule.leaves[0], 0);
  EXPECT_EQ(schedule.leaves[2], 1);
  EXPECT_EQ(schedule.bytes_out, kPage);
}

TEST(Schedule, CycleThatCannotFitSaysWhatIsMissing) {
  const auto cycle = Forward(8);
  EXPECT_GT(MakeSchedule(cycle, {.capacity = 0}).shortfall, 0u);
  EXPECT_EQ(MakeSchedule(cycle, {.capacity = 0}).bytes_in, 8 * kPage);
}

std::vector<CycleUse> RandomCycle(std::mt19937& random) {
  std::vector<CycleUse> cycle;
  const std::size_t pages = 4 + random() % 12, uses = 20 + random() % 60;
  std::vector<bool> live(pages, false);
  for (std::size_t i = 0; i < uses; ++i) {
    const std::size_t page = random() % pages;
    if (!cycle.empty() && cycle.back().page == Apart(page)) continue;
    // Pages of even numbers are created and freed.
    const bool freed = page % 2 == 0 && live[page] && random() % 3 == 0;
    live[page] = !freed;
    cycle.push_back({.page = Apart(page),
                     .bytes = (1 + page % 3) * kPage,
                     .written = random() % 2 == 0,
                     .freed = freed});
  }
  return cycle;
}

TEST(Schedule, RandomCyclesFitWithoutASuperfluousMark) {
  std::mt19937 random(3);
  int scheduled = 0;
  for (int round = 0; round < 300; ++round) {
    const auto cycle = RandomCycle(random);
    const Bytes capacity = (4 + random() % 20) * kPage;
    const Schedule schedule =
        MakeSchedule(cycle, {.capacity = capacity, .unit = kPage});
    const Bytes peak = Peak(cycle, schedule.leaves);
    ASSERT_EQ(peak, schedule.shortfall == 0 ? std::min(capacity, peak)
                                            : capacity + schedule.shortfall);
    for (std::size_t i : Marked(schedule)) {
      ASSERT_FALSE(cycle[i].freed);
      if (schedule.shortfall != 0) continue;
      auto fewer = schedule.leaves;
      fewer[i] = 0;
      ASSERT_GT(Peak(cycle, fewer), capacity) << "superfluous";
      ++scheduled;
    }
  }
  EXPECT_GT(scheduled, 300);
}

TEST(RangeMaximum, RandomRangesAgreeWithAnArray) {
  std::mt19937 random(5);
  for (std::size_t size : {1, 2, 3, 7, 64, 100}) {
    std::vector<std::int64_t> values(size);
    for (auto& value : values) value = random() % 1000;
    RangeMaximum tree(values);
    for (int round = 0; round < 2000; ++round) {
      const std::size_t begin = random() % size;
      const std::size_t end = begin + random() % (size - begin + 1);
      if (round % 2 == 0) {
        const std::int64_t number = static_cast<int>(random() % 100) - 50;
        tree.Add(begin, end, number);
        for (std::size_t i = begin; i < end; ++i) values[i] += number;
      } else if (begin < end) {
        ASSERT_EQ(
            tree.Maximum(begin, end),
            *std::max_element(values.begin() + begin, values.begin() + end));
      }
      ASSERT_EQ(tree.Maximum(),
                *std::max_element(values.begin(), values.end()));
    }
    EXPECT_EQ(tree.Maximum(0, 0), RangeMaximum::kLowest);
  }
}

// Layers whose page is read, while a temporary of each is made and freed two
// layers later.
std::vector<CycleUse> WithTemporaries(std::size_t layers) {
  std::vector<CycleUse> cycle;
  for (std::size_t i = 0; i < layers; ++i) {
    cycle.push_back({.page = Apart(i), .bytes = kPage});
    cycle.push_back({.page = Apart(100 + i), .bytes = kPage, .written = true});
    if (i >= 2) {
      cycle.push_back({.page = Apart(98 + i), .bytes = kPage, .freed = true});
    }
  }
  for (std::size_t i = layers - 2; i < layers; ++i) {
    cycle.push_back({.page = Apart(100 + i), .bytes = kPage, .freed = true});
  }
  return cycle;
}

TEST(Schedule, TemporariesThatAreFreedSoonStay) {
  const auto cycle = WithTemporaries(40);
  const Schedule schedule =
      MakeSchedule(cycle, {.capacity = 30 * kPage, .window = 8 * kPage});
  EXPECT_EQ(schedule.shortfall, 0u);
  EXPECT_EQ(schedule.bytes_out, 0u) << "pages of the layers are clean";
}

// Temporaries that outlive a third of the cycle: keeping them costs each page
// of the layers a copy in, and having them leave costs more copies out.
TEST(Schedule, GapsUpToAFreeAreTakenWhereTheBusIsLessBusy) {
  std::vector<CycleUse> cycle;
  const std::size_t layers = 60;
  for (std::size_t i = 0; i < layers; ++i) {
    cycle.push_back({.page = Apart(i), .bytes = kPage, .written = true});
    cycle.push_back({.page = Apart(100 + i), .bytes = kPage, .written = true});
    if (i >= 20) {
      cycle.push_back({.page = Apart(80 + i), .bytes = kPage, .freed = true});
    }
  }
  for (std::size_t i = layers - 20; i < layers; ++i) {
    cycle.push_back({.page = Apart(100 + i), .bytes = kPage, .freed = true});
  }
  const Schedule schedule =
      MakeSchedule(cycle, {.capacity = 70 * kPage, .window = 4 * kPage});
  EXPECT_EQ(schedule.shortfall, 0u);
  // 60 pages of layers and 20 temporaries, of which 66 may be there: 15 layers
  // less cost 15 copies each way.
  EXPECT_LE(std::max(schedule.bytes_in, schedule.bytes_out), 18 * kPage);
}

}  // namespace
}  // namespace stratalloc
