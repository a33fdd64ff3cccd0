// SPDX-License-Identifier: Apache-2.0
// Cells of allocator/RESIDENCY.md: the steps of moves, their failures, and
// copies below the device that are given up.
#include <gtest/gtest.h>

#include "allocator/requests/cells_fixture_test.h"

namespace stratalloc {
namespace {

using enum HandleState;

class NextStepCells : public CellsTest {
 protected:
  void ExpectAwayAs(HandleState to) {
    Open(kCopyingOut);
    ASSERT_EQ(EndCopies(to), Departure::Left::kAway);
    EXPECT_EQ(State(), to);
    EXPECT_EQ(page_.entry().physical, nullptr) << "a stray access must fault";
    EXPECT_EQ(Broken(), "");
    EXPECT_TRUE(page_.entry().has_copy);
    EXPECT_FALSE(use().dirty);
    EXPECT_EQ(Reserved(), 0u);
  }
};

TEST_F(NextStepCells, LeavingPageIsCopiedAndItsStreamsAreTaken) {
  Open(kLeaving);
  use().used_streams = 6;
  ASSERT_TRUE(BeginCopies(/*users=*/6));
  EXPECT_EQ(State(), kCopyingOut);
  EXPECT_EQ(departures_[0].used_streams, 6u);
  EXPECT_EQ(use().used_streams.load(), 0u);
  EXPECT_EQ(departures_[0].generation, page_.entry().generation);
}
TEST_F(NextStepCells, CopyingOutPageIsAwayOnTheHost) { ExpectAwayAs(kHost); }
TEST_F(NextStepCells, CopyingOutPageIsAwayInBothTiers) {
  ExpectAwayAs(kHostAndDisk);
}
TEST_F(NextStepCells, CopyingOutPageIsAwayOnTheDisk) { ExpectAwayAs(kDisk); }
TEST_F(NextStepCells, CopyingInPageIsResidentOnceItsCopyIsComplete) {
  Open(kCopyingIn);
  parts().arrivals.Settle();
  EXPECT_EQ(State(), kCopyingIn) << "its copy is not complete";
  FinishCopy();
  EXPECT_EQ(State(), kResident);
  EXPECT_FALSE(parts().residency.some_arrive());
}
TEST_F(NextStepCells, ReleasingPageIsUnmapped) {
  Open(kReleasing);
  EndRelease(/*fenced=*/true);
  EXPECT_EQ(State(), kUnmapped);
  EXPECT_EQ(Reserved(), 0u);
}

class RestoreCells : public CellsTest {
 protected:
  void ExpectCopyingIn(HandleState from) {
    Open(from);
    EXPECT_EQ(transactions().AwayOf({&page_, 1}).size(), 1u);
    ASSERT_EQ(BeginRestore().value(), 1u);
    EXPECT_EQ(State(), kCopyingIn);
    EXPECT_NE(page_.entry().physical, nullptr);
    EXPECT_EQ(Broken(), "");
    EXPECT_EQ(Reserved(), kHandle);
    transactions().CommitRestore({page_}, kNoEvent);
    EXPECT_EQ(State(), kResident);
    EXPECT_FALSE(use().dirty) << "the copy below is true";
  }
  void ExpectIgnored(HandleState state) {
    Open(state);
    EXPECT_TRUE(transactions().AwayOf({&page_, 1}).empty());
    EXPECT_EQ(BeginRestore().value(), 0u);
    EXPECT_EQ(State(), state);
  }
};

TEST_F(RestoreCells, UnmappedPageIsIgnored) { ExpectIgnored(kUnmapped); }
TEST_F(RestoreCells, ResidentPageIsIgnored) { ExpectIgnored(kResident); }
TEST_F(RestoreCells, LeavingPageIsIgnored) { ExpectIgnored(kLeaving); }
TEST_F(RestoreCells, CopyingOutPageIsIgnored) { ExpectIgnored(kCopyingOut); }
TEST_F(RestoreCells, HostPageIsMappedForItsCopy) { ExpectCopyingIn(kHost); }
TEST_F(RestoreCells, HostAndDiskPageIsMappedForItsCopy) {
  ExpectCopyingIn(kHostAndDisk);
}
TEST_F(RestoreCells, DiskPageIsMappedForItsCopy) { ExpectCopyingIn(kDisk); }
TEST_F(RestoreCells, CopyingInPageIsIgnored) { ExpectIgnored(kCopyingIn); }
TEST_F(RestoreCells, PoisonedPageIsNotListed) {
  Open(kPoisoned);
  EXPECT_TRUE(transactions().AwayOf({&page_, 1}).empty());
}
TEST_F(RestoreCells, ReleasingPageIsIgnored) { ExpectIgnored(kReleasing); }

class FailureCells : public CellsTest {
 protected:
  static constexpr int kInvalidValue = 1;

