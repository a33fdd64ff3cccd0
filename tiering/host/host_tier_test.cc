// SPDX-License-Identifier: Apache-2.0
// On the simulated device: pinning is real bookkeeping there, the memory too.
#include "tiering/host/host_tier.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator/base/host_time.h"
#include "tests/simulator/cudasim/control.h"
#include "tests/simulator/cudasim/cuda_calls.h"
#include "tiering/host/memory_limit.h"

namespace stratalloc {
namespace {

class HostTierTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_clear_faults();
    auto device = Device::Open(DeviceIndex{0});
    ASSERT_TRUE(device) << device.error().message;
    device_.push_back(*device);
  }
  void TearDown() override { cudasim_clear_faults(); }
  HostTier::Options Budget(Bytes budget) const {
    return HostTier::Options{budget, device_[0]};
  }
  std::vector<Device> device_;  // Device has no default constructor
};

TEST_F(HostTierTest, SpendsTheWholeBudgetAndNotAByteMore) {
  HostTier tier(Budget(32 * kMiB));
  std::vector<HostBuffer> buffers;
  std::set<void*> places;
  for (int i = 0; i < 16; ++i) {
    auto buffer = tier.Allocate(2 * kMiB);
    ASSERT_TRUE(buffer) << i << ": " << buffer.error().message;
    EXPECT_EQ(reinterpret_cast<Address>(buffer->data) % 4096, 0u);
    std::memset(buffer->data, i, buffer->bytes);
    EXPECT_TRUE(places.insert(buffer->data).second);
    buffers.push_back(*buffer);
    ASSERT_TRUE(tier.CheckInvariants());
  }
  EXPECT_EQ(tier.used(), 32 * kMiB);
  EXPECT_EQ(tier.reserved(), 32 * kMiB);
  EXPECT_EQ(tier.peak(), 32 * kMiB);
  const auto refused = tier.Allocate(2 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kHostOutOfMemory);
  EXPECT_NE(refused.error().message.find("host_budget"), std::string::npos);
  EXPECT_NE(refused.error().message.find("32.00 MiB"), std::string::npos);
  for (int i = 0; i < 16; ++i) {
    const auto* const bytes = static_cast<char*>(buffers[i].data);
    EXPECT_EQ(bytes[0], i);
    EXPECT_EQ(bytes[2 * kMiB - 1], i);
    tier.Free(buffers[i]);
  }
  EXPECT_EQ(tier.used(), 0u);
  // The same slab serves them all again.
  for (int i = 0; i < 16; ++i) EXPECT_TRUE(tier.Allocate(2 * kMiB));
  EXPECT_EQ(tier.used(), 32 * kMiB);
  EXPECT_TRUE(tier.CheckInvariants());
}

// A slab is made in whole steps: what is pinned says nothing of what was used.
TEST_F(HostTierTest, ThePeakIsOfWhatWasUsedAndTheReservedOneBesideIt) {
  HostTier tier(Budget(256 * kMiB));
  const auto first = tier.Allocate(2 * kMiB);
  const auto second = tier.Allocate(2 * kMiB);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(tier.used(), 4 * kMiB);
  EXPECT_EQ(tier.peak(), 4 * kMiB);
  EXPECT_EQ(tier.reserved(), 64 * kMiB);
  EXPECT_EQ(tier.reserved_peak(), 64 * kMiB);
  tier.Free(*first);
  EXPECT_EQ(tier.used(), 2 * kMiB);
  EXPECT_EQ(tier.peak(), 4 * kMiB);
  ASSERT_TRUE(tier.Allocate(2 * kMiB));
  EXPECT_EQ(tier.peak(), 4 * kMiB);  // not the sum of all that ever came
  EXPECT_TRUE(tier.CheckInvariants());
}

