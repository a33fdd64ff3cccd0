// SPDX-License-Identifier: Apache-2.0
// Cells of allocator/RESIDENCY.md: an operator looks at a page, a block is
// handed out or freed in it, and a capture begins.
#include <gtest/gtest.h>

#include "allocator/requests/cells_fixture_test.h"

namespace stratalloc {
namespace {

using enum HandleState;

class LookCells : public CellsTest {
 protected:
  // It may not use the page; the arbiter's holder decides.
  void ExpectNotUsed(HandleState state) {
    Open(state);
    EXPECT_FALSE(Look(stream_));
    EXPECT_EQ(State(), state);
  }
  void ExpectUsed(HandleState state) {
    Open(state);
    const long waits = cudasim_calls("cudaStreamWaitEvent");
    EXPECT_TRUE(Look(stream_));
    EXPECT_EQ(cudasim_calls("cudaStreamWaitEvent"), waits) << "of nothing";
    EXPECT_EQ(State(), state);
  }
};

TEST_F(LookCells, UnmappedPageIsPassed) { ExpectUsed(kUnmapped); }
TEST_F(LookCells, ResidentPageIsUsedAtOnce) { ExpectUsed(kResident); }
TEST_F(LookCells, ResidentPageUsedSinceTheChoiceIsNotMarked) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  use().NoteOperator(1, /*written=*/false, /*now=*/4, /*burst=*/16);
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
}
TEST_F(LookCells, LeavingPageIsNotUsed) { ExpectNotUsed(kLeaving); }
TEST_F(LookCells, CopyingOutPageIsNotUsed) { ExpectNotUsed(kCopyingOut); }
TEST_F(LookCells, HostPageIsNotUsed) { ExpectNotUsed(kHost); }
TEST_F(LookCells, HostAndDiskPageIsNotUsed) { ExpectNotUsed(kHostAndDisk); }
TEST_F(LookCells, DiskPageIsNotUsed) { ExpectNotUsed(kDisk); }
TEST_F(LookCells, PoisonedPageIsNotUsed) { ExpectNotUsed(kPoisoned); }
TEST_F(LookCells, ReleasingPageIsPassed) { ExpectUsed(kReleasing); }
TEST_F(LookCells, CopyingInPageIsUsedBehindItsCopy) {
  Open(kCopyingIn);
  const StreamId other = NewStream();
  const long waits = cudasim_calls("cudaStreamWaitEvent");
  EXPECT_TRUE(Look(other));
  EXPECT_EQ(cudasim_calls("cudaStreamWaitEvent"), waits + 1);
  EXPECT_EQ(State(), kCopyingIn);
}
TEST_F(LookCells, CopyingInPageWithoutAnEventIsNotUsed) {
  Open(kHost);
  ASSERT_EQ(BeginRestore().value(), 1u);
  EXPECT_FALSE(Look(stream_));
  EXPECT_EQ(State(), kCopyingIn);
  EnqueueCopy();
}

// A block of half a page is wanted, and no memory is to be had for a new page.
class HandOutCells : public CellsTest {
 protected:
  void ExpectParked(HandleState state) {
    Open(state);
    EXPECT_EQ(FindSpace(), nullptr);
    EXPECT_EQ(State(), state);
  }
};

TEST_F(HandOutCells, UnmappedPageIsMapped) {
  Open(kUnmapped);
  use().dirty = false;
  block_ = Malloc(kLarge, kMiB);
  EXPECT_EQ(parts().table.RefOf(block_->address), page_);
  EXPECT_EQ(State(), kResident);
  EXPECT_TRUE(use().dirty);
}
TEST_F(HandOutCells, ResidentPageIsNotMarkedByTheChoiceBefore) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  Block* const second = Malloc(kLarge, kMiB);
  ASSERT_EQ(parts().table.RefOf(second->address), page_);
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
  Free(second);
}
TEST_F(HandOutCells, LeavingPageIsParked) { ExpectParked(kLeaving); }
TEST_F(HandOutCells, CopyingOutPageIsParked) { ExpectParked(kCopyingOut); }
TEST_F(HandOutCells, HostPageIsParked) { ExpectParked(kHost); }
TEST_F(HandOutCells, HostAndDiskPageIsParked) { ExpectParked(kHostAndDisk); }
TEST_F(HandOutCells, DiskPageIsParked) { ExpectParked(kDisk); }
TEST_F(HandOutCells, CopyingInPageIsParkedUntilItIsResident) {
  ExpectParked(kCopyingIn);
  FinishCopy();
  EXPECT_NE(FindSpace(), nullptr);
}
TEST_F(HandOutCells, PoisonedPageIsParked) { ExpectParked(kPoisoned); }
TEST_F(HandOutCells, ReleasingPageIsParked) { ExpectParked(kReleasing); }

// The last live block of the page is freed.
class FreeCells : public CellsTest {
 protected:
  void ExpectUnmappedAndCopiesDropped(HandleState state) {
    Open(state);
    const std::uint32_t before = page_.entry().generation;
    FreeBlock();
    EXPECT_EQ(State(), kUnmapped);
    EXPECT_EQ(Broken(), "");
    const auto dropped = transactions().TakeDropped();
    ASSERT_EQ(dropped.size(), 1u);
    EXPECT_EQ(dropped[0].second, before + 1) << "older copies are void";
  }
};

