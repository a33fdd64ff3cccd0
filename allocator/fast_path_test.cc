// SPDX-License-Identifier: Apache-2.0
// Blocks that come out of bins and go back into them: whose they are, what
// the numbers say meanwhile, and who makes them merge again.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "allocator/device_allocator.h"
#include "allocator/moving_test.h"
#include "allocator/requests/two_accounts_test.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"

namespace stratalloc {

// Sets what features set, without one.
class DeviceAllocatorTestPeer {
 public:
  static void SetSlowReason(DeviceAllocator& allocator, SlowReason reason,
                            bool on) {
    MutexLock lock(allocator.p_.mutex);
    allocator.p_.slow.Set(reason, on);
  }
};

namespace {

constexpr Charge kOther{ScopeId{4}, Category::kActivation};

class FastPathTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_mode(1);
    cudasim_set_capacity(0, 256 * kMiB);
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device.has_value()) << device.error().message;
    auto made = DeviceAllocator::Create(*device, {});
    ASSERT_TRUE(made.has_value()) << made.error().message;
    allocator_ = std::move(*made);
    allocator_->SetAccounts(&books_);
  }
  void TearDown() override {
    ExpectSound();
    EXPECT_EQ(books_.device.on_device.load(), 0u);
    allocator_.reset();
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    EXPECT_EQ(cudasim_violation_count(), 0);
  }
  StreamId NewStream() {
    cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    return StreamId{reinterpret_cast<std::uint64_t>(stream_)};
  }
  void ExpectSound() {
    const Status status = allocator_->CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  bool Fast(Bytes bytes, AllocatedBlock* block, Charge charge = kOwner,
            LifetimeClass lifetime = LifetimeClass::kUnknown,
            StreamId stream = kDefaultStream) {
    return allocator_->FastMalloc(bytes, stream, lifetime, charge, block);
  }
  Address Malloc(Bytes bytes, Charge charge = kOwner,
                 LifetimeClass lifetime = LifetimeClass::kUnknown) {
    auto block = allocator_->Malloc({bytes, kDefaultStream, lifetime, charge});
    EXPECT_TRUE(block.has_value());
    return block ? block->address : 0;
  }
  void SetSlowReason(SlowReason reason, bool on) {
    DeviceAllocatorTestPeer::SetSlowReason(*allocator_, reason, on);
  }

  TwoAccounts books_;
  LimitedSum limit_;
  std::unique_ptr<DeviceAllocator> allocator_;
  AllocatedBlock block_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(FastPathTest, BothPathsTellWhatTheDeviceHasAfterwards) {
  const auto expect = [&](const AllocatedBlock& told, Bytes allocated) {
    EXPECT_EQ(told.bytes, 1024u);
    EXPECT_EQ(told.allocated_bytes, allocated);
    EXPECT_EQ(told.reserved_bytes, 2 * kMiB);
    EXPECT_EQ(told.charge, kOwner);
  };
  const auto made = allocator_->SlowMalloc(
      {1000, kDefaultStream, LifetimeClass::kUnknown, kOwner});
  ASSERT_TRUE(made.has_value());
  expect(*made, 1024);
  const auto freed = allocator_->SlowFree(made->address);
  ASSERT_TRUE(freed.has_value());
  expect(*freed, 0);
  ASSERT_TRUE(Fast(1000, &block_));
  expect(block_, 1024);
  ASSERT_TRUE(allocator_->FastFree(block_.address, &block_));
  expect(block_, 0);
}

TEST_F(FastPathTest, AFreedBlockServesTheNextOfItsSizeOnly) {
  EXPECT_FALSE(Fast(1000, &block_)) << "nothing in the bins yet";
  const Address first = Malloc(1000);
  ASSERT_TRUE(allocator_->FastFree(first, &block_));
  EXPECT_EQ(block_.bytes, 1024u);
  // Another size takes what fits best of the memory that was given back.
  ASSERT_TRUE(Fast(1025, &block_));
  EXPECT_EQ(block_.address, first + 1024);
  EXPECT_TRUE(allocator_->Free(block_.address).has_value());
  EXPECT_FALSE(Fast(1000, &block_, kOwner, LifetimeClass::kTransient));
  EXPECT_FALSE(
      Fast(1000, &block_, kOwner, LifetimeClass::kUnknown, StreamId{4096}));
  ASSERT_TRUE(Fast(700, &block_)) << "what rounds to the same size";
  EXPECT_EQ(block_.address, first);
  EXPECT_EQ(allocator_->Stats().requested_bytes.stats[0].current, 700);
  ASSERT_TRUE(Fast(700, &block_)) << "it is taken: the next fit";
  EXPECT_NE(block_.address, first);
  EXPECT_TRUE(allocator_->Free(block_.address).has_value());
  EXPECT_TRUE(allocator_->Free(first).has_value());
}

TEST_F(FastPathTest, WhatIsNotMappedIsTheWholeWay) {
  const Address first = Malloc(3 * kMiB);
  const Bytes handle = allocator_->table().RegionOf(first)->handle_bytes;
  EXPECT_FALSE(Fast(2 * handle, &block_));
  ExpectSound();
  // A larger block in a bin may fit better than any that was given back.
  const Address waiting = Malloc(4000);
  const Address beside = Malloc(1000);
  EXPECT_TRUE(allocator_->FastFree(waiting, &block_));
  ASSERT_TRUE(Fast(2000, &block_));
  EXPECT_EQ(block_.address, waiting);
  for (const Address at : {waiting, beside, first}) {
    EXPECT_TRUE(allocator_->Free(at).has_value());
  }
}

TEST_F(FastPathTest, NothingAndTooMuchAreTheWholeWays) {
  EXPECT_FALSE(Fast(0, &block_));
  EXPECT_FALSE(Fast(~Bytes{0}, &block_));
  EXPECT_FALSE(Fast(BlockBins::kMaxBytes + 1, &block_));
}

TEST_F(FastPathTest, ABlockIsFreedOnce) {
  const Address a = Malloc(512);
  ASSERT_TRUE(allocator_->Free(a).has_value());
  EXPECT_FALSE(allocator_->Free(a).has_value());
  EXPECT_FALSE(allocator_->Owns(a));
  EXPECT_FALSE(allocator_->FastFree(a + 8, &block_));
  EXPECT_FALSE(allocator_->FastFree(0, &block_));
}

TEST_F(FastPathTest, WhoPaysIsAskedEveryTime) {
  const Address a = Malloc(512, kOwner);
  EXPECT_EQ(books_.owner.live.load(), 512u);
  allocator_->Free(a);
  ASSERT_TRUE(Fast(512, &block_, kOther));
  EXPECT_EQ(books_.owner.live.load(), 0u);
  EXPECT_EQ(books_.other.live.load(), 512u);
  EXPECT_EQ(books_.other.peak.load(), 512u);
  allocator_->Relabel(a, 512, kOwner, false);
  allocator_->Free(a);
  EXPECT_EQ(books_.owner.live.load(), 0u) << "credited where it was moved to";
  EXPECT_EQ(books_.other.live.load(), 0u);
}

// What a limited scope asks for takes the whole way; others, and every free,
// stay on the short one.
TEST_F(FastPathTest, OnlyALimitedScopeIsAsked) {
  const Address a = Malloc(512), b = Malloc(512, kOther);
  books_.owners_scope.limited = &limit_;
  allocator_->ChangeScopeLimits([] { return true; });
  EXPECT_TRUE(allocator_->FastFree(a, &block_));
  EXPECT_TRUE(allocator_->FastFree(b, &block_));
  EXPECT_FALSE(Fast(512, &block_, kOwner));
  ASSERT_TRUE(Fast(512, &block_, kOther));
  EXPECT_TRUE(allocator_->Free(block_.address).has_value());
  allocator_->ChangeScopeLimits([] { return false; });
  ASSERT_TRUE(Fast(512, &block_, kOwner));
  EXPECT_TRUE(allocator_->Free(block_.address).has_value());
}

TEST_F(FastPathTest, AScopeOwnsWhatItMayAndIsRefusedTheRest) {
  books_.owners_scope.limited = &limit_;
  books_.may_own = 4 * kMiB;
  allocator_->ChangeScopeLimits([] { return true; });
  const Address first = Malloc(3 * kMiB);
  const auto reserved = allocator_->Stats().reserved_bytes.stats[0].current;
  const auto refused = allocator_->Malloc(
      {2 * kMiB, kDefaultStream, LifetimeClass::kUnknown, kOwner});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, ErrorCode::kLimited);
  EXPECT_EQ(refused.error().message, "may not");
  EXPECT_EQ(allocator_->Stats().num_ooms, 1);
  EXPECT_EQ(allocator_->Stats().reserved_bytes.stats[0].current, reserved)
      << "nothing was fetched for it";
  const Address others = Malloc(2 * kMiB, kOther);
  EXPECT_EQ(books_.owner.live.load(), 3 * kMiB);
  EXPECT_TRUE(allocator_->Free(first).has_value());
  const Address again = Malloc(4 * kMiB);
  for (const Address at : {others, again}) {
    EXPECT_TRUE(allocator_->Free(at).has_value());
  }
  allocator_->ChangeScopeLimits([] { return false; });
}

