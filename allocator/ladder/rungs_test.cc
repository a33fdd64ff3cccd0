// SPDX-License-Identifier: Apache-2.0
// Each rung alone: what it asks of the device, and under which conditions.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "allocator/ladder/ladder.h"
#include "allocator/ladder/ladder_fixture_test.h"
#include "allocator/state/settings.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RungTest : public LadderTest {
 protected:
  // Climbs one rung of that name; what it answers. Asked anew each time.
  bool Climbed(const std::string& name) {
    device_.asked.clear();
    attempt_.answer.reset();
    for (const Rung& rung : Ladder()) {
      if (rung.name != name) continue;
      const bool ended = rung.climb(attempt_, device_);
      EXPECT_EQ(ended, attempt_.answer.has_value()) << name;
      return ended;
    }
    ADD_FAILURE() << "there is no rung \"" << name << "\"";
    return false;
  }
};

TEST_F(RungTest, SearchIsTheFirst) {
  EXPECT_FALSE(Climbed("search"));
  device_.serves = "search first";
  EXPECT_TRUE(Climbed("search"));
  EXPECT_THAT(device_.asked, ElementsAre("search first"));
  EXPECT_TRUE(Served());
}

TEST_F(RungTest, OthersAreAskedAndWhatIsCachedSearchedIfTheyFreed) {
  device_.serves = "search cached";
  EXPECT_FALSE(Climbed("ask others to free"));
  EXPECT_THAT(device_.asked, ElementsAre("free memory"));
  device_.frees = true;
  EXPECT_TRUE(Climbed("ask others to free"));
  EXPECT_THAT(device_.asked, ElementsAre("free memory", "search cached"));
}

TEST_F(RungTest, WhoComesWhileOthersWaitQueuesBehindThem) {
  device_.serves = "search limit";
  EXPECT_FALSE(Climbed("queue behind who waits"));
  EXPECT_THAT(device_.asked, ElementsAre("is unmanaged", "is crowded"));
  EXPECT_FALSE(attempt_.queued);
  device_.crowded = true;
  EXPECT_TRUE(Climbed("queue behind who waits"));
  EXPECT_THAT(device_.asked,
              ElementsAre("is unmanaged", "is crowded", "could hold",
                          "reclaim (inside)", "search limit (inside)"));
  EXPECT_TRUE(Served());
}

TEST_F(RungTest, NobodyQueuesForWhatTheDeviceCannotHoldOrMayNotEvict) {
  device_.crowded = true;
  device_.could_hold = false;
  EXPECT_FALSE(Climbed("queue behind who waits"));
  EXPECT_FALSE(attempt_.queued);
  device_.could_hold = true;
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("queue behind who waits"));
  EXPECT_THAT(device_.asked, ElementsAre("is unmanaged"));
}

TEST_F(RungTest, WhoWasRefusedInTheQueueIsNotQueuedAgain) {
  device_.crowded = true;
  EXPECT_FALSE(Climbed("queue behind who waits"));
  EXPECT_TRUE(attempt_.queued);
  device_.away = 8 * kMiB;
  EXPECT_FALSE(Climbed("restore away space"));
  EXPECT_THAT(device_.asked, IsEmpty());
  EXPECT_FALSE(Climbed("evict"));
  EXPECT_THAT(device_.asked, IsEmpty());
}

TEST_F(RungTest, AwaySpaceComesBackAndIsSearched) {
  device_.serves = "search cached";
  EXPECT_FALSE(Climbed("restore away space"));
  EXPECT_THAT(device_.asked, ElementsAre("find away"));
  device_.away = 8 * kMiB;
  EXPECT_FALSE(Climbed("restore away space"));
  EXPECT_THAT(device_.asked, ElementsAre("find away", "restore (inside)"));
  device_.restores = true;
  EXPECT_TRUE(Climbed("restore away space"));
  EXPECT_THAT(device_.asked, ElementsAre("find away", "restore (inside)",
                                         "search cached (inside)"));
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("restore away space"));
  EXPECT_THAT(device_.asked, IsEmpty());
}

TEST_F(RungTest, GrowthStopsAtTheEmergencyThresholdUnderPressure) {
  EXPECT_FALSE(Climbed("grow"));
  EXPECT_THAT(device_.asked, ElementsAre("under pressure", "grow to limit"));
  device_.pressure = true;
  EXPECT_FALSE(Climbed("grow"));
  EXPECT_THAT(device_.asked,
              ElementsAre("under pressure", "grow to emergency"));
  EXPECT_TRUE(attempt_.soft);
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("grow"));
  EXPECT_THAT(device_.asked, ElementsAre("grow to limit"));
  EXPECT_FALSE(attempt_.soft);
}

TEST_F(RungTest, OldSegmentsGoWhereAllMemoryIsUnmanaged) {
  EXPECT_FALSE(Climbed("collect old segments"));
  EXPECT_THAT(device_.asked, IsEmpty());
  attempt_.all_unmanaged = true;
  EXPECT_FALSE(Climbed("collect old segments"));
  EXPECT_THAT(device_.asked, ElementsAre("collect old"));
}

