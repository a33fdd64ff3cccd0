// SPDX-License-Identifier: Apache-2.0
// Four devices behind one Allocator: each is opened by who uses it, once; what
// cannot be opened costs the others nothing; what was set before holds.
#include "allocator/allocator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr DeviceIndex kFirst{0}, kSecond{1}, kLast{3};

class AllocatorTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_reset_for_testing();
    for (int i = 0; i < 4; ++i) cudasim_set_capacity(i, 64 * kMiB);
    DeviceAllocator::Options options;
    options.segment_least = 4 * kMiB;
    ASSERT_TRUE(all()
                    .Init(4, options,
                          {[this](DeviceAllocator& device) -> Status {
                             const DeviceIndex index = device.device().index();
                             plugged_.push_back(static_cast<int>(index));
                             EXPECT_EQ(all().Find(index), nullptr);
                             if (refuse_) {
                               return Fail(ErrorCode::kDevice, "not today");
                             }
                             return {};
                           },
                           [this](DeviceAllocator& device) {
                             const DeviceIndex index = device.device().index();
                             opened_.push_back(static_cast<int>(index));
                             EXPECT_EQ(all().Find(index), &device);
                           }})
                    .has_value());
  }
  void TearDown() override {
    all_.reset();
    EXPECT_TRUE(opened_here_.InOrder().empty());
    char text[1024] = "";
    cudasim_leak_report(text, sizeof(text));
    EXPECT_STREQ(text, "no leaks\n");
  }
  Allocator& all() { return *all_; }
  DeviceAllocator& Open(DeviceIndex index) {
    Result<DeviceAllocator*> device = all().Open(index);
    EXPECT_TRUE(device.has_value()) << device.error().message;
    return **device;
  }
  static Address Malloc(DeviceAllocator& device) {
    auto block =
        device.Malloc({kMiB, kDefaultStream, LifetimeClass::kUnknown, {}});
    EXPECT_TRUE(block.has_value()) << block.error().message;
    return block->address;
  }

  OpenedDevices opened_here_;
  std::optional<Allocator> all_{std::in_place, opened_here_};
  std::vector<int> plugged_, opened_;
  bool refuse_ = false;
};

TEST_F(AllocatorTest, NobodyOpensADeviceButItsUser) {
  EXPECT_EQ(all().device_count(), 4);
  EXPECT_TRUE(all().Opened().empty());
  EXPECT_EQ(all().Find(kLast), nullptr);
  EXPECT_EQ(all().FindByAddress(0x1000), nullptr);
  EXPECT_EQ(cudasim_live_reservations(), 0);
  DeviceAllocator& last = Open(kLast);
  EXPECT_EQ(&Open(kLast), &last);
  EXPECT_THAT(plugged_, ElementsAre(3));
  EXPECT_EQ(cudasim_live_reservations(), 1);
  EXPECT_EQ(all().Find(kFirst), nullptr);
  const Address there = Malloc(last);
  EXPECT_EQ(all().FindByAddress(there), &last);
  DeviceAllocator& second = Open(kSecond);
  EXPECT_THAT(opened_, ElementsAre(3, 1));
  EXPECT_THAT(all().Opened(), ElementsAre(&last, &second));
  EXPECT_EQ(all().FindByAddress(there), &last);
  EXPECT_TRUE(last.Free(there).has_value());
}

