// SPDX-License-Identifier: Apache-2.0
// Leaver: batches on their way out, and what happens to their pages meanwhile.
#include "tiering/engine/leaver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tests/simulator/cudasim/twins/checksum_twin.h"
#include "tiering/engine/leave_fixture_test.h"
#include "tiering/engine/restoration.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

class LeaverTest : public LeaveFixture {
 protected:
  void Open(Bytes capacity, Bytes host_budget, Bytes disk_budget = 0) {
    LeaveFixture::Open(capacity, host_budget, disk_budget);
    leaver_.emplace(Eviction::Parts{state_, *lower_, all_});
  }
  void TearDown() override {
    leaver_->Stop();
    leaver_.reset();
    LeaveFixture::TearDown();
  }
  Bytes Choose(const std::vector<HandleRef>& pages,
               Below below = Below::kEither) {
    return leaver_->Choose(pages, below, tally_, &why_);
  }
  void StepUntilIdle() { LeaveFixture::StepUntilIdle(*leaver_); }
  void Return(HandleRef page) {
    const Status status =
        Restoration({state_, *lower_, nullptr}).Run({&page, 1});
    ASSERT_TRUE(status.has_value()) << status.error().message;
    ASSERT_TRUE(allocator_->DrainArrivals().has_value());
    ASSERT_EQ(page.state(), HandleState::kResident);
  }
  // The first of them is freed while its batch is on its way.
  void ChooseAndFreeTheFirst(const std::vector<HandleRef>& pages) {
    Choose(pages);
    cudasim_hold_streams(1);
    leaver_->Step();
    ASSERT_EQ(pages[0].state(), HandleState::kCopyingOut);
    Free(pages[0]);
    lower_->CollectDropped(*allocator_);
    EXPECT_NE(lower_->Find(*allocator_, pages[0].address()), nullptr)
        << "the batch writes it, or compares with its checksum";
    cudasim_hold_streams(0);
    StepUntilIdle();
  }
  static std::size_t CountIn(HandleState state,
                             const std::vector<HandleRef>& pages) {
    std::size_t count = 0;
    for (HandleRef page : pages) count += page.state() == state;
    return count;
  }

  std::optional<Leaver> leaver_;
  std::shared_ptr<LeaveTally> tally_ = std::make_shared<LeaveTally>();
  Status why_;
};

TEST_F(LeaverTest, SeveralBatchesAreOnTheirWay) {
  Open(256 * kMiB, 256 * kMiB);
  const auto pages = Pages(80);  // more than two batches
  ASSERT_EQ(Choose(pages), 80 * kPage);
  cudasim_hold_streams(1);
  leaver_->Step();
  EXPECT_EQ(CountIn(HandleState::kCopyingOut, pages), pages.size())
      << "none waits for another";
  EXPECT_EQ(leaver_->Pending(), 80 * kPage);
  EXPECT_EQ(leaver_->freed(), 0u);
  EXPECT_TRUE(leaver_->IsLeaving(pages.front()));
  EXPECT_TRUE(leaver_->IsLeaving(pages.back()));
  cudasim_hold_streams(0);
  StepUntilIdle();
  EXPECT_EQ(CountIn(HandleState::kHost, pages), pages.size());
  EXPECT_FALSE(leaver_->IsLeaving(pages.front()));
  EXPECT_EQ(leaver_->freed(), 80 * kPage);
  EXPECT_EQ(tally_->left.load(), 80 * kPage);
  EXPECT_EQ(tally_.use_count(), 1);
  for (int i : {0, 31, 32, 63, 64, 79}) {
    Return(pages[i]);
    EXPECT_EQ(LastByte(pages[i]), i + 1);
  }
}

TEST_F(LeaverTest, MoreThanItsBatchesWaitInTheQueue) {
  Open(384 * kMiB, 384 * kMiB);
  const auto pages = Pages(140);  // 128 at a time
  Choose(pages);
  cudasim_hold_streams(1);
  leaver_->Step();
  EXPECT_EQ(CountIn(HandleState::kCopyingOut, pages), 128u);
  EXPECT_EQ(leaver_->Pending(), 140 * kPage);
  cudasim_hold_streams(0);
  StepUntilIdle();
  EXPECT_EQ(tally_->left.load(), 140 * kPage);
  Return(pages[139]);
  EXPECT_EQ(LastByte(pages[139]), 140);
}