// Eight threads ask for a third of what is left each: never more than two have
// it at a time.
TEST_F(FastPathTest, ALimitHoldsAmongThreads) {
  books_.owners_scope.limited = &limit_;
  books_.may_own = 6 * kMiB;
  allocator_->ChangeScopeLimits([] { return true; });
  std::atomic<int> had{0}, refused{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto block = allocator_->Malloc(
            {2 * kMiB, kDefaultStream, LifetimeClass::kUnknown, kOwner});
        if (!block) {
          ++refused;
          continue;
        }
        ++had;
        EXPECT_TRUE(allocator_->Free(block->address).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(had + refused, 8 * 200);
  EXPECT_GE(had, 3);
  EXPECT_LE(books_.owners_scope.peak.load(), 6 * kMiB);
  allocator_->ChangeScopeLimits([] { return false; });
}

TEST_F(FastPathTest, AnyOtherReasonClosesIt) {
  const Address a = Malloc(512);
  SetSlowReason(SlowReason::kPoolFilter, true);
  EXPECT_FALSE(allocator_->FastFree(a, &block_));
  SetSlowReason(SlowReason::kPoolFilter, false);
  EXPECT_TRUE(allocator_->FastFree(a, &block_));
  SetSlowReason(SlowReason::kPoolFilter, true);
  EXPECT_FALSE(Fast(512, &block_));
  SetSlowReason(SlowReason::kPoolFilter, false);
  EXPECT_TRUE(Fast(512, &block_));
  allocator_->Free(a);
}

TEST_F(FastPathTest, HistoryIsWrittenOnTheWay) {
  const Address a = Malloc(512);
  History::Options options;
  options.enabled = true;
  options.max_entries = 10;
  allocator_->ConfigureHistory(options);
  ASSERT_TRUE(allocator_->FastFree(a, &block_));
  ASSERT_TRUE(Fast(500, &block_));
  const std::vector<TraceEvent> events = allocator_->Traces();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].action, TraceAction::kFreeRequested);
  EXPECT_EQ(events[1].action, TraceAction::kFreeCompleted);
  EXPECT_EQ(events[2].action, TraceAction::kAlloc);
  EXPECT_EQ(events[1].bytes, 512u);
  EXPECT_EQ(events[2].bytes, 500u) << "what was asked for";
  EXPECT_EQ(events[2].address, a);
  allocator_->ConfigureHistory({});
  allocator_->Free(a);
}

