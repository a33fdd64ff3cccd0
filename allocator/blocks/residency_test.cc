// SPDX-License-Identifier: Apache-2.0
// The steps by which a handle leaves and returns, each by itself.
#include "allocator/blocks/residency.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr Bytes kHandle = 2 * kMiB;
constexpr Bytes kCard = 64 * kMiB;
const StreamsIdle kIdle = [](std::uint64_t) { return true; };

class ResidencyTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, kCard);
    device_ = std::make_unique<Device>(Device::Open(DeviceIndex{0}).value());
    table_ = HandleTable::Create(*device_, kCard, kHandle).value();
    heap_.emplace(table_, stats_, history_);
    pages_.emplace(*device_);
    events_.emplace(*device_);
    traces_.emplace(history_, *heap_, DeviceIndex{0});
    residency_.emplace(Residency::Parts{*device_, *heap_, *pages_, *events_,
                                        *traces_, live_, stats_, moves_});
    Pool& pool = heap_->PoolOf(
        {.lifetime = LifetimeClass::kPersistent, .kind = PoolKind::kLarge});
    region_ = &table_.region(/*evictable=*/true, PoolKind::kLarge);
    segment_ = heap_->AddSegment(pool, *region_, 4 * kHandle);
    const PageStore::Answer answer =
        pages_->Map(*region_, segment_->base, segment_->base + 2 * kHandle,
                    kCard, /*keeps=*/true, {0, kIdle});
    ASSERT_EQ(answer.mapped, PageStore::Mapped::kYes);
    heap_->NoteMapped(*segment_, 2);
    stats_.reserved_bytes.For(PoolKind::kLarge,
                              [](Stat& s) { s.Increase(2 * kHandle); });
    heap_->Refile(*segment_, segment_->base, segment_->end());
    // One block over the first handle and half of the second.
    block_ = pool.free_blocks().Find(3 * kMiB);
    pool.Unfile(block_);
    pool.File(heap_->Split(block_, 3 * kMiB));
    block_->state = BlockState::kAllocated;
    block_->requested = 3 * kMiB;
    ForEachHandleOf(*block_,
                    [](HandleRef handle, Bytes) { ++handle.entry().live; });
    live_.HandOut(PoolKind::kLarge, 3 * kMiB, 3 * kMiB);
  }
  void TearDown() override {
    cudasim_clear_faults();
    const char* broken = heap_->CheckInvariants();
    EXPECT_EQ(broken, nullptr) << broken;
    for (std::uint64_t i = 0; i < 4; ++i) {
      const HandleRef handle = At(i);
      if (!IsOnDevice(handle.entry().state.load())) continue;
      pages_->GiveUp(handle, handle.entry().physical, 0, /*keeps=*/false);
    }
    pages_->ReleaseFree(kIdle);
    EXPECT_EQ(pages_->ours(), 0u);
    residency_.reset();
    heap_.reset();
    events_.reset();
    pages_.reset();
    table_.Destroy(*device_);
    char text[1024];
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }

  HandleRef At(std::uint64_t number) {
    return {region_, region_->IndexOf(segment_->base) + number};
  }
  HandleEntry& Entry(std::uint64_t number) { return At(number).entry(); }
  HandleState State(std::uint64_t number) { return Entry(number).state.load(); }
  bool Mark(std::uint64_t number) {
    const std::optional<Claim> claim = residency_->Choose(At(number));
    return claim && residency_->Mark(*claim);
  }
  std::vector<Departure> Begun(std::vector<std::uint64_t> numbers) {
    std::vector<Departure> leaving;
    for (std::uint64_t number : numbers) {
      EXPECT_TRUE(Mark(number));
      leaving.push_back({.handle = At(number)});
      EXPECT_TRUE(residency_->BeginEvict(&leaving.back(), ~std::uint64_t{0}));
    }
    return leaving;
  }
  void Evict(std::uint64_t number) {
    std::vector<Departure> leaving = Begun({number});
    residency_->CommitEvict(&leaving, MoveEvents(DeviceIndex{0}, moves_));
    ASSERT_EQ(leaving[0].left, Departure::Left::kAway);
  }
  void BeginRestore(std::uint64_t number) {
    const HandleRef handle = At(number);
    PhysicalMemory* memory = pages_->Take(kHandle, kCard, kIdle).value();
    ASSERT_TRUE(
        residency_->BeginRestore({&handle, 1}, {&memory, 1}).has_value());
  }

  std::unique_ptr<Device> device_;
  HandleTable table_;
  SegmentStats stats_;
  LiveCounters live_;
  History history_;
  std::optional<BlockHeap> heap_;
  std::optional<PageStore> pages_;
  std::optional<EventPool> events_;
  std::optional<BlockTraces> traces_;
  MoveCounts moves_;
  std::optional<Residency> residency_;
  HandleRegion* region_ = nullptr;
  Segment* segment_ = nullptr;
  Block* block_ = nullptr;
};

