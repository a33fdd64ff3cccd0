// SPDX-License-Identifier: Apache-2.0
#include "telemetry/recording/frame_ends.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "allocator/base/ids.h"
#include "telemetry/recording/collect.h"

namespace stratalloc {
namespace {

constexpr std::uint64_t kBlock = 0x10000, kOther = 0x20000;

// The events of one thread, in its ring; orders are those of all devices.
class Thread {
 public:
  Thread(std::uint64_t number, std::uint64_t& clock) : clock_(clock) {
    ring_.thread = number;
  }

  Thread& Enter() { return Add(EventKind::kScopeEnter); }
  Thread& Leave() { return Add(EventKind::kScopeLeave); }
  Thread& Alloc(std::uint64_t address, bool in_frame = true,
                std::uint8_t device = 0) {
    Event& event = Ordered(EventKind::kAlloc, address, device);
    event.bytes = 1000;
    event.scope = 5;
    SetSize(event, 1024);
    event.category = Raw(Category::kTemporary);
    if (in_frame) event.flags = kEventInFrame;
    return *this;
  }
  Thread& Free(std::uint64_t address) {
    Ordered(EventKind::kFreeRequested, address, 0);
    Ordered(EventKind::kFreeCompleted, address, 0);
    return *this;
  }
  Thread& Relabel(std::uint64_t address) {
    Ordered(EventKind::kRelabel, address, 0).category = Raw(Category::kInput);
    return *this;
  }
  Thread& EndFrame(std::uint32_t account = 7, std::uint8_t device = 0) {
    Ordered(EventKind::kFrameEnd, account, device);
    return *this;
  }
  // The ring is another thread's from here on.
  Thread& TakenBy(std::uint64_t number) {
    Event& event = Add(EventKind::kThread).ring_.events.back();
    event.address = number;
    event.bytes = std::exchange(ring_.thread, number);
    return *this;
  }

  const RingEvents& ring() const { return ring_; }

 private:
  Thread& Add(EventKind kind) {
    Event event;
    event.ticks = ++clock_;
    event.kind = kind;
    ring_.events.push_back(event);
    return *this;
  }
  Event& Ordered(EventKind kind, std::uint64_t address, std::uint8_t device) {
    Event& event = Add(kind).ring_.events.back();
    event.aux = OrderAndPool(clock_, 3);
    event.address = address;
    event.device = device;
    return event;
  }

  std::uint64_t& clock_;
  RingEvents ring_;
};

class FrameEnds : public ::testing::Test {
 protected:
  // (time, address) of the re-labels that make an activation.
  using Ends = std::vector<std::pair<std::int64_t, std::uint64_t>>;
  Ends Activations(const std::vector<RingEvents>& rings,
                   const std::vector<TemporaryBlock>& start = {}) {
    Ends ends;
    for (const FileEvent& event : Collect(rings, {0, 1.0}, start).events) {
      EXPECT_NE(event.kind, static_cast<int>(EventKind::kFrameEnd));
      EXPECT_EQ(event.flags & kEventInFrame, 0);
      if (event.kind == static_cast<int>(EventKind::kRelabel) &&
          event.category == Raw(Category::kActivation)) {
        ends.emplace_back(event.time, event.address);
      }
    }
    return ends;
  }

  std::uint64_t clock_ = 0;
  Thread main_{1, clock_};
};

TEST_F(FrameEnds, RelabelsWhatOutlivesTheFrame) {
  main_.Enter().Alloc(kBlock).Alloc(kOther).Free(kOther).EndFrame().Leave();
  const std::vector<FileEvent> events =
      Collect({main_.ring()}, {0, 1.0}).events;
  const auto end =
      std::find_if(events.begin(), events.end(), [](const FileEvent& event) {
        return event.kind == static_cast<int>(EventKind::kRelabel);
      });
  ASSERT_NE(end, events.end());
  FileEvent expected;
  expected.time = 6;
  expected.address = kBlock;
  expected.bytes = 1000;
  expected.aux = 1024;
  expected.scope = 5;
  expected.pool = 3;
  expected.kind = static_cast<std::uint8_t>(EventKind::kRelabel);
  expected.category = Raw(Category::kActivation);
  EXPECT_EQ(*end, expected);
  EXPECT_EQ(Activations({main_.ring()}), (Ends{{6, kBlock}}));
}

TEST_F(FrameEnds, KeepsBlocksOfOuterFrames) {
  main_.Enter().Alloc(kBlock).Enter().Alloc(kOther).EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), (Ends{{5, kOther}}));
  main_.EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), (Ends{{5, kOther}, {7, kBlock}}));
}

TEST_F(FrameEnds, KeepsTemporariesWithoutAFrame) {
  main_.Enter().Alloc(kBlock, false).EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), Ends{});
}

TEST_F(FrameEnds, KeepsWhatWasRelabelled) {
  main_.Enter().Alloc(kBlock).Relabel(kBlock).EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), Ends{});
}

TEST_F(FrameEnds, KeepsWhatFollowsAtTheAddress) {
  main_.Enter().Alloc(kBlock).Free(kBlock).Alloc(kBlock, false).EndFrame();
  EXPECT_EQ(Activations({main_.ring()}), Ends{});
}

TEST_F(FrameEnds, KeepsBlocksOfOtherThreadsAndDevices) {
  Thread worker(2, clock_);
  main_.Enter().Alloc(kBlock, true, 1);
  worker.Enter().Alloc(kOther);
  main_.EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring(), worker.ring()}), Ends{});
  worker.EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring(), worker.ring()}), (Ends{{7, kOther}}));
}

TEST_F(FrameEnds, FollowsFreesOfOtherThreads) {
  Thread worker(2, clock_);
  main_.Enter().Alloc(kBlock);
  worker.Free(kBlock);
  main_.EndFrame().Leave();
  EXPECT_EQ(Activations({worker.ring(), main_.ring()}), Ends{});
}

// The ring or the recording begins inside of two frames.
TEST_F(FrameEnds, FindsFramesThatWereEnteredBefore) {
  main_.Alloc(kBlock).EndFrame().Leave().Alloc(kOther);
  EXPECT_EQ(Activations({main_.ring()}), (Ends{{2, kBlock}}));
  main_.EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), (Ends{{2, kBlock}, {5, kOther}}));
}

TEST_F(FrameEnds, FindsBlocksOfTheStartByTheirFrame) {
  const std::vector<TemporaryBlock> start = {{0, kBlock, 1024, 1000, 5, 7},
                                             {0, kOther, 1024, 1000, 5, 8}};
  main_.EndFrame(7).Leave();
  EXPECT_EQ(Activations({main_.ring()}, start), (Ends{{1, kBlock}}));
  main_.Free(kOther).EndFrame(8).Leave();
  EXPECT_EQ(Activations({main_.ring()}, start), (Ends{{1, kBlock}}));
}

TEST_F(FrameEnds, KeepsAThreadsFramesApartFromTheNextOnes) {
  main_.Enter().Alloc(kBlock).TakenBy(2).EndFrame().Leave();
  EXPECT_EQ(Activations({main_.ring()}), Ends{});
}

// A thread gives its ring back at its end, and may need another one after it.
TEST_F(FrameEnds, FollowsAThreadIntoAnotherRing) {
  Thread earlier(3, clock_);
  main_.Enter().Alloc(kBlock);
  earlier.TakenBy(1).EndFrame().Leave();
  EXPECT_EQ(Activations({earlier.ring(), main_.ring()}), (Ends{{4, kBlock}}));
}

}  // namespace
}  // namespace stratalloc
