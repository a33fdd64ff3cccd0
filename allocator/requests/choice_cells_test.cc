// SPDX-License-Identifier: Apache-2.0
// Cells of allocator/RESIDENCY.md: a page is chosen, marked, pinned, and used
// between these steps.
#include <gtest/gtest.h>

#include "allocator/requests/cells_fixture_test.h"

namespace stratalloc {
namespace {

using enum HandleState;

class ChoiceCells : public CellsTest {
 protected:
  void ExpectNotChosen(HandleState state) {
    Open(state);
    // Alone the state keeps it.
    const std::uint32_t live = std::exchange(page_.entry().live, 1);
    EXPECT_TRUE(Choose().empty());
    page_.entry().live = live;
    EXPECT_EQ(State(), state);
  }
};

TEST_F(ChoiceCells, ResidentPageIsChosenAndStaysResident) {
  Open(kResident);
  use().used_streams = 6;
  const std::vector<Claim> claims = Choose();
  ASSERT_EQ(claims.size(), 1u);
  EXPECT_EQ(claims[0].streams, 6u);
  EXPECT_TRUE(use().is_claimed());
  EXPECT_EQ(State(), kResident);
  EXPECT_TRUE(Look(stream_)) << "operators use it as before";
}
TEST_F(ChoiceCells, ResidentPageWithoutBlocksIsNotChosen) {
  Open(kResident);
  FreeBlock();
  EXPECT_TRUE(Choose().empty());
}
TEST_F(ChoiceCells, UnmappedPageIsNotChosen) { ExpectNotChosen(kUnmapped); }
TEST_F(ChoiceCells, LeavingPageIsNotChosen) { ExpectNotChosen(kLeaving); }
TEST_F(ChoiceCells, CopyingOutPageIsNotChosen) { ExpectNotChosen(kCopyingOut); }
TEST_F(ChoiceCells, HostPageIsNotChosen) { ExpectNotChosen(kHost); }
TEST_F(ChoiceCells, HostAndDiskPageIsNotChosen) {
  ExpectNotChosen(kHostAndDisk);
}
TEST_F(ChoiceCells, DiskPageIsNotChosen) { ExpectNotChosen(kDisk); }
TEST_F(ChoiceCells, CopyingInPageIsNotChosen) { ExpectNotChosen(kCopyingIn); }
TEST_F(ChoiceCells, PoisonedPageIsNotChosen) { ExpectNotChosen(kPoisoned); }
TEST_F(ChoiceCells, ReleasingPageIsNotChosen) { ExpectNotChosen(kReleasing); }

// The choice is the latest of a page that nothing used since: its state alone
// says that it is not marked.
class MarkCells : public CellsTest {
 protected:
  void ExpectNotMarked(HandleState state) {
    Open(state);
    std::vector<Departure> under_way = std::exchange(departures_, {});
    HandleEntry& entry = page_.entry();
    const std::uint32_t live = std::exchange(entry.live, 1);
    use().Claim();
    EXPECT_FALSE(Mark({{.handle = page_, .number = entry.claim}}));
    entry.live = live;
    departures_ = std::move(under_way);
    EXPECT_EQ(State(), state);
  }
};

TEST_F(MarkCells, ResidentPageIsLeavingAndItsSpaceIsParked) {
  Open(kResident);
  ASSERT_TRUE(Mark(Choose()));
  EXPECT_EQ(State(), kLeaving);
  EXPECT_EQ(FindSpace(), nullptr);
}
TEST_F(MarkCells, ResidentPageChosenAgainIsMarkedByTheNewerChoice) {
  Open(kResident);
  const std::vector<Claim> older = Choose();
  use().NoteStream(2);
  const std::vector<Claim> newer = Choose();
  EXPECT_FALSE(Mark(older)) << "it does not know the stream";
  EXPECT_EQ(newer[0].streams & 2, 2u);
  EXPECT_TRUE(Mark(newer));
}
TEST_F(MarkCells, ResidentPageFreedSinceStays) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  FreeBlock();
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
}
TEST_F(MarkCells, UnmappedPageIsNotMarked) { ExpectNotMarked(kUnmapped); }
TEST_F(MarkCells, LeavingPageIsNotMarkedTwice) { ExpectNotMarked(kLeaving); }
TEST_F(MarkCells, CopyingOutPageIsNotMarked) { ExpectNotMarked(kCopyingOut); }
TEST_F(MarkCells, HostPageIsNotMarked) { ExpectNotMarked(kHost); }
TEST_F(MarkCells, HostAndDiskPageIsNotMarked) { ExpectNotMarked(kHostAndDisk); }
TEST_F(MarkCells, DiskPageIsNotMarked) { ExpectNotMarked(kDisk); }
TEST_F(MarkCells, CopyingInPageIsNotMarked) { ExpectNotMarked(kCopyingIn); }
TEST_F(MarkCells, PoisonedPageIsNotMarked) { ExpectNotMarked(kPoisoned); }
TEST_F(MarkCells, ReleasingPageIsNotMarked) { ExpectNotMarked(kReleasing); }

class PinCells : public CellsTest {
 protected:
  void TearDown() override {
    use().pins = 0;
    CellsTest::TearDown();
  }
};

TEST_F(PinCells, ResidentPageIsNotChosenWhilePinned) {
  Open(kResident);
  ++use().pins;
  EXPECT_TRUE(Choose().empty());
}
TEST_F(PinCells, ResidentPagePinnedSinceTheChoiceIsNotMarked) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  ++use().pins;
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
}
TEST_F(PinCells, LeavingPageIsResidentAgain) {
  Open(kLeaving);
  ++use().pins;
  EXPECT_FALSE(BeginCopies());
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(FindSpace(), nullptr);
}
TEST_F(PinCells, CopyingOutPageLeavesAllTheSame) {
  Open(kCopyingOut);
  ++use().pins;
  EXPECT_EQ(EndCopies(), Departure::Left::kAway);
  EXPECT_EQ(State(), kHost);
}