TEST_F(ResidencyTest, WhatLeftIsNoDeviceMemory) {
  Evict(1);
  EXPECT_EQ(State(1), HandleState::kHost);
  EXPECT_EQ(Entry(1).physical, nullptr) << "a stray access must fault";
  EXPECT_EQ(heap_->away(), 1u);
  EXPECT_EQ(pages_->used_bytes(), kHandle);
  EXPECT_EQ(stats_.reserved_bytes.stats[0].current,
            static_cast<std::int64_t>(kHandle));
  EXPECT_EQ(live_.allocated_bytes(), kHandle) << "of 3 MiB one is away";
  EXPECT_EQ(heap_->OnDevice(*block_).size, kHandle);
  EXPECT_TRUE(Entry(1).has_copy);
  EXPECT_EQ(segment_->mapped, 2u) << "its bytes are somewhere";
  EXPECT_EQ(heap_->BlockAt(At(1).address() + kMiB)->state, BlockState::kParked);
}

TEST_F(ResidencyTest, OnlyWhatLivesAndIsUnpinnedMayLeave) {
  EXPECT_FALSE(Mark(2)) << "no memory";
  ++Entry(0).pins;
  EXPECT_FALSE(Mark(0));
  --Entry(0).pins;
  Entry(0).stays = true;
  EXPECT_FALSE(Mark(0));
  Entry(0).stays = false;
  const std::uint32_t epoch = residency_->epoch();
  EXPECT_TRUE(Mark(0));
  EXPECT_NE(residency_->epoch(), epoch);
  EXPECT_FALSE(Mark(0)) << "it is leaving";
  residency_->AbortEvict(At(0));
  EXPECT_EQ(State(0), HandleState::kResident);
}

TEST_F(ResidencyTest, ClaimOfAHandleUsedSinceIsVoid) {
  const auto used_after = [&](auto&& use) {
    const Claim claim = residency_->Choose(At(0)).value();
    use();
    return !residency_->Mark(claim) && State(0) == HandleState::kResident;
  };
  EXPECT_FALSE(used_after([] {}));
  residency_->AbortEvict(At(0));
  HandleUse& use = At(0).use();
  EXPECT_TRUE(used_after([&] { use.NoteOperator(1, false, 4, 16); }));
  EXPECT_TRUE(used_after([&] { use.NoteHandedOut(1, 4); }));
  EXPECT_TRUE(used_after([&] { use.NoteUnseen(1); })) << "by the same stream";
  EXPECT_TRUE(used_after([&] { ++use.pins; }));
  EXPECT_FALSE(residency_->Choose(At(0)).has_value()) << "it is pinned";
  --use.pins;
  EXPECT_TRUE(used_after([&] { (void)residency_->Choose(At(0)); }))
      << "the later choice has other streams";
}

TEST_F(ResidencyTest, UseBetweenMarkAndBeginEvictKeepsTheHandle) {
  ASSERT_TRUE(Mark(0));
  Departure leaving{.handle = At(0)};
  At(0).use().NoteUnseen(1);
  EXPECT_FALSE(residency_->BeginEvict(&leaving, ~std::uint64_t{0}));
  residency_->AbortEvict(At(0));
}

