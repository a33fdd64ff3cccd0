// SPDX-License-Identifier: Apache-2.0
// History of one device: order of events, the ring's bound, trackers.
#include "allocator/history.h"

#include <algorithm>
#include <vector>

#include "allocator/device_allocator_fixture_test.h"

namespace stratalloc {
namespace {

std::vector<TraceEvent>* heard = nullptr;

class HistoryTest : public DeviceAllocatorTest {
 protected:
  void SetUp() override {
    DeviceAllocatorTest::SetUp();
    History::SetClock([]() -> std::int64_t { return 7; });
  }
  void TearDown() override {
    History::SetTracker(nullptr);
    allocator().NoteTracker();
    heard = nullptr;
    DeviceAllocatorTest::TearDown();
  }
  static std::vector<TraceAction> ActionsOf(
      const std::vector<TraceEvent>& events) {
    std::vector<TraceAction> actions;
    for (const TraceEvent& event : events) actions.push_back(event.action);
    return actions;
  }
};

TEST_F(HistoryTest, ATrackerHearsOfEveryEvent) {
  std::vector<TraceEvent> events;
  heard = &events;
  History::SetTracker([](const TraceEvent& event) { heard->push_back(event); });
  allocator().NoteTracker();
  const Address address = Malloc(1000);
  Free(address);
  EXPECT_EQ(
      ActionsOf(events),
      (std::vector{TraceAction::kSegmentMap, TraceAction::kAlloc,
                   TraceAction::kFreeRequested, TraceAction::kFreeCompleted}));
  EXPECT_EQ(events[1].address, address);
  EXPECT_EQ(events[1].bytes, 1000u);
  ASSERT_TRUE(allocator().EmptyCache().has_value());
  EXPECT_EQ(events.back().action, TraceAction::kSegmentUnmap);
  // A second block, with nobody listening.
  History::SetTracker(nullptr);
  allocator().NoteTracker();
  const std::size_t before = events.size();
  Free(Malloc(1000));
  EXPECT_EQ(events.size(), before);
}

}  // namespace
}  // namespace stratalloc
