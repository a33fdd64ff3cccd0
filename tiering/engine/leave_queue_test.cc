// SPDX-License-Identifier: Apache-2.0
// LeaveQueue: which choices are ready, in which order, and which are dropped.
#include "tiering/engine/leave_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tiering/engine/leave_fixture_test.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr PoolId kGraph{1, 0};

class LeaveQueueTest : public LeaveFixture {
 protected:
  void SetUp() override {
    Open(/*capacity=*/32 * kMiB, /*host_budget=*/32 * kMiB);
    queue_.emplace(*allocator_, all_);
  }
  void TearDown() override {
    taken_.clear();
    queue_.reset();
    LeaveFixture::TearDown();
  }
  Bytes Choose(const std::vector<HandleRef>& pages,
               Below below = Below::kEither) {
    return queue_->Choose(pages, below, tally_, &why_);
  }
  std::vector<HandleRef> TakeReady(std::size_t most = 32) {
    std::vector<HandleRef> pages;
    taken_ = queue_->TakeReady(most, &failed_);
    for (const Leave& leave : taken_) pages.push_back(leave.claim.handle);
    return pages;
  }
  // A stream that has not run what it has to do with the page.
  StreamId HoldOn(HandleRef page) {
    const StreamId stream = NewStream();
    cudasim_hold_streams(1);
    Note(stream, page);
    EnqueueOn(stream, page);
    return stream;
  }
  void Finish(StreamId stream) {
    cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(Raw(stream)));
  }

  std::shared_ptr<LeaveTally> tally_ = std::make_shared<LeaveTally>();
  std::optional<LeaveQueue> queue_;
  Status why_;
  std::vector<Leave> taken_;
  Status failed_;
};

TEST_F(LeaveQueueTest, TakeReadyKeepsOrderAndBound) {
  const auto pages = Pages(5);
  EXPECT_EQ(Choose({pages[4], pages[2]}), 2 * kPage);
  EXPECT_EQ(Choose({pages[3], pages[0], pages[1]}), 3 * kPage);
  EXPECT_EQ(queue_->bytes(), 5 * kPage);
  EXPECT_TRUE(queue_->SomeReady());
  EXPECT_THAT(TakeReady(3), ElementsAre(pages[4], pages[2], pages[3]));
  EXPECT_THAT(TakeReady(3), ElementsAre(pages[0], pages[1]));
  EXPECT_TRUE(queue_->empty());
  EXPECT_FALSE(queue_->SomeReady());
}

// A device with a batch that begins must not look idle to a refused thread.
TEST_F(LeaveQueueTest, TakenPagesCountUntilTheyEnded) {
  const auto pages = Pages(3);
  Choose(pages);
  EXPECT_EQ(TakeReady(2).size(), 2);
  EXPECT_EQ(queue_->bytes(), 3 * kPage);
  queue_->Ended(2 * kPage);
  EXPECT_EQ(queue_->bytes(), kPage);
}