TEST_F(ResidencyTest, WhoComesAfterTheLookKeepsTheHandle) {
  ASSERT_TRUE(Mark(0));
  Departure leaving{.handle = At(0)};
  Entry(0).used_streams = 6;
  EXPECT_FALSE(residency_->BeginEvict(&leaving, /*users=*/2)) << "stream 2";
  ++Entry(0).pins;
  EXPECT_FALSE(residency_->BeginEvict(&leaving, /*users=*/6));
  --Entry(0).pins;
  ASSERT_TRUE(residency_->BeginEvict(&leaving, /*users=*/6));
  EXPECT_EQ(leaving.used_streams, 6u);
  EXPECT_EQ(Entry(0).used_streams.load(), 0u) << "taken";
  // record_stream while it leaves: nobody waited for that stream.
  Entry(0).used_streams = 8;
  std::vector<Departure> all{leaving};
  residency_->CommitEvict(&all, MoveEvents(DeviceIndex{0}, moves_));
  EXPECT_EQ(all[0].left, Departure::Left::kStayed);
  EXPECT_FALSE(all[0].error.has_value());
  EXPECT_EQ(State(0), HandleState::kResident);
  EXPECT_EQ(Entry(0).used_streams.load(), 14u)
      << "all of them, for the next time";
}

TEST_F(ResidencyTest, WhatStaysWithoutATrueCopyIsDirty) {
  Entry(0).has_copy = Entry(1).has_copy = true;
  Entry(0).dirty = Entry(1).dirty = false;
  std::vector<Departure> leaving = Begun({0, 1});
  EXPECT_TRUE(leaving[0].clean);
  leaving[0].clean = false;  // its checksum differs
  leaving[0].stays = leaving[1].stays = true;
  residency_->CommitEvict(&leaving, MoveEvents(DeviceIndex{0}, moves_));
  EXPECT_TRUE(Entry(0).dirty);
  EXPECT_FALSE(Entry(0).has_copy);
  EXPECT_FALSE(Entry(1).dirty);
  EXPECT_TRUE(Entry(1).has_copy) << "that one is true";
}

TEST_F(ResidencyTest, WhereTheDriverRefusesNothingHasHappened) {
  std::vector<Departure> leaving = Begun({0, 1});
  ASSERT_EQ(cudasim_fail("cuMemUnmap", 1, 1, /*forever=*/1), 0);
  residency_->CommitEvict(&leaving, MoveEvents(DeviceIndex{0}, moves_));
  cudasim_clear_faults();
  for (const Departure& one : leaving) {
    EXPECT_EQ(one.left, Departure::Left::kStayed);
    ASSERT_TRUE(one.error.has_value());
  }
  EXPECT_EQ(State(1), HandleState::kResident);
  EXPECT_EQ(heap_->away(), 0u);
  EXPECT_EQ(live_.allocated_bytes(), 3 * kMiB);
}

TEST_F(ResidencyTest, WhatArrivesIsUsableOnceItsCopyIsComplete) {
  Evict(0);
  EXPECT_FALSE(residency_->Await(At(0), kDefaultStream).value_or(true));
  BeginRestore(0);
  EXPECT_EQ(State(0), HandleState::kCopyingIn);
  EXPECT_EQ(heap_->away(), 0u);
  EXPECT_EQ(live_.allocated_bytes(), 3 * kMiB);
  EXPECT_FALSE(residency_->Await(At(0), kDefaultStream).value_or(true))
      << "its copy is not enqueued";
  const EventId event = events_->Take(kDefaultStream);
  ASSERT_TRUE(device_->RecordEvent(event, kDefaultStream).has_value());
  residency_->CommitRestore({At(0)}, event);
  EXPECT_TRUE(residency_->some_arrive());
  EXPECT_TRUE(residency_->Await(At(0), kDefaultStream).value_or(false));
  EXPECT_EQ(residency_->NewestArrival().event, event);
  residency_->Settle();
  EXPECT_EQ(State(0), HandleState::kResident);
  EXPECT_FALSE(residency_->some_arrive());
  EXPECT_EQ(events_->TakeUnused(), event) << "its event is free again";
  events_->Put(event, kDefaultStream);
}

