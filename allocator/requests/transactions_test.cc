// SPDX-License-Identifier: Apache-2.0
// What tiering asks of one device, step by step; no bytes are copied.
#include "allocator/requests/transactions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "allocator/requests/device_parts_fixture_test.h"

namespace stratalloc {
namespace {

constexpr auto kArriving = static_cast<std::uint32_t>(SlowReason::kArrivals);
using Handles = std::vector<HandleRef>;

class TransactionsTest : public DevicePartsTest {
 protected:
  void SetUp() override {
    DevicePartsTest::SetUp();
    waits_.emplace(parts());
    transactions_.emplace(parts(), *waits_);
    stream_ = NewStream();
  }
  Transactions& transactions() { return *transactions_; }
  static Handles Of(Block* block) {
    Handles handles;
    ForEachHandleOf(
        *block, [&](HandleRef handle, Bytes) { handles.push_back(handle); });
    return handles;
  }
  static std::vector<Address> AddressesOf(
      const std::vector<EvictableHandle>& all) {
    std::vector<Address> addresses;
    for (const EvictableHandle& one : all) {
      addresses.push_back(one.handle.address());
    }
    return addresses;
  }
  std::vector<Departure> Marked(const Handles& handles) {
    return transactions().MarkLeaving(transactions().ChooseLeaving(handles));
  }
  void Evict(const Handles& handles) {
    std::vector<Departure> leaving = Marked(handles);
    transactions().BeginEvict(&leaving, ~std::uint64_t{0}, {}, true);
    ASSERT_EQ(leaving.size(), handles.size());
    transactions().EndFencing();
    transactions().CommitEvict(&leaving,
                               MoveEvents(DeviceIndex{0}, parts().moves));
    for (const HandleRef handle : handles) {
      ASSERT_EQ(handle.state(), HandleState::kHost);
    }
  }
  std::vector<PhysicalMemory*> Memory(std::size_t count) {
    std::vector<PhysicalMemory*> memory;
    for (std::size_t i = 0; i < count; ++i) {
      memory.push_back(transactions().TakePhysical(kHandle).value());
    }
    return memory;
  }
  // On its way back, behind work of `stream_` that is not done.
  void BeginArrival(const Handles& handles) {
    ASSERT_EQ(
        transactions().BeginRestore(handles, Memory(handles.size())).value(),
        handles.size());
    cudasim_hold_streams(1);
    Work(stream_);
    const EventId event = transactions().TakeEvent();
    ASSERT_TRUE(parts().device.RecordEvent(event, stream_).has_value());
    transactions().CommitRestore(handles, event);
  }
  void FinishWork() {
    cudasim_hold_streams(0);
    ASSERT_EQ(cudaStreamSynchronize(streams_[0]), cudaSuccess);
  }
  void Capture(bool on) {
    if (on) {
      ASSERT_EQ(
          cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeRelaxed),
          cudaSuccess);
      ASSERT_TRUE(parts().captures.Note(stream_));
      return;
    }
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }

