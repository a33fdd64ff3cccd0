// SPDX-License-Identifier: Apache-2.0
// When handles that were copied in may be used by everybody.
#include "allocator/blocks/arrivals.h"

#include <gtest/gtest.h>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr auto kOutstanding = static_cast<std::uint32_t>(SlowReason::kArrivals);

class ArrivalsTest : public DevicePartsTest {
 protected:
  // A block of one handle that was away and is on its way back, behind an event
  // of `stream`, which has work.
  void SetUp() override {
    DevicePartsTest::SetUp();
    stream_ = NewStream();
    block_ = Malloc(kLarge, kHandle);
    HandleRegion* const region = block_->segment->region;
    handle_ = {region, region->IndexOf(block_->address)};
    Residency& residency = parts().residency;
    ASSERT_TRUE(residency.Mark(residency.Choose(handle_).value()));
    std::vector<Departure> leaving = {{.handle = handle_}};
    ASSERT_TRUE(residency.BeginEvict(&leaving[0], ~std::uint64_t{0}));
    residency.CommitEvict(&leaving, MoveEvents(DeviceIndex{0}, parts().moves));
    PhysicalMemory* memory =
        parts()
            .pages.Take(kHandle, kCard, [](std::uint64_t) { return true; })
            .value();
    ASSERT_TRUE(
        residency.BeginRestore({&handle_, 1}, {&memory, 1}).has_value());
    cudasim_hold_streams(1);
    Work(stream_);
    const EventId event = parts().device.CreateEvent().value();
    ASSERT_TRUE(parts().device.RecordEvent(event, stream_).has_value());
    residency.CommitRestore({handle_}, event);
    parts().arrivals.Publish();
  }
  void TearDown() override {
    Finish();
    parts().arrivals.Settle();
    Free(block_);
    DevicePartsTest::TearDown();
  }
  void Finish() {
    cudasim_hold_streams(0);
    ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  }
  HandleState State() { return handle_.entry().state.load(); }
  bool Outstanding() { return (parts().slow.word() & kOutstanding) != 0; }

  StreamId stream_{};
  Block* block_ = nullptr;
  HandleRef handle_;
};

TEST_F(ArrivalsTest, OverOnceTheirCopiesAre) {
  EXPECT_TRUE(Outstanding());
  parts().arrivals.Settle();
  EXPECT_EQ(State(), HandleState::kCopyingIn) << "its stream has work";
  EXPECT_TRUE(Outstanding());
  Finish();
  parts().arrivals.Settle();
  EXPECT_EQ(State(), HandleState::kResident);
  EXPECT_FALSE(Outstanding());
}

TEST_F(ArrivalsTest, NobodyLooksWhileAStreamCaptures) {
  Finish();
  ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  ASSERT_TRUE(parts().captures.Note(stream_));
  parts().arrivals.Settle();
  EXPECT_EQ(State(), HandleState::kCopyingIn);
  EXPECT_TRUE(Outstanding());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace stratalloc