TEST_F(ResidencyTest, ArrivalsEndUpToTheOneThatWasWaitedFor) {
  Evict(0);
  Evict(1);
  for (const std::uint64_t i : {0, 1}) {
    BeginRestore(i);
    const EventId event = events_->Take(kDefaultStream);
    ASSERT_TRUE(device_->RecordEvent(event, kDefaultStream).has_value());
    residency_->CommitRestore({At(i)}, event);
  }
  residency_->EndArrivals(residency_->NewestArrival().number - 1);
  EXPECT_EQ(State(0), HandleState::kResident);
  EXPECT_EQ(State(1), HandleState::kCopyingIn);
  residency_->EndArrivals(residency_->NewestArrival().number);
  EXPECT_EQ(State(1), HandleState::kResident);
}

TEST_F(ResidencyTest, ARestoreThatFailsLeavesItsHandleWhereItWas) {
  Evict(0);
  const Bytes used = pages_->used_bytes();
  BeginRestore(0);
  residency_->AbortRestore(At(0), HandleState::kDisk);
  EXPECT_EQ(State(0), HandleState::kDisk);
  EXPECT_EQ(heap_->away(), 1u);
  EXPECT_EQ(pages_->used_bytes(), used);
  BeginRestore(0);
  residency_->AbortRestore(At(0), HandleState::kPoisoned);
  EXPECT_EQ(State(0), HandleState::kPoisoned);
}

TEST_F(ResidencyTest, WhatIsFreedWhileAwayIsToldOnce) {
  Evict(0);
  const std::uint32_t before = Entry(0).generation;
  --Entry(0).live;
  --Entry(1).live;
  live_.Free(PoolKind::kLarge, 3 * kMiB, heap_->OnDevice(*block_));
  live_.Complete(PoolKind::kLarge, 3 * kMiB, 3 * kMiB,
                 heap_->OnDevice(*block_));
  residency_->Drop(At(0));
  residency_->Drop(At(1));
  block_->state = BlockState::kFree;
  block_->segment->pool->File(block_);
  heap_->Refile(*segment_, segment_->base, segment_->base + 2 * kHandle);
  EXPECT_EQ(State(0), HandleState::kUnmapped);
  EXPECT_EQ(State(1), HandleState::kResident);
  EXPECT_EQ(heap_->away(), 0u);
  const auto dropped = residency_->TakeDropped();
  ASSERT_EQ(dropped.size(), 1u) << "the other had no copy";
  EXPECT_EQ(dropped[0].first, At(0));
  EXPECT_EQ(dropped[0].second, before + 1);
  EXPECT_TRUE(residency_->TakeDropped().empty());
}

TEST_F(ResidencyTest, ALowerCopyThatIsGivenUpChangesWhereTheBytesAre) {
  Evict(0);
  residency_->NoteHostCopyGone(At(0), /*written=*/true, /*on_disk=*/true,
                               MoveEvents(DeviceIndex{0}, moves_));
  EXPECT_EQ(State(0), HandleState::kDisk);
  EXPECT_FALSE(residency_->NoteChunkGone(At(0), false)) << "the only copy";
  Entry(0).state = HandleState::kHostAndDisk;
  EXPECT_TRUE(residency_->NoteChunkGone(At(0), true));
  EXPECT_EQ(State(0), HandleState::kHost);
  // Of a handle that is here the copy was a convenience.
  Entry(1).has_copy = true;
  Entry(1).dirty = false;
  residency_->NoteHostCopyGone(At(1), false, /*on_disk=*/true,
                               MoveEvents(DeviceIndex{0}, moves_));
  EXPECT_TRUE(Entry(1).has_copy);
  EXPECT_TRUE(residency_->NoteChunkGone(At(1), /*in_host=*/false));
  EXPECT_FALSE(Entry(1).has_copy);
  EXPECT_TRUE(Entry(1).dirty);
}

TEST_F(ResidencyTest, SpaceThatIsAwayIsFoundByWhoCouldUseIt) {
  const Pool& pool = *segment_->pool;
  EXPECT_EQ(residency_->FindAwaySpace(pool, *region_, 512), 0u);
  Evict(1);  // its second MiB is free
  EXPECT_EQ(residency_->FindAwaySpace(pool, *region_, 512),
            At(1).address() + kMiB);
  EXPECT_EQ(residency_->FindAwaySpace(pool, *region_, kMiB + 512), 0u);
  Entry(1).state = HandleState::kPoisoned;
  EXPECT_EQ(residency_->FindAwaySpace(pool, *region_, 512), 0u);
}

}  // namespace
}  // namespace stratalloc