  // The driver does not map it.
  void ExpectStaysAway(HandleState state) {
    Open(state);
    ASSERT_EQ(cudasim_fail("cuMemMap", 1, kInvalidValue, /*forever=*/1), 0);
    EXPECT_FALSE(BeginRestore().has_value());
    EXPECT_EQ(State(), state);
    EXPECT_EQ(Broken(), "");
    EXPECT_EQ(page_.entry().physical, nullptr);
  }
  // Its copy fails on the way in.
  void ExpectBackAs(HandleState to) {
    Open(kHost);
    ASSERT_EQ(BeginRestore().value(), 1u);
    transactions().AbortRestore(page_, to);
    EXPECT_EQ(State(), to);
    EXPECT_EQ(page_.entry().physical, nullptr);
    EXPECT_EQ(Broken(), "");
    EXPECT_EQ(Reserved(), 0u);
  }
};

TEST_F(FailureCells, LeavingPageIsResidentAgain) {
  Open(kLeaving);
  EXPECT_FALSE(BeginCopies(kAllStreams, /*may_leave=*/false));
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(FindSpace(), nullptr);
}
TEST_F(FailureCells, CopyingOutPageWithoutATierIsResidentAndDirty) {
  Open(kCopyingOut);
  use().dirty = false;  // its copy below was true before, and is not any more
  page_.entry().has_copy = true;
  departures_[0].stays = true;
  EXPECT_EQ(EndCopies(), Departure::Left::kStayed);
  EXPECT_EQ(State(), kResident);
  EXPECT_TRUE(use().dirty);
  EXPECT_FALSE(page_.entry().has_copy);
}
TEST_F(FailureCells, CopyingOutPageThatIsNotUnmappedIsResident) {
  Open(kCopyingOut);
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 1, kInvalidValue, /*forever=*/1), 0);
  EXPECT_EQ(EndCopies(), Departure::Left::kStayed);
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(page_.entry().physical, nullptr);
  EXPECT_EQ(Broken(), "");
}
TEST_F(FailureCells, HostPageThatIsNotMappedStaysAway) {
  ExpectStaysAway(kHost);
}
TEST_F(FailureCells, HostAndDiskPageThatIsNotMappedStaysAway) {
  ExpectStaysAway(kHostAndDisk);
}
TEST_F(FailureCells, DiskPageThatIsNotMappedStaysAway) {
  ExpectStaysAway(kDisk);
}
TEST_F(FailureCells, CopyingInPageIsBackOnTheHost) { ExpectBackAs(kHost); }
TEST_F(FailureCells, CopyingInPageIsBackInBothTiers) {
  ExpectBackAs(kHostAndDisk);
}
TEST_F(FailureCells, CopyingInPageIsBackOnTheDisk) { ExpectBackAs(kDisk); }
TEST_F(FailureCells, CopyingInPageWithLostBytesIsPoisoned) {
  ExpectBackAs(kPoisoned);
}
TEST_F(FailureCells, CopyingInPageFreedBeforeTheFailureIsUnmapped) {
  Open(kHost);
  ASSERT_EQ(BeginRestore().value(), 1u);
  FreeBlock();
  transactions().AbortRestore(page_, kHost);
  EXPECT_EQ(State(), kUnmapped);
  EXPECT_EQ(Broken(), "");
}
TEST_F(FailureCells, ReleasingPageIsResidentAgain) {
  Open(kReleasing);
  EndRelease(/*fenced=*/false);
  EXPECT_EQ(State(), kResident);
  EXPECT_NE(FindSpace(), nullptr);
}