TEST_F(AllocatorTest, ADeviceThatIsNotThere) {
  for (const DeviceIndex none : {DeviceIndex{4}, DeviceIndex{-1}}) {
    Result<DeviceAllocator*> opened = all().Open(none);
    ASSERT_FALSE(opened.has_value());
    EXPECT_EQ(opened.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(opened.error().message, HasSubstr("4 initialised"));
  }
}

TEST_F(AllocatorTest, AFailureIsTheDevicesAlone) {
  for (const bool plug : {false, true}) {
    for (int attempt = 0; attempt < 2; ++attempt) {
      refuse_ = plug;
      if (!plug) {
        ASSERT_EQ(cudasim_fail("cudaMemGetInfo", 1, 1, /*forever=*/0), 0);
      }
      Result<DeviceAllocator*> opened = all().Open(kFirst);
      refuse_ = false;
      ASSERT_FALSE(opened.has_value());
      EXPECT_THAT(opened.error().message,
                  HasSubstr("device 0 cannot be opened"));
      EXPECT_THAT(opened.error().message,
                  HasSubstr(plug ? "not today" : "cudaMemGetInfo"));
      EXPECT_EQ(all().Find(kFirst), nullptr);
    }
  }
  EXPECT_TRUE(all().Opened().empty());
  DeviceAllocator& second = Open(kSecond);
  EXPECT_TRUE(second.Free(Malloc(second)).has_value());
  DeviceAllocator& first = Open(kFirst);
  EXPECT_EQ(all().Find(kFirst), &first);
}

TEST_F(AllocatorTest, WhatIsSetBeforeHolds) {
  all().SetFraction(kLast, 0.25);
  History::Options history;
  history.enabled = true;
  history.max_entries = 100;
  all().ConfigureHistory(history);
  EXPECT_EQ(all().Fraction(kLast), 0.25);
  EXPECT_EQ(all().Fraction(kFirst), 1.0);
  EXPECT_TRUE(all().Opened().empty());
  DeviceAllocator& last = Open(kLast);
  EXPECT_EQ(last.limit(), 16 * kMiB);
  EXPECT_EQ(last.limit(), DeviceLimit::Of(64 * kMiB, 0, 0.25));
  const Address block = Malloc(last);
  EXPECT_FALSE(last.Traces().empty());
  all().SetFraction(kLast, 0.5);
  EXPECT_EQ(all().Fraction(kLast), 0.5);
  EXPECT_EQ(last.limit(), 32 * kMiB);
  history.enabled = false;
  all().ConfigureHistory(history);
  EXPECT_TRUE(last.Free(block).has_value());
  EXPECT_EQ(Open(kFirst).limit(), 64 * kMiB);
}

TEST_F(AllocatorTest, EmptyCacheCountsOnUnopenedDevices) {
  const auto count = [&](DeviceIndex device) {
    return all().Stats(device).num_sync_all_streams;
  };
  DeviceAllocator& first = Open(kFirst);
  ASSERT_TRUE(all().EmptyCache().has_value());
  ASSERT_TRUE(all().EmptyCache().has_value());
  EXPECT_EQ(count(kFirst), 2);
  EXPECT_EQ(count(kSecond), 2);
  all().ResetAccumulatedStats(kSecond);
  all().ResetAccumulatedStats(kFirst);
  ASSERT_TRUE(all().EmptyCache().has_value());
  EXPECT_EQ(first.Stats().num_sync_all_streams, 1);
  EXPECT_EQ(count(kSecond), 1);
  EXPECT_EQ(count(kLast), 3);
  EXPECT_EQ(all().Opened().size(), 1u);
  EXPECT_EQ(Open(kLast).Stats().num_sync_all_streams, 3);
}

std::atomic<int> tracked{0};

TEST_F(AllocatorTest, ATrackerFollowsDevicesToCome) {
  tracked = 0;
  History::SetTracker([](const TraceEvent&) { ++tracked; });
  all().NoteTracker();
  DeviceAllocator& last = Open(kLast);
  const Address block = Malloc(last);
  const int before = tracked;
  EXPECT_GT(before, 0);
  // The fast path too.
  EXPECT_TRUE(last.Free(block).has_value());
  EXPECT_GT(tracked, before);
  History::SetTracker(nullptr);
  all().NoteTracker();
}

// The limit on open files is the process's.
TEST_F(AllocatorTest, DescriptorsOfAnotherDeviceMakeRoom) {
  constexpr std::size_t kMost = 16;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 4 * kMost;
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  DeviceAllocator& second = Open(kSecond);
  DeviceAllocator& last = Open(kLast);
  std::vector<Address> there;
  const Address here = Malloc(last);
  for (std::size_t i = 0; i < 2 * kMost; ++i) there.push_back(Malloc(second));
  for (const Address block : there) {
    EXPECT_TRUE(all().Share(second, block).has_value());
  }
  EXPECT_EQ(HandlePool::OpenDescriptors(), kMost) << "two blocks in a handle";
  EXPECT_FALSE(all().Share(last, here).has_value());
  for (const Address block : there) {
    EXPECT_TRUE(second.Free(block).has_value());
  }
  const Result<SharedBlock> shared = all().Share(last, here);
  EXPECT_TRUE(shared.has_value()) << shared.error().message;
  EXPECT_TRUE(last.Free(here).has_value());
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(AllocatorTest, ManyThreadsOpenItOnce) {
  std::vector<DeviceAllocator*> seen(8);
  std::vector<std::thread> threads;
  for (DeviceAllocator*& mine : seen) {
    threads.emplace_back([this, &mine] { mine = &Open(kSecond); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(seen, testing::Each(all().Find(kSecond)));
  EXPECT_THAT(plugged_, ElementsAre(1));
}

TEST_F(AllocatorTest, WhatIsForgottenIsFoundByNobody) {
  DeviceAllocator& last = Open(kLast);
  const Address block = Malloc(last);
  const int ordinal = static_cast<int>(kLast);
  EXPECT_EQ(opened_here_.Find(ordinal), &last);
  EXPECT_EQ(opened_here_.OwnerOf(block), &last);
  EXPECT_EQ(opened_here_.OwnerOf(last.table().end()), nullptr);
  for (const int none : {-1, 0, kMaxDevices}) {
    EXPECT_EQ(opened_here_.Find(none), nullptr) << none;
  }
  EXPECT_EQ(opened_devices.Find(ordinal), nullptr) << "another's";
  EXPECT_TRUE(last.Free(block).has_value());

  opened_here_.Forget();  // as the child of a fork does
  EXPECT_EQ(opened_here_.Find(ordinal), nullptr);
  EXPECT_EQ(opened_here_.OwnerOf(block), nullptr);
  EXPECT_EQ(all().FindByAddress(block), nullptr);
  EXPECT_TRUE(all().Opened().empty());
  opened_here_.Add(last);  // for who closes it
}

}  // namespace
}  // namespace stratalloc