TEST_F(FreeCells, ResidentPageStaysAndItsCopyIsDropped) {
  Open(kHost);
  ASSERT_EQ(BeginRestore().value(), 1u);
  transactions().CommitRestore({page_}, kNoEvent);
  FreeBlock();
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(FindSpace(), nullptr);
  EXPECT_EQ(transactions().TakeDropped().size(), 1u);
  EXPECT_FALSE(page_.entry().has_copy);
}
TEST_F(FreeCells, LeavingPageGivesUpItsBytesAtTheEnd) {
  Open(kLeaving);
  FreeBlock();
  EXPECT_EQ(State(), kLeaving);
  ASSERT_TRUE(BeginCopies());
  EXPECT_EQ(EndCopies(), Departure::Left::kFreed);
  EXPECT_EQ(State(), kUnmapped);
}
TEST_F(FreeCells, CopyingOutPageGivesUpItsBytesAtTheEnd) {
  Open(kCopyingOut);
  const std::uint32_t copied = departures_[0].generation;
  FreeBlock();
  EXPECT_EQ(State(), kCopyingOut);
  EXPECT_NE(page_.entry().generation, copied) << "the copy is void";
  EXPECT_EQ(EndCopies(), Departure::Left::kFreed);
  EXPECT_EQ(State(), kUnmapped);
  EXPECT_EQ(Broken(), "");
}
TEST_F(FreeCells, HostPageIsUnmappedAndItsCopyDropped) {
  ExpectUnmappedAndCopiesDropped(kHost);
}
TEST_F(FreeCells, HostAndDiskPageIsUnmappedAndItsCopiesDropped) {
  ExpectUnmappedAndCopiesDropped(kHostAndDisk);
}
TEST_F(FreeCells, DiskPageIsUnmappedAndItsCopyDropped) {
  ExpectUnmappedAndCopiesDropped(kDisk);
}
TEST_F(FreeCells, PoisonedPageIsUnmappedAndUsableAgain) {
  ExpectUnmappedAndCopiesDropped(kPoisoned);
  block_ = Malloc(kLarge, kMiB);
  EXPECT_EQ(parts().table.RefOf(block_->address), page_);
  EXPECT_EQ(State(), kResident);
}
TEST_F(FreeCells, CopyingInPageIsFreeOnceItsCopyIsComplete) {
  Open(kCopyingIn);
  FreeBlock();
  EXPECT_EQ(State(), kCopyingIn);
  EXPECT_EQ(FindSpace(), nullptr) << "its copy would overwrite a block";
  FinishCopy();
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(FindSpace(), nullptr);
}

class CaptureCells : public CellsTest {
 protected:
  void TearDown() override {
    if (begun_) EndCapture();
    CellsTest::TearDown();
  }
  void Capture() {
    BeginCapture();
    begun_ = true;
  }
  void ExpectStays(HandleState state) {
    Open(state);
    Capture();
    EXPECT_FALSE(Look(stream_)) << "the host restores it before";
    EXPECT_EQ(State(), state);
  }
  bool begun_ = false;
};

TEST_F(CaptureCells, ResidentPageIsNeitherFencedNorMarked) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  Capture();
  EXPECT_FALSE(transactions().BeginFencing());
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
}
TEST_F(CaptureCells, LeavingPageIsResidentAgain) {
  Open(kLeaving);
  Capture();
  EXPECT_FALSE(BeginCopies());
  EXPECT_EQ(State(), kResident);
}
TEST_F(CaptureCells, CopyingOutPageLeaves) {
  Open(kCopyingOut);
  Capture();
  EXPECT_EQ(EndCopies(), Departure::Left::kAway);
  EXPECT_EQ(State(), kHost);
}
TEST_F(CaptureCells, HostPageIsNotUsedByTheCapture) { ExpectStays(kHost); }
TEST_F(CaptureCells, HostAndDiskPageIsNotUsedByTheCapture) {
  ExpectStays(kHostAndDisk);
}
TEST_F(CaptureCells, DiskPageIsNotUsedByTheCapture) { ExpectStays(kDisk); }
TEST_F(CaptureCells, PoisonedPageIsNotUsedByTheCapture) {
  ExpectStays(kPoisoned);
}
TEST_F(CaptureCells, CopyingInPageIsNotAwaitedByTheCapture) {
  Open(kHost);
  const StreamId other = NewStream();
  ASSERT_EQ(BeginRestore().value(), 1u);
  const EventId event = transactions().TakeEvent();
  ASSERT_TRUE(parts().device.RecordEvent(event, other).has_value());
  transactions().CommitRestore({page_}, event);
  Capture();
  const long waits = cudasim_calls("cudaStreamWaitEvent");
  EXPECT_FALSE(Look(stream_));
  EXPECT_EQ(cudasim_calls("cudaStreamWaitEvent"), waits);
  EXPECT_TRUE(transactions().DrainArrivals().has_value());
  EXPECT_TRUE(Look(stream_)) << "the host has waited";
}

}  // namespace
}  // namespace stratalloc