TEST_F(LeaveQueueTest, BytesAreCountedWhileFencesAreAsked) {
  const auto pages = Pages(8);
  Choose(pages);
  std::atomic<bool> stop{false};
  std::atomic<int> idle{0};
  std::thread asks([&] {
    while (!stop.load()) idle += queue_->bytes() == 0;
  });
  for (int i = 0; i < 20'000; ++i) EXPECT_TRUE(TakeReady(0).empty());
  stop.store(true);
  asks.join();
  EXPECT_EQ(idle.load(), 0);
}

TEST_F(LeaveQueueTest, BatchHasOneTierBelow) {
  const auto pages = Pages(4);
  Choose({pages[0]}, Below::kHost);
  Choose({pages[1]}, Below::kEither);
  Choose({pages[2]}, Below::kHost);
  Choose({pages[3]}, Below::kDisk);
  EXPECT_THAT(TakeReady(), ElementsAre(pages[0], pages[2]));
  EXPECT_THAT(TakeReady(), ElementsAre(pages[1]));
  EXPECT_THAT(TakeReady(), ElementsAre(pages[3]));
}

TEST_F(LeaveQueueTest, PageOfAHeldStreamIsSkipped) {
  const auto pages = Pages(3);
  const StreamId held = HoldOn(pages[1]);
  Choose(pages);
  EXPECT_THAT(TakeReady(), ElementsAre(pages[0], pages[2]));
  EXPECT_FALSE(queue_->SomeReady());
  EXPECT_FALSE(queue_->empty());
  EXPECT_THAT(TakeReady(), IsEmpty());
  Finish(held);
  EXPECT_TRUE(queue_->SomeReady());
  EXPECT_THAT(TakeReady(), ElementsAre(pages[1]));
  EXPECT_TRUE(failed_.has_value());
}

TEST_F(LeaveQueueTest, AwaitSomeWaitsForTheOnlyChoice) {
  const auto pages = Pages(1);
  HoldOn(pages[0]);
  Choose(pages);
  EXPECT_FALSE(queue_->SomeReady());
  EXPECT_TRUE(queue_->AwaitSome().has_value());
  EXPECT_THAT(TakeReady(), ElementsAre(pages[0]));
  EXPECT_TRUE(queue_->AwaitSome().has_value()) << "there is none";
}

TEST_F(LeaveQueueTest, AwaitSomeReturnsForALaterChoiceBesideAHeldStream) {
  const auto pages = Pages(2);
  const StreamId held = HoldOn(pages[0]);
  Choose(pages);
  EXPECT_TRUE(queue_->AwaitSome().has_value());
  EXPECT_THAT(TakeReady(), ElementsAre(pages[1]));
  Finish(held);
  EXPECT_THAT(TakeReady(), ElementsAre(pages[0]));
}

TEST_F(LeaveQueueTest, PageChosenTwiceIsThereByItsLatestChoice) {
  const auto pages = Pages(2);
  Choose(pages);
  HoldOn(pages[0]);  // a use after the first choice, still running
  EXPECT_EQ(Choose({pages[0]}, Below::kHost), kPage);
  EXPECT_EQ(queue_->bytes(), 2 * kPage) << "once";
  EXPECT_THAT(TakeReady(), ElementsAre(pages[1]))
      << "the older fence knows nothing of the use";
  ASSERT_TRUE(queue_->AwaitSome().has_value());
  ASSERT_THAT(TakeReady(), ElementsAre(pages[0]));
  EXPECT_EQ(taken_[0].below, Below::kHost);
}

TEST_F(LeaveQueueTest, OlderChoiceIsNotMarked) {
  const auto pages = Pages(1);
  Choose(pages);
  TakeReady();
  const std::vector<Leave> older = taken_;
  ASSERT_EQ(older.size(), 1u);
  const StreamId held = HoldOn(pages[0]);
  Choose(pages);
  EXPECT_THAT(allocator_->MarkLeaving({&older[0].claim, 1}), IsEmpty());
  EXPECT_THAT(TakeReady(), IsEmpty());
  Finish(held);
  ASSERT_THAT(TakeReady(), ElementsAre(pages[0]));
  const auto marked = allocator_->MarkLeaving({&taken_[0].claim, 1});
  ASSERT_EQ(marked.size(), 1u);
  auto back = marked;
  allocator_->BeginEvict(&back, 0, {}, /*may_leave=*/false);
}

TEST_F(LeaveQueueTest, PinnedPageIsNotChosen) {
  const auto pages = Pages(2);
  pages[0].use().pins.fetch_add(1);
  EXPECT_EQ(Choose(pages), kPage);
  EXPECT_THAT(TakeReady(), ElementsAre(pages[1]));
  pages[0].use().pins.fetch_sub(1);
}

TEST_F(LeaveQueueTest, ClearGivesTheTallyBack) {
  Choose(Pages(3));
  EXPECT_EQ(tally_.use_count(), 4);
  queue_->Clear();
  EXPECT_TRUE(queue_->empty());
  EXPECT_EQ(tally_.use_count(), 1);
}

TEST_F(LeaveQueueTest, QueryThatFailsDropsItsChoicesWithTheReason) {
  const auto pages = Pages(2);
  Choose(pages);
  ASSERT_EQ(cudasim_fail("cudaEventQuery", 1, cudaErrorUnknown, 0), 0);
  EXPECT_THAT(TakeReady(), IsEmpty());
  ASSERT_FALSE(failed_.has_value());
  EXPECT_NE(failed_.error().message, "");
  EXPECT_TRUE(queue_->empty()) << "it is not asked for ever";
  EXPECT_EQ(pages[0].state(), HandleState::kResident);
  cudasim_clear_faults();
  EXPECT_EQ(Choose(pages), 2 * kPage);
  EXPECT_THAT(TakeReady(), ElementsAre(pages[0], pages[1]));
}

TEST_F(LeaveQueueTest, StreamThatCapturesRefusesTheChoice) {
  const auto pages = Pages(2);
  const StreamId stream = NewStream();
  Note(stream, pages[0]);
  const auto captured = reinterpret_cast<cudaStream_t>(Raw(stream));
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeRelaxed),
            cudaSuccess);
  EXPECT_EQ(Choose(pages), 0u);
  ASSERT_FALSE(why_.has_value());
  EXPECT_THAT(why_.error().message, HasSubstr(kCapturedNow));
  EXPECT_TRUE(queue_->empty());
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess)
      << "the choice spoiled the capture";
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(Choose(pages), 2 * kPage);
}

// Whatever streams used the page: with a route open nothing may be fenced.
TEST_F(LeaveQueueTest, CaptureIntoAPoolRefusesEveryChoice) {
  const auto pages = Pages(1);
  const StreamId stream = NewStream();
  const auto captured = reinterpret_cast<cudaStream_t>(Raw(stream));
  ASSERT_TRUE(allocator_
                  ->BeginAllocateToPool(
                      kGraph,
                      [&](StreamId one) {
                        return allocator_->device().IsCapturing(one);
                      },
                      stream)
                  .has_value());
  ASSERT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal),
            cudaSuccess);
  EXPECT_EQ(Choose(pages), 0u);
  ASSERT_FALSE(why_.has_value());
  EXPECT_THAT(why_.error().message, HasSubstr(kCapturedNow));
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(captured, &graph), cudaSuccess)
      << "the choice spoiled the capture";
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  ASSERT_TRUE(allocator_->EndAllocateToPool(kGraph).has_value());
  EXPECT_TRUE(allocator_->ReleasePool(kGraph).has_value());
  EXPECT_EQ(Choose(pages), kPage);
}

// The events of the queue are the pool's: those of one choice serve the next.
TEST_F(LeaveQueueTest, EventsOfAChoiceAreUsedAgain) {
  const auto pages = Pages(4);
  Choose(pages);
  TakeReady();
  taken_.clear();
  const long made = cudasim_calls("cudaEventCreateWithFlags");
  for (int i = 0; i < 20; ++i) {
    Choose(pages);
    Choose(pages);
    TakeReady();
    taken_.clear();
  }
  EXPECT_LE(cudasim_calls("cudaEventCreateWithFlags"), made + 1);
}

}  // namespace
}  // namespace stratalloc