  std::optional<DeviceWaits> waits_;
  std::optional<Transactions> transactions_;
  StreamId stream_{};
};

TEST_F(TransactionsTest, OnlyWhatMayLeaveIsListedByAddress) {
  PoolKey transient = kLarge;
  transient.lifetime = LifetimeClass::kTransient;
  PoolKey gradient = kLarge;
  gradient.lifetime = LifetimeClass::kGradient;
  Block* const stays = Malloc(transient, 2 * kHandle);
  Block* const second = Malloc(gradient, kHandle);
  Block* const first = Malloc(kLarge, 2 * kHandle);
  const std::vector<EvictableHandle> all = transactions().Evictable();
  const std::vector<Address> addresses = AddressesOf(all);
  EXPECT_EQ(addresses.size(), 3u);
  EXPECT_TRUE(std::is_sorted(addresses.begin(), addresses.end()));
  EXPECT_EQ(std::count(addresses.begin(), addresses.end(), stays->address), 0);
  for (const EvictableHandle& one : all) {
    EXPECT_TRUE(one.lives && !one.pinned && !one.clean);
  }
  Evict(Of(first));
  EXPECT_EQ(AddressesOf(transactions().Evictable()), addresses)
      << "what is away is listed too";
  for (Block* block : {stays, second, first}) Free(block);
}

TEST_F(TransactionsTest, PinnedAndFreeHandlesAndLibrariesOnesAreNoCandidates) {
  Block* const pinned = Malloc(kLarge, kHandle);
  Block* const goes = Malloc(kLarge, kHandle);
  Block* const library = Malloc(kLarge, kHandle);
  Block* const freed = Malloc(kLarge, kHandle);
  const BlockPin pin = parts().pins.Pin(*pinned, PinReason::kProgram);
  Free(freed);
  EXPECT_EQ(transactions().Evictable().size(), 4u);
  EXPECT_EQ(AddressesOf(transactions().Candidates({library->address})),
            std::vector<Address>{goes->address});
  EXPECT_TRUE(parts().pins.Unpin(pin, /*unobserved=*/false));
  for (Block* block : {pinned, goes, library}) Free(block);
}

TEST_F(TransactionsTest, WhatArrivedIsACandidateOnceItsCopyIsOver) {
  Block* const block = Malloc(kLarge, kHandle);
  Evict(Of(block));
  BeginArrival(Of(block));
  EXPECT_TRUE(transactions().Candidates({}).empty());
  FinishWork();
  EXPECT_EQ(transactions().Candidates({}).size(), 1u);
  Free(block);
}

TEST_F(TransactionsTest, NothingIsBegunWhereBytesMayNotLeave) {
  Block* const block = Malloc(kLarge, 2 * kHandle);
  std::vector<Departure> marked = Marked(Of(block));
  EXPECT_EQ(marked.size(), 2u);
  Capture(true);
  EXPECT_FALSE(transactions().BeginFencing());
  transactions().BeginEvict(&marked, ~std::uint64_t{0}, {}, true);
  EXPECT_TRUE(marked.empty()) << "the capture came between";
  EXPECT_EQ(parts().fencing, 0) << "no end is owed";
  EXPECT_TRUE(Marked(Of(block)).empty());
  EXPECT_EQ(Of(block)[0].state(), HandleState::kResident);
  Capture(false);
  ASSERT_TRUE(transactions().BeginFencing());
  ASSERT_TRUE(transactions().BeginFencing());
  EXPECT_EQ(parts().fencing, 2);
  transactions().EndFencing();
  transactions().EndFencing();
  EXPECT_EQ(parts().fencing, 0);
  Free(block);
}

TEST_F(TransactionsTest, WhoMayNotGoIsTakenOutAndStays) {
  Block* const block = Malloc(kLarge, 4 * kHandle);
  const Handles handles = Of(block);
  std::vector<Departure> marked = Marked(handles);
  ASSERT_EQ(marked.size(), 4u);
  const std::uint64_t seen = 1;  // the default stream, which it is for
  handles[1].use().NoteStream(2);
  handles[2].use().pins.fetch_add(1);
  transactions().BeginEvict(&marked, seen, {}, true);
  ASSERT_EQ(marked.size(), 2u);
  EXPECT_EQ(marked[0].handle, handles[0]);
  EXPECT_EQ(marked[1].handle, handles[3]);
  EXPECT_EQ(parts().fencing, 1);
  transactions().EndFencing();
  EXPECT_EQ(handles[1].state(), HandleState::kResident);
  EXPECT_EQ(handles[2].state(), HandleState::kResident);
  transactions().CommitEvict(&marked,
                             MoveEvents(DeviceIndex{0}, parts().moves));
  EXPECT_EQ(transactions().AwayOf(handles), (Handles{handles[0], handles[3]}));
  handles[2].use().pins.fetch_sub(1);
  marked = Marked(Handles{handles[1]});
  transactions().BeginEvict(&marked, 3, {block->address}, true);
  EXPECT_TRUE(marked.empty()) << "it is a library's by now";
  EXPECT_EQ(handles[1].state(), HandleState::kResident);
  Free(block);
}

TEST_F(TransactionsTest, ARestoreTakesAsManyAsLieSideBySide) {
  Block* const one = Malloc(kLarge, 2 * kHandle);
  Block* const between = Malloc(kLarge, kHandle);
  Block* const two = Malloc(kLarge, kHandle);
  Handles away = Of(one);
  away.push_back(Of(two)[0]);
  Evict(away);
  const std::vector<PhysicalMemory*> memory = Memory(3);
  EXPECT_EQ(transactions().BeginRestore(away, memory).value(), 2u);
  transactions().CommitRestore({away[0], away[1]}, kNoEvent);
  EXPECT_EQ(away[2].state(), HandleState::kHost);
  Free(two);
  EXPECT_EQ(
      transactions().BeginRestore(Handles{away[2]}, {&memory[2], 1}).value(),
      0u)
      << "it was freed meanwhile";
  transactions().PutPhysical(memory[2]);
  for (Block* block : {one, between}) Free(block);
}

TEST_F(TransactionsTest, ARestoreThatFailsHasChangedNothing) {
  Block* const block = Malloc(kLarge, kHandle);
  const Handles handles = Of(block);
  Evict(handles);
  const std::vector<PhysicalMemory*> memory = Memory(1);
  const Bytes reserved = Reserved();
  ASSERT_EQ(cudasim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, 0), 0);
  EXPECT_FALSE(transactions().BeginRestore(handles, memory).has_value());
  EXPECT_EQ(handles[0].state(), HandleState::kHost);
  EXPECT_EQ(Reserved(), reserved);
  // The memory is still the caller's.
  EXPECT_EQ(transactions().BeginRestore(handles, memory).value(), 1u);
  transactions().AbortRestore(handles[0], HandleState::kHost);
  EXPECT_EQ(transactions().AwayOf(handles), handles);
  Free(block);
}