// A block that another stream used is free from the first malloc on that finds
// its event done, be that one out of a bin.
TEST_F(FastPathTest, OutstandingEventsAreLookedAtOnTheWay) {
  const StreamId stream = NewStream();
  const Address used = Malloc(1024);
  const Address binned = Malloc(512);
  ASSERT_TRUE(allocator_->RecordStream(used, stream).has_value());
  ASSERT_TRUE(allocator_->Free(used).has_value());
  ASSERT_TRUE(allocator_->FastFree(binned, &block_));
  EXPECT_EQ(allocator_->Stats().active.stats[0].current, 1) << "pending";
  ASSERT_TRUE(Fast(512, &block_));
  EXPECT_EQ(allocator_->Stats().active.stats[0].current, 1) << "binned alone";
  EXPECT_EQ(block_.address, binned);
  allocator_->Free(binned);
}

// So it is with memory that was on its way back from the host.
TEST_F(FastPathTest, ArrivalsAreSettledOnTheWay) {
  const Address a = Malloc(4 * kMiB);
  const Address binned = Malloc(512);
  HandleRegion& region = *allocator_->table().RegionOf(a);
  const HandleRef handle{&region, region.IndexOf(a)};
  EvictToHost(*allocator_, handle);
  auto memory = allocator_->TakePhysical(handle.bytes());
  ASSERT_TRUE(memory.has_value());
  const Address other = Malloc(512);  // handed out since: may be binned
  const EventId event = allocator_->TakeEvent();
  ASSERT_TRUE(allocator_->device().RecordEvent(event, kDefaultStream));
  Restore(*allocator_, handle, *memory, event);
  cudaDeviceSynchronize();
  ASSERT_TRUE(allocator_->FastFree(other, &block_));
  EXPECT_EQ(handle.entry().state.load(), HandleState::kCopyingIn);
  ASSERT_TRUE(Fast(512, &block_));
  EXPECT_EQ(handle.entry().state.load(), HandleState::kResident);
  allocator_->Free(block_.address);
  allocator_->Free(binned);
  allocator_->Free(a);
}