// A copy below the device is given up: the host's, or the disk's chunk.
class GiveUpCells : public CellsTest {
 protected:
  void GiveUpHost(bool on_disk) {
    transactions().NoteHostCopyGone(page_, /*written=*/!on_disk, on_disk,
                                    Events());
  }
  bool GiveUpChunk(bool in_host) {
    return transactions().NoteChunkGone(page_, in_host);
  }
  void ExpectChunkStays(HandleState state) {
    Open(state);
    EXPECT_FALSE(GiveUpChunk(/*in_host=*/false));
    EXPECT_EQ(State(), state);
  }
  // Its copies were true, and one is left or none.
  void ExpectCopy(bool left) {
    EXPECT_EQ(page_.entry().has_copy.load(), left);
    EXPECT_EQ(use().dirty.load(), !left);
  }
};

TEST_F(GiveUpCells, ResidentPageIsDirtyWithoutItsLastCopy) {
  Open(kDisk);
  ASSERT_EQ(BeginRestore().value(), 1u);
  transactions().CommitRestore({page_}, kNoEvent);
  GiveUpHost(/*on_disk=*/true);
  ExpectCopy(/*left=*/true);
  EXPECT_TRUE(GiveUpChunk(/*in_host=*/true));
  ExpectCopy(/*left=*/true);
  EXPECT_TRUE(GiveUpChunk(/*in_host=*/false));
  ExpectCopy(/*left=*/false);
  EXPECT_EQ(State(), kResident);
}
TEST_F(GiveUpCells, ResidentPageIsDirtyWithoutItsHostCopy) {
  Open(kHost);
  ASSERT_EQ(BeginRestore().value(), 1u);
  transactions().CommitRestore({page_}, kNoEvent);
  GiveUpHost(/*on_disk=*/false);
  ExpectCopy(/*left=*/false);
}
TEST_F(GiveUpCells, LeavingPageKeepsItsChunk) { ExpectChunkStays(kLeaving); }
TEST_F(GiveUpCells, CopyingOutPageKeepsItsChunk) {
  ExpectChunkStays(kCopyingOut);
}
TEST_F(GiveUpCells, HostPageIsOnTheDisk) {
  Open(kHost);
  EXPECT_FALSE(GiveUpChunk(/*in_host=*/true)) << "it has none";
  GiveUpHost(/*on_disk=*/false);
  EXPECT_EQ(State(), kDisk);
}
TEST_F(GiveUpCells, HostAndDiskPageIsOnTheDiskWithoutItsHostCopy) {
  Open(kHostAndDisk);
  GiveUpHost(/*on_disk=*/true);
  EXPECT_EQ(State(), kDisk);
}
TEST_F(GiveUpCells, HostAndDiskPageIsOnTheHostWithoutItsChunk) {
  Open(kHostAndDisk);
  EXPECT_TRUE(GiveUpChunk(/*in_host=*/true));
  EXPECT_EQ(State(), kHost);
}
TEST_F(GiveUpCells, DiskPageKeepsItsChunk) { ExpectChunkStays(kDisk); }
TEST_F(GiveUpCells, CopyingInPageIsDirtyWithoutItsLastCopy) {
  Open(kCopyingIn);
  EXPECT_TRUE(GiveUpChunk(/*in_host=*/false));
  EXPECT_EQ(State(), kCopyingIn);
  ExpectCopy(/*left=*/false);
}
TEST_F(GiveUpCells, PoisonedPageKeepsItsChunk) { ExpectChunkStays(kPoisoned); }

}  // namespace
}  // namespace stratalloc