TEST_F(TransactionsTest, AStreamWaitsForWhatIsOnItsWayUnlessItCaptures) {
  Block* const block = Malloc(kLarge, 2 * kHandle);
  const Handles handles = Of(block);
  Evict(handles);
  BeginArrival({handles[0]});
  const auto await = [&](StreamId stream, const Handles& wanted,
                         Handles* used) {
    std::vector<GuardedHandle> guarded;
    for (const HandleRef handle : wanted) guarded.push_back({handle, false});
    used->clear();
    return transactions()
        .Await(stream, guarded,
               [&](const GuardedHandle& one) { used->push_back(one.handle); })
        .value();
  };
  const StreamId other = NewStream();
  Handles used;
  EXPECT_FALSE(await(other, handles, &used)) << "the second is away";
  EXPECT_EQ(used, Handles{handles[0]});
  EXPECT_TRUE(await(other, {handles[0]}, &used));
  EXPECT_FALSE(parts().device.IsIdle(other)) << "it waits for the copy";
  FinishWork();
  Capture(true);
  EXPECT_FALSE(await(stream_, {handles[0]}, &used));
  EXPECT_TRUE(used.empty());
  Capture(false);
  EXPECT_TRUE(transactions().DrainArrivals().has_value());
  EXPECT_EQ(handles[0].state(), HandleState::kResident);
  EXPECT_EQ(parts().slow.word() & kArriving, 0u);
  Free(block);
}

TEST_F(TransactionsTest, MemoryForARestoreIsTradedFromWhatIsCached) {
  Block* const full = Malloc(kLarge, kCard);
  const long created = cudasim_calls("cuMemCreate");
  EXPECT_EQ(transactions().TakePhysical(kHandle).error().code,
            ErrorCode::kOutOfMemory);
  Free(full);
  const Result<PhysicalMemory*> memory = transactions().TakePhysical(kHandle);
  ASSERT_TRUE(memory.has_value()) << memory.error().message;
  EXPECT_EQ(Reserved(), kCard - kHandle);
  transactions().PutPhysical(*memory);
  EXPECT_EQ(transactions().TakePhysical(kHandle).value(), *memory);
  EXPECT_EQ(cudasim_calls("cuMemCreate"), created);
  transactions().PutPhysical(*memory);
}

TEST_F(TransactionsTest, EventsAreKeptAndNoneIsNoFailure) {
  const EventId event = transactions().TakeEvent();
  transactions().PutEvent(event);
  EXPECT_EQ(transactions().TakeEvent(), event);
  ASSERT_EQ(cudasim_fail("cudaEventCreateWithFlags", 1, cudaErrorUnknown, 0),
            0);
  EXPECT_EQ(transactions().TakeEvent(), kNoEvent);
  transactions().PutEvent(event);
}

TEST_F(TransactionsTest, BytesByTierAddUpToTheRange) {
  Block* const block = Malloc(kLarge, 3 * kHandle);
  const Handles handles = Of(block);
  Evict({handles[1]});
  const Bytes before = kMiB / 2;
  const auto tiers =
      transactions().TiersOf(block->address + before, 3 * kHandle - 2 * before);
  const auto on = [&](TierId tier) {
    return tiers[static_cast<std::size_t>(tier)];
  };
  EXPECT_EQ(on(TierId::kDevice), 2 * (kHandle - before));
  EXPECT_EQ(on(TierId::kHost), kHandle);
  EXPECT_EQ(on(TierId::kDisk), 0u);
  const auto live = transactions().LiveOver(handles[1]);
  ASSERT_EQ(live.size(), 1u);
  EXPECT_EQ(live[0].first, kOwner);
  EXPECT_EQ(live[0].second, kHandle);
  Free(block);
}

}  // namespace
}  // namespace stratalloc