TEST_F(RungTest, ASegmentIsBoughtTwice) {
  for (const char* rung : {"buy a segment", "buy after the release"}) {
    device_.serves.clear();
    EXPECT_FALSE(Climbed(rung));
    EXPECT_THAT(device_.asked, ElementsAre("fetch unmanaged"));
    device_.serves = "fetch unmanaged";
    EXPECT_TRUE(Climbed(rung));
    EXPECT_TRUE(Served());
  }
}

TEST_F(RungTest, WithGarbageCollectionPoolsLendOnlyAfterTheRelease) {
  device_.serves = "borrow";
  EXPECT_TRUE(Climbed("borrow"));
  EXPECT_THAT(device_.asked, ElementsAre("has threshold", "borrow"));
  device_.threshold = true;
  EXPECT_FALSE(Climbed("borrow"));
  EXPECT_THAT(device_.asked, ElementsAre("has threshold"));
  EXPECT_TRUE(Climbed("borrow after the release"));
  EXPECT_THAT(device_.asked, ElementsAre("borrow"));
}

TEST_F(RungTest, SoMuchIsReleasedAsTheRequestOrTheThresholdWants) {
  EXPECT_FALSE(Climbed("release cached"));
  EXPECT_THAT(device_.asked, ElementsAre("above threshold", "release 4.00 MiB",
                                         "search released to limit"));
  device_.too_much = 10 * kMiB;
  EXPECT_FALSE(Climbed("release cached"));
  EXPECT_THAT(device_.asked,
              ElementsAre("above threshold", "release 10.00 MiB",
                          "search released to limit, collected"));
  device_.too_much = kMiB;
  attempt_.soft = true;
  EXPECT_FALSE(Climbed("release cached"));
  EXPECT_THAT(device_.asked,
              ElementsAre("above threshold", "release 4.00 MiB",
                          "search released to emergency, collected"));
}

TEST_F(RungTest, AMemPoolMovesWhatItHasCachedIfItMay) {
  device_.serves = "search limit";
  device_.may_move = true;
  EXPECT_FALSE(Climbed("move within the MemPool"));
  EXPECT_THAT(device_.asked, IsEmpty()) << "nobody's pool";
  attempt_.key.owner = kOwnPool;
  EXPECT_FALSE(Climbed("move within the MemPool"));
  EXPECT_THAT(device_.asked,
              ElementsAre("may move", "release 4.00 MiB of the pool"));
  device_.released = {2 * kMiB};
  EXPECT_TRUE(Climbed("move within the MemPool"));
  EXPECT_EQ(device_.asked.back(), "search limit");
  device_.released = {2 * kMiB};
  attempt_.soft = true;
  EXPECT_FALSE(Climbed("move within the MemPool"));
  EXPECT_EQ(device_.asked.back(), "search emergency");
  device_.may_move = false;
  EXPECT_FALSE(Climbed("move within the MemPool"));
  EXPECT_THAT(device_.asked, ElementsAre("may move"));
}

TEST_F(RungTest, WhatIsColdLeavesUnderPressure) {
  EXPECT_FALSE(Climbed("evict what is cold"));
  EXPECT_THAT(device_.asked, IsEmpty());
  attempt_.soft = true;
  attempt_.lacking = 2 * kMiB;
  EXPECT_FALSE(Climbed("evict what is cold"));
  EXPECT_THAT(device_.asked, ElementsAre("reclaim cold 2.00 MiB (inside)",
                                         "search beyond emergency (inside)"));
}

TEST_F(RungTest, EventsAreWaitedForAndTheSearchAfterItIsARetry) {
  EXPECT_FALSE(Climbed("wait for events"));
  EXPECT_THAT(device_.asked, ElementsAre("wait for frees", "search again"))
      << "who may still evict has not retried if it does not serve it";
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("wait for events"));
  EXPECT_THAT(device_.asked,
              ElementsAre("wait for frees", "search again, a retry"));
  Nest();
  EXPECT_FALSE(Climbed("wait for events"));
  EXPECT_THAT(device_.asked, ElementsAre("search again, a retry"));
}

TEST_F(RungTest, WhatIsLackingIsReleasedAsLongAsAnythingCameFree) {
  device_.released = {2 * kMiB, 4 * kMiB};
  EXPECT_FALSE(Climbed("release all"));
  EXPECT_THAT(device_.asked, ElementsAre("search limit", "release 6.00 MiB",
                                         "search limit", "release 6.00 MiB",
                                         "search limit", "release 6.00 MiB"));
  device_.serves = "search limit";
  EXPECT_TRUE(Climbed("release all"));
  EXPECT_THAT(device_.asked, ElementsAre("search limit"));
}