TEST_F(HostTierTest, BuffersArePinnedAndTrimUnpinsThem) {
  HostTier tier(Budget(32 * kMiB));
  const auto buffer = tier.Allocate(2 * kMiB);
  ASSERT_TRUE(buffer);
  cudaPointerAttributes attributes{};
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, buffer->data), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeHost);
  EXPECT_EQ(tier.Trim(), 0u);  // a slab with a live buffer stays
  tier.Free(*buffer);
  const Bytes held = tier.reserved();
  EXPECT_EQ(tier.Trim(), held);
  EXPECT_EQ(tier.reserved(), 0u);
  EXPECT_EQ(tier.reserved_peak(), held);
  ASSERT_EQ(cudaPointerGetAttributes(&attributes, buffer->data), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

// The small and the large handles of one device, and a staging buffer.
TEST_F(HostTierTest, SizesShareTheBudget) {
  HostTier tier(Budget(128 * kMiB));
  std::vector<HostBuffer> small, large;
  for (int i = 0; i < 3; ++i) {
    small.push_back(tier.Allocate(2 * kMiB).value());
    large.push_back(tier.Allocate(32 * kMiB).value());
  }
  // 102 of 128 MiB are used; the rest serves the small ones to the last.
  while (auto more = tier.Allocate(2 * kMiB)) small.push_back(*more);
  EXPECT_EQ(tier.used(), 128 * kMiB);
  EXPECT_EQ(small.size(), 16u);
  EXPECT_TRUE(tier.CheckInvariants());
  for (const HostBuffer& buffer : small) tier.Free(buffer);
  for (const HostBuffer& buffer : large) tier.Free(buffer);
  EXPECT_EQ(tier.used(), 0u);
  EXPECT_TRUE(tier.CheckInvariants());
}

TEST_F(HostTierTest, AnEmptySlabOfAnotherSizeMakesRoom) {
  HostTier tier(Budget(96 * kMiB));
  std::vector<HostBuffer> all;
  while (auto buffer = tier.Allocate(3 * kMiB)) all.push_back(*buffer);
  EXPECT_EQ(all.size(), 32u);  // slabs of 63 and 33 MiB
  EXPECT_FALSE(tier.Allocate(64 * kMiB));
  for (const HostBuffer& buffer : all) tier.Free(buffer);
  const auto large = tier.Allocate(64 * kMiB);
  ASSERT_TRUE(large) << large.error().message;
  const auto rest = tier.Allocate(32 * kMiB);
  EXPECT_TRUE(rest) << rest.error().message;
  EXPECT_EQ(tier.reserved(), 96 * kMiB);
}

// Small and large ones come from opposite ends, so that what is between them
// stays in one piece.
TEST_F(HostTierTest, SmallBuffersDoNotSplitTheRoomOfLargeOnes) {
  HostTier tier(Budget(64 * kMiB));
  std::vector<HostBuffer> large;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(tier.Allocate(2 * kMiB));
    large.push_back(tier.Allocate(16 * kMiB).value());
  }
  for (const HostBuffer& buffer : large) tier.Free(buffer);
  const auto rest = tier.Allocate(60 * kMiB);
  EXPECT_TRUE(rest) << rest.error().message;
}

TEST_F(HostTierTest, OddBudgetsWasteLessThanOneBuffer) {
  for (const auto& [budget, buffer] :
       {std::pair{7 * kMiB, 2 * kMiB}, std::pair{65 * kMiB, 2 * kMiB},
        std::pair{131 * kMiB, 2 * kMiB}, std::pair{66 * kMiB, 3 * kMiB}}) {
    HostTier tier(Budget(budget));
    Bytes got = 0;
    while (tier.Allocate(buffer)) got += buffer;
    EXPECT_EQ(got, RoundDown(budget, buffer));
    EXPECT_LE(tier.reserved(), budget);
    EXPECT_TRUE(tier.CheckInvariants());
  }
}

TEST_F(HostTierTest, RefusesWhatIsNotPages) {
  HostTier tier(Budget(32 * kMiB));
  for (const Bytes bytes : {Bytes{0}, Bytes{100}}) {
    const auto refused = tier.Allocate(bytes);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  }
  tier.Free(HostBuffer{});  // no buffer: nothing to give back
  EXPECT_EQ(tier.reserved(), 0u);
}