TEST_F(FastPathTest, RecordedStreamsTakeTheWholeWay) {
  const StreamId stream = NewStream();
  const Address a = Malloc(512);
  ASSERT_TRUE(allocator_->RecordStream(a, stream).has_value());
  EXPECT_FALSE(allocator_->FastFree(a, &block_));
  EXPECT_TRUE(allocator_->Free(a).has_value());
  EXPECT_TRUE(allocator_->EmptyCache().has_value());
}

TEST_F(FastPathTest, MemoryDoesNotGrowWhileBinsHoldEnoughOfIt) {
  // 60 MiB of one segment in 2 MiB blocks, all in bins; then one that needs
  // them merged.
  constexpr Bytes kPiece = 2 * kMiB;
  std::vector<Address> pieces;
  for (int i = 0; i < 30; ++i) {
    pieces.push_back(Malloc(kPiece));
  }
  const auto reserved = allocator_->Stats().reserved_bytes.stats[0].current;
  for (Address piece : pieces) allocator_->Free(piece);
  const Address whole = Malloc(30 * kPiece);
  EXPECT_EQ(whole, pieces.front());
  EXPECT_EQ(allocator_->Stats().reserved_bytes.stats[0].current, reserved);
  allocator_->Free(whole);
  EXPECT_TRUE(allocator_->EmptyCache().has_value());
  EXPECT_EQ(allocator_->Stats().reserved_bytes.stats[0].current, 0);
}

TEST_F(FastPathTest, BinnedBlocksAreFreeForEverybody) {
  const Address keep = Malloc(512);
  const Address a = Malloc(512);
  allocator_->Free(a);
  const DeviceStats stats = allocator_->Stats();
  EXPECT_EQ(stats.allocation.stats[1].current, 1);
  EXPECT_EQ(stats.active.stats[1].current, 1);
  EXPECT_EQ(stats.active.stats[1].peak, 2);
  EXPECT_EQ(stats.active.stats[1].freed, 1);
  EXPECT_EQ(stats.active_bytes.stats[0].current, 512);
  int live = 0, blocks = 0;
  for (const SegmentView& segment : allocator_->Snapshot()) {
    for (const BlockView& block : segment.blocks) {
      ++blocks;
      if (IsLive(block.state)) ++live;
      EXPECT_NE(block.state, BlockState::kBinned);
    }
  }
  EXPECT_EQ(live, 1);
  EXPECT_EQ(blocks, 2) << "the freed block merged with the rest";
  allocator_->Free(keep);
}

