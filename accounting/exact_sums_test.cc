// SPDX-License-Identifier: Apache-2.0
// Threads that allocate, free what others made and re-label it, on the real
// allocator: every sum is exact, whatever the order. ALLOCATIONS in the
// environment: of each of the eight threads; the long run has a million.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <compare>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "accounting/ledger.h"
#include "allocator/allocator.h"
#include "tests/simulator/cudasim/control.h"

namespace stratalloc {
namespace {

constexpr DeviceIndex kGpu{0};
constexpr int kThreads = 8;
constexpr int kShared = 64;  // places where threads leave blocks for others

struct Key {
  ScopeId scope;
  Category category;
  auto operator<=>(const Key&) const = default;
};

// What the threads know without the ledger, of one charge.
struct Tally {
  Bytes allocated = 0, freed = 0;
  std::uint64_t blocks_allocated = 0, blocks_freed = 0;
  std::int64_t relabelled = 0, blocks_relabelled = 0;

  void operator+=(const Tally& other) {
    allocated += other.allocated;
    freed += other.freed;
    blocks_allocated += other.blocks_allocated;
    blocks_freed += other.blocks_freed;
    relabelled += other.relabelled;
    blocks_relabelled += other.blocks_relabelled;
  }
  Bytes live() const {
    return allocated - freed + static_cast<Bytes>(relabelled);
  }
  std::uint64_t blocks() const {
    return blocks_allocated - blocks_freed +
           static_cast<std::uint64_t>(blocks_relabelled);
  }
};
using Tallies = std::map<Key, Tally>;

// A block that a thread leaves for others, and who pays for it.
struct Left {
  Address address;
  Bytes bytes;
  Key payer;
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

  // What one thread does, and what it must come to.
  Tallies Live(unsigned seed, int allocations) {
    std::mt19937 random(seed);
    const auto draw = [&random] {
      return Key{ScopeId{static_cast<std::uint32_t>(random() % 5)},
                 static_cast<Category>(random() % kCategories)};
    };
    Tallies tallies;
    for (int i = 0; i < allocations; ++i) {
      const Key key = draw();
      const Bytes bytes = 512 * (1 + random() % 32);
      const auto lifetime =
          static_cast<LifetimeClass>(random() % kLifetimeClasses);
      const auto block = device_->Malloc(
          {bytes, kDefaultStream, lifetime, {key.scope, key.category}});
      EXPECT_TRUE(block.has_value());
      if (!block) break;
      tallies[key].allocated += bytes;
      ++tallies[key].blocks_allocated;
      auto mine = std::make_unique<Left>(Left{block->address, bytes, key});
      const std::unique_ptr<Left> other(
          shared_[random() % kShared].exchange(mine.release()));
      if (other == nullptr) continue;
      if (random() % 4 == 0) Relabel(draw(), other.get(), &tallies);
      Free(*other, &tallies);
    }
    return tallies;
  }

  void Relabel(Key to, Left* block, Tallies* tallies) {
    device_->Relabel(block->address, 1, {to.scope, to.category},
                     /*keep_category=*/false);
    const auto bytes = static_cast<std::int64_t>(block->bytes);
    (*tallies)[block->payer].relabelled -= bytes;
    --(*tallies)[block->payer].blocks_relabelled;
    (*tallies)[to].relabelled += bytes;
    ++(*tallies)[to].blocks_relabelled;
    block->payer = to;
  }

  void Free(const Left& block, Tallies* tallies) {
    EXPECT_TRUE(device_->Free(block.address).has_value());
    (*tallies)[block.payer].freed += block.bytes;
    ++(*tallies)[block.payer].blocks_freed;
  }

  // Every row, each number, and all of them.
  void ExpectRows(const Tallies& expected) {
    Tallies missing = expected;
    Bytes live = 0;
    for (const LedgerRow& row : ledger_.Rows()) {
      const Key key{row.charge.scope, row.charge.category};
      const auto found = expected.find(key);
      ASSERT_NE(found, expected.end()) << "nobody made it";
      const Tally& tally = found->second;
      EXPECT_EQ(row.allocated, tally.allocated);
      EXPECT_EQ(row.freed, tally.freed);
      EXPECT_EQ(row.relabelled, tally.relabelled);
      EXPECT_EQ(row.live, tally.live());
      EXPECT_EQ(row.blocks, tally.blocks());
      EXPECT_EQ(row.blocks_allocated, tally.blocks_allocated);
      EXPECT_EQ(row.blocks_freed, tally.blocks_freed);
      live += tally.live();
      missing.erase(key);
    }
    EXPECT_TRUE(missing.empty()) << "a row is not there";
    EXPECT_EQ(ledger_.Totals(kGpu).live, live);
    EXPECT_EQ(ledger_.Totals(kGpu).on_device, live);
    EXPECT_EQ(device_->Allocated(), live);
  }

  void ExpectSound() {
    const Status status = ledger_.CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
    EXPECT_TRUE(device_->CheckInvariants().has_value());
  }

  Ledger ledger_;
  std::unique_ptr<DeviceAllocator> device_;
  std::array<std::atomic<Left*>, kShared> shared_{};
};

TEST_F(ExactSumsTest, EightThreadsThatFreeEachOthersBlocks) {
  const int allocations = Allocations();
  std::vector<Tallies> made(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { made[i] = Live(static_cast<unsigned>(i) + 1, allocations); });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSound();

  Tallies all;
  Tally sum;
  for (const Tallies& one : made) {
    for (const auto& [key, tally] : one) {
      all[key] += tally;
      sum += tally;
    }
  }
  EXPECT_EQ(sum.blocks_allocated, static_cast<std::uint64_t>(kThreads) *
                                      static_cast<std::uint64_t>(allocations));
  ExpectRows(all);
  EXPECT_EQ(
      static_cast<Bytes>(device_->Stats().allocated_bytes.stats[0].allocated),
      sum.allocated);

  for (std::atomic<Left*>& left : shared_) {
    const std::unique_ptr<Left> block(left.exchange(nullptr));
    if (block != nullptr) Free(*block, &all);
  }
  ExpectSound();
  ExpectRows(all);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 0u);
}

}  // namespace
}  // namespace stratalloc