TEST_F(HostTierTest, SaysWhenTheHostCannotPin) {
  HostTier tier(Budget(32 * kMiB));
  ASSERT_EQ(cudasim_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, 1),
            0);
  const auto refused = tier.Allocate(2 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kHostOutOfMemory);
  EXPECT_NE(refused.error().message.find("cannot pin"), std::string::npos);
  EXPECT_NE(refused.error().message.find("cudaHostRegister"),
            std::string::npos);
  EXPECT_EQ(tier.reserved(), 0u);
  EXPECT_TRUE(tier.CheckInvariants());
  cudasim_clear_faults();
  EXPECT_TRUE(tier.Allocate(2 * kMiB));
}

// What somebody asked for is not cut to what the machine has available just
// now; the limit of a memory cgroup holds for it all the same.
TEST_F(HostTierTest, ABudgetThatWasGivenYieldsToTheCgroupAlone) {
  const std::filesystem::path root =
      testing::TempDir() + "given" + std::to_string(getpid());
  std::filesystem::create_directories(root / "proc/self");
  std::ofstream(root / "proc/meminfo") << "MemAvailable: 1024 kB\n";
  HostTier::Options options = Budget(32 * kMiB);
  options.root = root;
  const auto refused = HostTier(options).Allocate(2 * kMiB);
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("the machine or its container has"),
            std::string::npos);
  options.is_given = true;
  EXPECT_TRUE(HostTier(options).Allocate(2 * kMiB));
  std::ofstream(root / "proc/self/cgroup") << "0::/\n";
  std::filesystem::create_directories(root / "sys/fs/cgroup");
  std::ofstream(root / "sys/fs/cgroup/memory.max") << 8 * kMiB;
  std::ofstream(root / "sys/fs/cgroup/memory.current") << 7 * kMiB;
  const auto grouped = HostTier(options).Allocate(2 * kMiB);
  ASSERT_FALSE(grouped);
  EXPECT_EQ(grouped.error().code, ErrorCode::kHostOutOfMemory);
  EXPECT_NE(grouped.error().message.find("memory cgroup of this process has "
                                         "only 1024.00 KiB"),
            std::string::npos)
      << grouped.error().message;
  std::filesystem::remove_all(root);
}

// One refusal of a whole slab: the single buffer that was asked for is tried.
TEST_F(HostTierTest, AHostShortOfMemoryStillGivesOneBuffer) {
  HostTier tier(Budget(32 * kMiB));
  ASSERT_EQ(cudasim_fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, 0),
            0);
  ASSERT_TRUE(tier.Allocate(2 * kMiB));
  EXPECT_EQ(tier.reserved(), 2 * kMiB);
}

TEST_F(HostTierTest, RandomUseKeepsTheInvariants) {
  HostTier tier(Budget(160 * kMiB));
  std::mt19937 random(3);
  std::vector<HostBuffer> live;
  Bytes used = 0;
  int refused = 0;
  for (int step = 0; step < 3000; ++step) {
    if (live.empty() || random() % 100 < 55) {
      const Bytes bytes = (random() % 3 == 0 ? 16 : 2) * kMiB;
      if (auto buffer = tier.Allocate(bytes)) {
        live.push_back(*buffer);
        used += bytes;
      } else {
        ++refused;
      }
    } else {
      std::swap(live[random() % live.size()], live.back());
      tier.Free(live.back());
      used -= live.back().bytes;
      live.pop_back();
    }
    if (step % 500 == 0) tier.Trim();
    ASSERT_EQ(tier.used(), used);
    const Status sound = tier.CheckInvariants();
    ASSERT_TRUE(sound) << sound.error().message;
  }
  EXPECT_GT(refused, 0);
  for (std::size_t i = 0; i < live.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const auto* const a = static_cast<char*>(live[i].data);
      const auto* const b = static_cast<char*>(live[j].data);
      EXPECT_TRUE(a + live[i].bytes <= b || b + live[j].bytes <= a);
    }
  }
}