TEST_F(RungTest, AnUnmanagedRequestLacksASegment) {
  attempt_.unmanaged = true;
  EXPECT_FALSE(Climbed("release all"));
  EXPECT_EQ(attempt_.lacking, Settings::Get().SegmentBytes(kAsked));
  EXPECT_THAT(device_.asked, ElementsAre("search limit", "fetch unmanaged",
                                         "release 20.00 MiB"));
  device_.serves = "fetch unmanaged";
  EXPECT_TRUE(Climbed("release all"));
  EXPECT_EQ(device_.asked.back(), "fetch unmanaged");
}

TEST_F(RungTest, WhoMayNotEvictReleasesAllUnlessNested) {
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("release all"));
  EXPECT_THAT(device_.asked, ElementsAre("release all"));
  Nest();
  EXPECT_FALSE(Climbed("release all"));
  EXPECT_THAT(device_.asked, IsEmpty());
}

TEST_F(RungTest, ReleasesThatEndMeanwhileAreSearchedAgain) {
  EXPECT_FALSE(Climbed("outlast releases"));
  EXPECT_THAT(device_.asked, ElementsAre("releases", "fetch unmanaged",
                                         "search after releases"));
  device_.ending = 2;
  EXPECT_FALSE(Climbed("outlast releases"));
  EXPECT_EQ(device_.asked.size(), 9u) << "twice more";
  device_.ending = 2;
  device_.serves = "search after releases";
  EXPECT_TRUE(Climbed("outlast releases"));
  EXPECT_EQ(device_.asked.size(), 3u);
  device_.serves = "fetch unmanaged";
  EXPECT_TRUE(Climbed("outlast releases"));
  EXPECT_THAT(device_.asked, ElementsAre("releases", "fetch unmanaged"));
}

TEST_F(RungTest, TheReclaimerTriesBetweenItsEvictions) {
  device_.reclaim = [&](MemoryRequest& request) {
    EXPECT_EQ(request.Missing(), kAsked);
    EXPECT_FALSE(request.Take());
    EXPECT_EQ(request.Missing(), 6 * kMiB) << "as the last try found";
    device_.cannot_fit = true;
    EXPECT_TRUE(request.IsHopeless());
    device_.serves = "search limit";
    return request.Take();
  };
  EXPECT_TRUE(Climbed("evict"));
  EXPECT_THAT(device_.asked,
              ElementsAre("could hold", "reclaim (inside)",
                          "search limit (inside)", "release 6.00 MiB (inside)",
                          "cannot fit (inside)", "search limit (inside)"));
  EXPECT_TRUE(Served());
}

TEST_F(RungTest, NothingIsEvictedForWhatFitsNowhereOrMayNotEvict) {
  device_.could_hold = false;
  EXPECT_FALSE(Climbed("evict"));
  EXPECT_THAT(device_.asked, ElementsAre("could hold"));
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("evict"));
  EXPECT_THAT(device_.asked, IsEmpty());
}

TEST_F(RungTest, WhatCannotGoOnIsToldWhateverMemoryThereIs) {
  device_.serves = "search limit";
  device_.reclaim = [](MemoryRequest& request) {
    EXPECT_TRUE(request.Take());
    request.Fail({ErrorCode::kCorrupt, "damaged"});
    return false;
  };
  EXPECT_TRUE(Climbed("evict"));
  EXPECT_EQ(Message(), "damaged");
  device_.crowded = true;
  EXPECT_TRUE(Climbed("queue behind who waits"));
  EXPECT_EQ(Message(), "damaged");
}

TEST_F(RungTest, ADriverThatFailsEndsWhatTheReclaimerTries) {
  device_.fails = "search limit";
  EXPECT_TRUE(Climbed("evict"));
  EXPECT_EQ(Message(), "CUDA driver error: it failed");
  attempt_.all_unmanaged = true;
  EXPECT_TRUE(Climbed("evict"));
  EXPECT_EQ(Message(), "CUDA error: it failed") << "as native on such a device";
}

TEST_F(RungTest, OthersAreAskedOnceMoreByWhoHadToWait) {
  device_.serves = "search limit";
  EXPECT_FALSE(Climbed("ask others again"));
  EXPECT_THAT(device_.asked, ElementsAre("free memory"));
  device_.frees = true;
  EXPECT_TRUE(Climbed("ask others again"));
  EXPECT_THAT(device_.asked, ElementsAre("free memory", "search limit"));
  attempt_.may_reclaim = false;
  EXPECT_FALSE(Climbed("ask others again"));
  EXPECT_THAT(device_.asked, IsEmpty());
}

TEST_F(RungTest, ARefusalSaysWhetherItWouldHaveFitAnywhere) {
  EXPECT_TRUE(Climbed("refuse"));
  EXPECT_THAT(device_.asked,
              ElementsAre("cannot fit", "release all", "refuse"));
  device_.cannot_fit = true;
  EXPECT_TRUE(Climbed("refuse"));
  EXPECT_EQ(device_.asked.back(), "refuse, fits nowhere");
  attempt_.may_reclaim = false;
  EXPECT_TRUE(Climbed("refuse"));
  EXPECT_THAT(device_.asked, ElementsAre("refuse"));
  EXPECT_EQ(Message(), "no memory");
}

}  // namespace
}  // namespace stratalloc