TEST_F(FastPathTest, AHandleThatHoldsOnlyBinnedBlocksDoesNotLeave) {
  const Address a = Malloc(4 * kMiB);
  HandleRegion& region = *allocator_->table().RegionOf(a);
  const HandleRef handle{&region, region.IndexOf(a)};
  ASSERT_TRUE(region.evictable);
  allocator_->Free(a);
  EXPECT_FALSE(MayLeave(*allocator_, a));
  EXPECT_EQ(handle.entry().live, 0u);
  Fast(4 * kMiB, &block_);
  EXPECT_EQ(handle.entry().live, 1u) << "the bins were emptied";
  EXPECT_TRUE(allocator_->Free(block_.address).has_value());
}

TEST_F(FastPathTest, ABlockFromBeforeAnEvictionIsFreedTheWholeWay) {
  const Address a = Malloc(4 * kMiB);
  const Address b = Malloc(4 * kMiB);
  HandleRegion& region = *allocator_->table().RegionOf(b);
  const HandleRef handle{&region, region.IndexOf(b)};
  std::vector<Departure> marked = MarkLeaving(*allocator_, handle);
  ASSERT_EQ(marked.size(), 1u);
  EXPECT_FALSE(allocator_->FastFree(b, &block_)) << "it may be away";
  TakeBack(*allocator_, std::move(marked));
  EXPECT_FALSE(allocator_->FastFree(a, &block_));
  EXPECT_TRUE(allocator_->Free(a).has_value());
  EXPECT_TRUE(allocator_->Free(b).has_value());
  const Address c = Malloc(4 * kMiB);
  EXPECT_TRUE(allocator_->FastFree(c, &block_)) << "handed out since";
}

TEST_F(FastPathTest, ThreadsShareBinsAndEveryNumberAddsUp) {
  constexpr int kThreads = 4, kRounds = 4000;
  const Bytes sizes[] = {512, 4096, 64 * kKiB, 700 * kKiB, 2 * kMiB};
  // Blocks travel: freed by whoever finds them here.
  std::atomic<Address> mail[8] = {};
  std::atomic<int> broken{0};
  const auto run = [&](int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    std::vector<Address> mine;
    for (int i = 0; i < kRounds; ++i) {
      const Charge charge = random() % 2 == 0 ? kOwner : kOther;
      const LifetimeClass lifetime = random() % 2 == 0
                                         ? LifetimeClass::kUnknown
                                         : LifetimeClass::kTransient;
      auto block = allocator_->Malloc(
          {sizes[random() % 5], kDefaultStream, lifetime, charge});
      if (!block) {
        ++broken;
        continue;
      }
      if (const Address other = mail[random() % 8].exchange(block->address)) {
        mine.push_back(other);
      }
      while (mine.size() > 6) {
        std::swap(mine[random() % mine.size()], mine.back());
        if (!allocator_->Free(mine.back())) ++broken;
        mine.pop_back();
      }
      // What must see merged memory, now and then.
      switch (random() % 512) {
        case 0:
          if (!allocator_->CheckInvariants()) ++broken;
          break;
        case 1:
          if (!allocator_->EmptyCache()) ++broken;
          break;
        case 2:
          allocator_->Snapshot();
          break;
        default:
          break;
      }
    }
    for (Address address : mine) {
      if (!allocator_->Free(address)) ++broken;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) threads.emplace_back(run, t);
  for (std::thread& thread : threads) thread.join();
  for (auto& slot : mail) {
    if (const Address address = slot.load()) {
      EXPECT_TRUE(allocator_->Free(address).has_value());
    }
  }
  EXPECT_EQ(broken.load(), 0);
  const DeviceStats stats = allocator_->Stats();
  EXPECT_EQ(stats.allocation.stats[0].current, 0);
  EXPECT_EQ(stats.allocation.stats[0].allocated, kThreads * kRounds);
  EXPECT_EQ(stats.allocation.stats[0].freed, kThreads * kRounds);
  EXPECT_EQ(stats.active_bytes.stats[0].current, 0);
  EXPECT_EQ(books_.owner.live.load() + books_.other.live.load(), 0u);
  EXPECT_EQ(static_cast<std::int64_t>(books_.owner.Allocated() +
                                      books_.other.Allocated()),
            stats.allocated_bytes.stats[0].allocated);
}

}  // namespace
}  // namespace stratalloc