TEST_F(LeaverTest, FinishEndsWhatIsOnItsWayAlone) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(4);
  cudasim_hold_streams(1);
  const StreamId held = NewStream();
  Note(held, pages[3]);
  EnqueueOn(held, pages[3]);
  Choose(pages);
  leaver_->Step();
  leaver_->Finish();
  EXPECT_EQ(CountIn(HandleState::kHost, pages), 3u);
  EXPECT_EQ(pages[3].state(), HandleState::kResident);
  EXPECT_EQ(leaver_->Pending(), kPage);
  EXPECT_FALSE(leaver_->idle());
}

TEST_F(LeaverTest, StopForgetsWhatWasChosen) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(4);
  Choose({pages[0], pages[1]});
  leaver_->Step();
  Choose({pages[2], pages[3]});
  leaver_->Stop();
  EXPECT_TRUE(leaver_->idle());
  EXPECT_EQ(CountIn(HandleState::kHost, pages), 2u);
  EXPECT_EQ(CountIn(HandleState::kResident, pages), 2u);
  EXPECT_EQ(tally_.use_count(), 1);
}

TEST_F(LeaverTest, AwaitOfAHeldStreamGivesUp) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(1);
  cudasim_hold_streams(1);
  const StreamId held = NewStream();
  Note(held, pages[0]);
  EnqueueOn(held, pages[0]);
  Choose(pages);
  leaver_->Step();
  EXPECT_FALSE(leaver_->Await(/*most_ns=*/0));
  EXPECT_EQ(leaver_->Pending(), kPage);
  ASSERT_TRUE(leaver_->AwaitSome().has_value());
  EXPECT_TRUE(leaver_->Await(/*most_ns=*/0));
  StepUntilIdle();
  EXPECT_EQ(pages[0].state(), HandleState::kHost);
  EXPECT_TRUE(leaver_->Await(/*most_ns=*/0)) << "there is nothing to wait for";
}

TEST_F(LeaverTest, PagePinnedOnItsWayLeavesAndItsBytesHold) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  Choose(pages);
  leaver_->Step();
  ASSERT_EQ(pages[0].state(), HandleState::kCopyingOut);
  pages[0].use().pins.fetch_add(1);  // an operator that will wait for it
  StepUntilIdle();
  EXPECT_EQ(CountIn(HandleState::kHost, pages), 2u);
  Return(pages[0]);
  EXPECT_EQ(LastByte(pages[0]), 1);
  pages[0].use().pins.fetch_sub(1);
}

TEST_F(LeaverTest, StreamRecordedOnItsWayKeepsThePage) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  const StreamId stream = NewStream();
  Choose(pages);
  leaver_->Step();
  ASSERT_EQ(pages[0].state(), HandleState::kCopyingOut);
  pages[0].use().NoteUnseen(BitOf(stream));  // record_stream
  StepUntilIdle();
  EXPECT_EQ(pages[0].state(), HandleState::kResident);
  EXPECT_EQ(pages[1].state(), HandleState::kHost);
  EXPECT_EQ(tally_->left.load(), kPage);
  EXPECT_EQ(lower_->Find(*allocator_, pages[0].address()), nullptr)
      << "it is not clean";
}

TEST_F(LeaverTest, PageFreedOnItsWayGivesUpItsBytesAndCopy) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  ChooseAndFreeTheFirst(pages);
  EXPECT_EQ(lower_->Find(*allocator_, pages[0].address()), nullptr);
  EXPECT_NE(lower_->Find(*allocator_, pages[1].address()), nullptr);
  EXPECT_EQ(leaver_->freed(), 2 * kPage) << "its memory is free, too";
  EXPECT_EQ(tally_->left.load(), 2 * kPage);
  EXPECT_EQ(counters_.evicted_handles, 1u);
}

// The copy below is of the first eviction, and true until the page is freed.
TEST_F(LeaverTest, CleanPageFreedOnItsWayKeepsItsCopyUntilTheEnd) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(1);
  ASSERT_EQ(Evict(pages), kPage);
  Return(pages[0]);
  ChooseAndFreeTheFirst(pages);
  lower_->CollectDropped(*allocator_);
  EXPECT_EQ(lower_->Find(*allocator_, pages[0].address()), nullptr);
}