TEST_F(HostTierTest, ThreadsMayShareIt) {
  HostTier tier(Budget(64 * kMiB));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&tier, t] {
      for (int i = 0; i < 200; ++i) {
        const auto buffer = tier.Allocate(2 * kMiB);
        if (!buffer) continue;
        auto* const bytes = static_cast<volatile char*>(buffer->data);
        bytes[0] = static_cast<char>(t);
        EXPECT_EQ(bytes[0], t);
        tier.Free(*buffer);
        EXPECT_LE(tier.used(), tier.budget());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(tier.used(), 0u);
  EXPECT_TRUE(tier.CheckInvariants());
}

// The driver holds its lock while it pins: never more than 1 GiB at once.
TEST_F(HostTierTest, LargeSlabsAreRegisteredInSteps) {
  const Bytes bytes = kGiB + 2 * kMiB;
  if (AvailableHostMemory() < 2 * kGiB) GTEST_SKIP() << "too little memory";
  HostTier tier(Budget(bytes));
  const long registered = cudasim_calls("cudaHostRegister");
  const long unregistered = cudasim_calls("cudaHostUnregister");
  const auto buffer = tier.Allocate(bytes);
  ASSERT_TRUE(buffer) << buffer.error().message;
  EXPECT_EQ(cudasim_calls("cudaHostRegister") - registered, 2);
  tier.Free(*buffer);
  EXPECT_EQ(tier.Trim(), bytes);
  EXPECT_EQ(cudasim_calls("cudaHostUnregister") - unregistered, 2);
}

TEST_F(HostTierTest, SlabThatTheDriverKeepsPinnedStaysInUse) {
  HostTier tier(Budget(8 * kMiB));
  tier.Free(tier.Allocate(8 * kMiB).value());
  ASSERT_EQ(cudasim_fail("cudaHostUnregister", 1, cudaErrorUnknown, 1), 0);
  EXPECT_EQ(tier.Trim(), 0u);
  cudasim_clear_faults();
  EXPECT_EQ(tier.reserved(), 8 * kMiB);
  tier.Free(tier.Allocate(8 * kMiB).value());
  EXPECT_EQ(tier.Trim(), 8 * kMiB) << "asked again";
  EXPECT_EQ(tier.reserved(), 0u);
}

TEST_F(HostTierTest, AForkedChildDoesNotInheritThePages) {
  HostTier tier(Budget(8 * kMiB));
  const HostBuffer buffer = tier.Allocate(2 * kMiB).value();
  unsigned char resident = 0;
  ASSERT_EQ(mincore(buffer.data, 4096, &resident), 0);
  EXPECT_EQ(resident & 1, 1);  // touched
  const pid_t child = fork();
  if (child == 0) {
    _exit(mincore(buffer.data, 4096, &resident) != 0 && errno == ENOMEM ? 0
                                                                        : 1);
  }
  int status = 1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// A listener says that no copy reads pinned memory: it gets addresses alone.
TEST_F(HostTierTest, PhantomMemoryIsPinnedWithoutPages) {
  static constexpr HostTimeListener kPhantom = {.is_phantom = [] { return 1; }};
  host_time_listener.store(&kPhantom);
  HostTier tier(Budget(8 * kMiB));
  const auto buffer = tier.Allocate(2 * kMiB);
  host_time_listener.store(nullptr);
  ASSERT_TRUE(buffer) << buffer.error().message;
  std::vector<unsigned char> resident(2 * kMiB / 4096, 1);
  ASSERT_EQ(mincore(buffer->data, buffer->bytes, resident.data()), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 0);
  EXPECT_EQ(tier.reserved(), 8 * kMiB);
}

using HostTierDeathTest = HostTierTest;

TEST_F(HostTierDeathTest, AStrangersPointerAndADoubleFreeAreCaught) {
  HostTier tier(Budget(8 * kMiB));
  const HostBuffer buffer = tier.Allocate(2 * kMiB).value();
  char other[4096];
  EXPECT_DEATH(tier.Free(HostBuffer{other, sizeof(other)}), "not of this tier");
  tier.Free(buffer);
  EXPECT_DEATH(tier.Free(buffer), "already free");
}

}  // namespace
}  // namespace stratalloc
