// SPDX-License-Identifier: Apache-2.0
// Threads that allocate, free what others made and re-label it, on the real
// allocator: every sum is exact, whatever the order. ALLOCATIONS in the
// environment: of each of the eight threads; the long run has a million.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "accounting/ledger.h"
#include "allocator/allocator.h"
#include "tests/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0};
constexpr int kThreads = 8;
constexpr int kShared = 64;  // places where threads leave blocks for others

struct Sums {
  Bytes allocated = 0, blocks = 0;
  std::map<std::pair<ScopeId, Category>, Bytes> made;  // bytes by charge
};

int Allocations() {
  const char* said = std::getenv("ALLOCATIONS");
  return said != nullptr ? std::atoi(said) : 10000;
}

class ExactSumsTest : public testing::Test {
 protected:
  void SetUp() override {
    cudasim_set_verbose(0);
    cudasim_reset_for_testing();
    cudasim_set_capacity(0, 256 * kMiB);
    device_ = DeviceAllocator::Create(Device::Open(kGpu).value(), {}).value();
    device_->SetAccounts(&ledger_);
  }

  // What one thread does, and what it made.
  Sums Live(unsigned seed, int allocations) {
    std::mt19937 random(seed);
    Sums sums;
    for (int i = 0; i < allocations; ++i) {
      const Charge charge{ScopeId{static_cast<std::uint32_t>(random() % 5)},
                          static_cast<Category>(random() % kCategories)};
      const Bytes bytes = 512 * (1 + random() % 32);
      const auto lifetime =
          static_cast<LifetimeClass>(random() % kLifetimeClasses);
      const auto block =
          device_->Malloc({bytes, kDefaultStream, lifetime, charge});
      EXPECT_TRUE(block.has_value());
      if (!block) break;
      sums.allocated += bytes;
      ++sums.blocks;
      sums.made[{charge.scope, charge.category}] += bytes;
      const Address other =
          shared_[random() % kShared].exchange(block->address);
      if (other == 0) continue;
      if (random() % 4 == 0) {
        const Charge to{ScopeId{static_cast<std::uint32_t>(random() % 5)},
                        static_cast<Category>(random() % kCategories)};
        device_->Relabel(other, 1, to, /*keep_category=*/false);
      }
      EXPECT_TRUE(device_->Free(other).has_value());
    }
    return sums;
  }

  void ExpectSound() {
    const Status status = ledger_.CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    EXPECT_TRUE(device_->CheckInvariants().has_value());
  }

  Ledger ledger_;
  std::unique_ptr<DeviceAllocator> device_;
  std::array<std::atomic<Address>, kShared> shared_{};
};

TEST_F(ExactSumsTest, EightThreadsThatFreeEachOthersBlocks) {
  const int allocations = Allocations();
  std::vector<Sums> sums(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { sums[i] = Live(static_cast<unsigned>(i) + 1, allocations); });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSound();

  Sums all;
  for (const Sums& one : sums) {
    all.allocated += one.allocated;
    all.blocks += one.blocks;
    for (const auto& [charge, bytes] : one.made) all.made[charge] += bytes;
  }
  EXPECT_EQ(all.blocks, Bytes{kThreads} * static_cast<Bytes>(allocations));
  Bytes live = 0, allocated = 0, blocks = 0;
  for (const LedgerRow& row : ledger_.Rows()) {
    live += row.live;
    allocated += row.allocated;
    blocks += row.blocks_allocated;
    const auto made = all.made.find({row.charge.scope, row.charge.category});
    EXPECT_EQ(row.allocated, made == all.made.end() ? 0 : made->second);
    EXPECT_EQ(
        static_cast<std::int64_t>(row.live),
        static_cast<std::int64_t>(row.allocated - row.freed) + row.relabelled);
  }
  EXPECT_EQ(allocated, all.allocated);
  EXPECT_EQ(blocks, all.blocks);
  EXPECT_EQ(live, device_->Allocated());
  EXPECT_EQ(ledger_.Totals(kGpu).on_device, live);
  EXPECT_EQ(
      static_cast<Bytes>(device_->Stats().allocated_bytes.stats[0].allocated),
      all.allocated);

  for (std::atomic<Address>& address : shared_) {
    if (address == 0) continue;
    EXPECT_TRUE(device_->Free(address).has_value());
  }
  ExpectSound();
  EXPECT_EQ(ledger_.Totals(kGpu).live, 0u);
  for (const LedgerRow& row : ledger_.Rows()) {
    EXPECT_EQ(row.live, 0u);
    EXPECT_EQ(row.blocks, 0u);
  }
}

}  // namespace
}  // namespace stratalloc