TEST_F(LeaverTest, CleanPageLeavesWithoutACopy) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(1);
  ASSERT_EQ(Evict(pages), kPage);
  Return(pages[0]);
  ASSERT_EQ(Choose(pages), kPage);
  StepUntilIdle();
  EXPECT_EQ(pages[0].state(), HandleState::kHost);
  EXPECT_EQ(counters_.clean_drops, 1u);
  EXPECT_EQ(counters_.dirty_by_checksum, 0u);
}

TEST_F(LeaverTest, BytesWrittenPastOperatorsAreCopiedAgain) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  ASSERT_EQ(Evict(pages), 2 * kPage);
  Return(pages[0]);
  Return(pages[1]);
  Set(pages[0], 77);
  ASSERT_EQ(Choose(pages), 2 * kPage);
  StepUntilIdle();
  EXPECT_EQ(counters_.dirty_by_checksum, 1u);
  EXPECT_EQ(counters_.clean_drops, 1u);
  Return(pages[0]);
  Return(pages[1]);
  EXPECT_EQ(LastByte(pages[0]), 77);
  EXPECT_EQ(LastByte(pages[1]), 2);
}

// Other code writes to a page when the device takes its second sum.
struct WriterAtSecondSum {
  static inline std::uint64_t page = 0;
  static inline int sums = 0;

  static void Twin(void** arguments, const unsigned* grid,
                   const unsigned* block) {
    const auto at = *static_cast<const std::uint64_t*>(arguments[0]);
    if (at == page && ++sums == 2) {
      static_cast<char*>(
          cudasim_host_view(reinterpret_cast<const void*>(at)))[5] = 99;
    }
    cudasim::ChecksumTwin(arguments, grid, block);
  }
  explicit WriterAtSecondSum(HandleRef to) {
    page = to.address();
    sums = 0;
    cudasim_register_twin(cudasim::kChecksumKernel, &Twin);
  }
  ~WriterAtSecondSum() {
    cudasim_register_twin(cudasim::kChecksumKernel, &cudasim::ChecksumTwin);
  }
};

TEST_F(LeaverTest, PageWrittenWhileItIsCopiedStays) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  const WriterAtSecondSum writer(pages[0]);
  Choose(pages);
  StepUntilIdle();
  EXPECT_EQ(pages[0].state(), HandleState::kResident);
  EXPECT_THAT(state_.refusal, HasSubstr("while it was copied out"));
  EXPECT_EQ(pages[1].state(), HandleState::kHost);
  EXPECT_EQ(tally_->left.load(), kPage);
}

TEST_F(LeaverTest, WithoutHostBudgetPagesGoToTheDisk) {
  Open(64 * kMiB, /*host_budget=*/0, /*disk_budget=*/64 * kMiB);
  const auto pages = Pages(3);
  Choose(pages);
  leaver_->Step();
  StepUntilIdle();
  EXPECT_EQ(CountIn(HandleState::kDisk, pages), 3u);
  EXPECT_EQ(tally_->left.load(), 3 * kPage);
  for (int i = 0; i < 3; ++i) {
    Return(pages[i]);
    EXPECT_EQ(LastByte(pages[i]), i + 1);
  }
}

TEST_F(LeaverTest, ChoiceForTheDiskGoesPastTheHost) {
  Open(64 * kMiB, 64 * kMiB, 64 * kMiB);
  const auto pages = Pages(2);
  Choose({pages[0]}, Below::kDisk);
  Choose({pages[1]}, Below::kHost);
  StepUntilIdle();
  EXPECT_EQ(pages[0].state(), HandleState::kDisk);
  EXPECT_EQ(pages[1].state(), HandleState::kHost);
}

TEST_F(LeaverTest, DeviceThatRefusesACopyKeepsTheBatch) {
  Open(64 * kMiB, 64 * kMiB);
  const auto pages = Pages(3);
  Choose(pages);
  ASSERT_EQ(cudasim_fail("cudaMemcpyAsync", 2, cudaErrorUnknown, 0), 0);
  StepUntilIdle();
  cudasim_clear_faults();
  EXPECT_EQ(CountIn(HandleState::kResident, pages), 3u);
  EXPECT_EQ(tally_->left.load(), 0u);
  EXPECT_EQ(tally_.use_count(), 1);
  EXPECT_NE(state_.refusal, "");
  ASSERT_EQ(Choose(pages), 3 * kPage);
  StepUntilIdle();
  EXPECT_EQ(tally_->left.load(), 3 * kPage);
  Return(pages[2]);
  EXPECT_EQ(LastByte(pages[2]), 3);
}

}  // namespace
}  // namespace stratalloc