class RecordStreamCells : public CellsTest {
 protected:
  std::uint64_t Bit() {
    return std::uint64_t{1} << parts().streams.BitOf(stream_);
  }
  void RecordStream() { use().NoteUnseen(Bit()); }
  // The next eviction of the page waits for the stream.
  void ExpectKept() { EXPECT_EQ(use().used_streams.load() & Bit(), Bit()); }
  void ExpectKeptOverAReturn(HandleState state) {
    Open(state);
    use().used_streams = 0;
    RecordStream();
    EXPECT_EQ(State(), state);
    ASSERT_EQ(BeginRestore().value(), 1u);
    transactions().CommitRestore({page_}, kNoEvent);
    EXPECT_EQ(State(), kResident);
    ExpectKept();
  }
};

TEST_F(RecordStreamCells, ResidentPageIsNotMarkedByTheChoiceBefore) {
  Open(kResident);
  const std::vector<Claim> claims = Choose();
  RecordStream();
  EXPECT_FALSE(Mark(claims));
  EXPECT_EQ(State(), kResident);
  EXPECT_EQ(Choose()[0].streams & Bit(), Bit());
}
TEST_F(RecordStreamCells, LeavingPageIsResidentAgain) {
  Open(kLeaving);
  RecordStream();
  EXPECT_FALSE(BeginCopies());
  EXPECT_EQ(State(), kResident);
  ExpectKept();
}
TEST_F(RecordStreamCells, LeavingPageUsedByAnotherStreamIsResidentAgain) {
  Open(kLeaving);
  use().NoteStream(Bit());
  EXPECT_FALSE(BeginCopies(/*users=*/~Bit()));
  EXPECT_EQ(State(), kResident);
}
TEST_F(RecordStreamCells, CopyingOutPageStaysAtTheEndAndIsDirty) {
  Open(kCopyingOut);
  use().dirty = false;
  RecordStream();
  EXPECT_EQ(EndCopies(), Departure::Left::kStayed);
  EXPECT_EQ(State(), kResident);
  EXPECT_TRUE(use().dirty);
  ExpectKept();
}
TEST_F(RecordStreamCells, HostPageKeepsItForTheNextEviction) {
  ExpectKeptOverAReturn(kHost);
}
TEST_F(RecordStreamCells, HostAndDiskPageKeepsItForTheNextEviction) {
  ExpectKeptOverAReturn(kHostAndDisk);
}
TEST_F(RecordStreamCells, DiskPageKeepsItForTheNextEviction) {
  ExpectKeptOverAReturn(kDisk);
}
TEST_F(RecordStreamCells, CopyingInPageKeepsItForTheNextEviction) {
  Open(kCopyingIn);
  RecordStream();
  FinishCopy();
  EXPECT_EQ(State(), kResident);
  ExpectKept();
}
TEST_F(RecordStreamCells, PoisonedPageIsAsItWas) {
  Open(kPoisoned);
  RecordStream();
  EXPECT_EQ(State(), kPoisoned);
}

}  // namespace
}  // namespace stratalloc
