// SPDX-License-Identifier: Apache-2.0
#include "accounting/ledger.h"

#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "accounting/scope_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace stratalloc {
namespace {

using testing::HasSubstr;

constexpr DeviceIndex kGpu{0};
constexpr DeviceIndex kOtherGpu{1};
constexpr Charge kWeights{static_cast<ScopeId>(1), Category::kParameter};
constexpr Charge kGradients{static_cast<ScopeId>(1), Category::kGradient};
constexpr Charge kNobody{};

class LedgerTest : public testing::Test {
 protected:
  LedgerRow Row(Charge charge, DeviceIndex device = kGpu) {
    for (const LedgerRow& row : ledger_.Rows()) {
      if (row.device == device && row.charge == charge) return row;
    }
    ADD_FAILURE() << "no such row";
    return {};
  }
  void ExpectSound() {
    const Status status = ledger_.CheckInvariants();
    EXPECT_TRUE(status.has_value()) << status.error().message;
  }
  Bytes On(const LedgerRow& row, TierId tier) {
    return row.tier_bytes[static_cast<std::size_t>(tier)];
  }

  void Give(Charge from, Charge to, Bytes bytes,
            TierId tier = TierId::kDevice) {
    ledger_.Of(kGpu, from).Give(bytes, tier, ledger_.Of(kGpu, to));
  }
  std::string Broken() {
    const Status status = ledger_.CheckInvariants();
    return status ? "" : status.error().message;
  }

  Ledger ledger_;
};

TEST_F(LedgerTest, AScopeOwnsItsCategoriesOnAllDevicesAndTiers) {
  EXPECT_EQ(ledger_.Owned(kWeights.scope), 0u);
  ledger_.Of(kGpu, kWeights).Allocate(512);
  ledger_.Of(kGpu, kGradients).Allocate(1024);
  ledger_.Of(kOtherGpu, kWeights).Allocate(2048);
  ledger_.Of(kGpu, kNobody).Allocate(4096);
  ledger_.Of(kGpu, kWeights).Move(512, TierId::kDevice, TierId::kHost, true);
  EXPECT_EQ(ledger_.Owned(kWeights.scope), 512u + 1024u + 2048u);
  Give(kGradients, kNobody, 1024);
  EXPECT_EQ(ledger_.Owned(kWeights.scope), 512u + 2048u);
}

TEST_F(LedgerTest, ChargesAndCreditsTheSameRow) {
  ledger_.Of(kGpu, kWeights).Allocate(512);
  ledger_.Of(kGpu, kWeights).Allocate(1024);
  ledger_.Of(kGpu, kWeights).Free(512);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 1024u);
  EXPECT_EQ(row.allocated, 1536u);
  EXPECT_EQ(row.freed, 512u);
  EXPECT_EQ(On(row, TierId::kDevice), 1024u);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 1024u);
  EXPECT_EQ(ledger_.Totals(kOtherGpu).live, 0u);
  ExpectSound();
}

TEST_F(LedgerTest, CategoriesScopesAndDevicesAreApart) {
  ledger_.Of(kGpu, kWeights).Allocate(1);
  ledger_.Of(kGpu, kGradients).Allocate(2);
  ledger_.Of(kGpu, kNobody).Allocate(4);
  ledger_.Of(kOtherGpu, kWeights).Allocate(8);
  EXPECT_EQ(Row(kWeights).live, 1u);
  EXPECT_EQ(Row(kGradients).live, 2u);
  EXPECT_EQ(Row(kNobody).live, 4u);
  EXPECT_EQ(Row(kWeights, kOtherGpu).live, 8u);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 7u);
  EXPECT_EQ(ledger_.Totals(kOtherGpu).live, 8u);
  ExpectSound();
}

TEST_F(LedgerTest, RowsAreOrdered) {
  ledger_.Of(kOtherGpu, kNobody).Allocate(1);
  ledger_.Of(kGpu, kGradients).Allocate(1);
  ledger_.Of(kGpu, kWeights).Allocate(1);
  ledger_.Of(kGpu, kNobody).Allocate(1);
  const std::vector<LedgerRow> rows = ledger_.Rows();
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].charge, kNobody);
  EXPECT_EQ(rows[1].charge, kWeights);
  EXPECT_EQ(rows[2].charge, kGradients);
  EXPECT_EQ(rows[3].device, kOtherGpu);
}

TEST_F(LedgerTest, PeakFollowsLiveUpOnly) {
  ledger_.Of(kGpu, kWeights).Allocate(100);
  ledger_.Of(kGpu, kWeights).Allocate(50);
  ledger_.Of(kGpu, kWeights).Free(150);
  ledger_.Of(kGpu, kWeights).Allocate(20);
  EXPECT_EQ(Row(kWeights).peak, 150u);
  ledger_.ResetPeaks(kOtherGpu);
  EXPECT_EQ(Row(kWeights).peak, 150u);
  ledger_.ResetPeaks(kGpu);
  EXPECT_EQ(Row(kWeights).peak, 20u);
  ExpectSound();
}

TEST_F(LedgerTest, MovesCountTrafficAndKeepLive) {
  ledger_.Of(kGpu, kWeights).Allocate(100);
  ledger_.Of(kGpu, kWeights).Move(60, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kWeights).Move(40, TierId::kHost, TierId::kDisk, true);
  LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 100u);
  EXPECT_EQ(row.peak, 100u);
  EXPECT_EQ(On(row, TierId::kDevice), 40u);
  EXPECT_EQ(On(row, TierId::kHost), 20u);
  EXPECT_EQ(On(row, TierId::kDisk), 40u);
  EXPECT_EQ(row.evicted_bytes, 60u);
  EXPECT_EQ(row.to_disk_bytes, 40u);
  EXPECT_EQ(row.restored_bytes, 0u);
  ExpectSound();

  ledger_.Of(kGpu, kWeights).Move(40, TierId::kDisk, TierId::kDevice, true);
  ledger_.Of(kGpu, kWeights).Move(20, TierId::kHost, TierId::kDevice, true);
  row = Row(kWeights);
  EXPECT_EQ(On(row, TierId::kDevice), 100u);
  EXPECT_EQ(row.restored_bytes, 60u);
  EXPECT_EQ(row.from_disk_bytes, 40u);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 100u);
  ExpectSound();
}

TEST_F(LedgerTest, DeviceStraightToDiskIsEvictedAndWritten) {
  ledger_.Of(kGpu, kWeights).Allocate(8);
  ledger_.Of(kGpu, kWeights).Move(8, TierId::kDevice, TierId::kDisk, true);
  ledger_.Of(kGpu, kWeights).Move(8, TierId::kDisk, TierId::kHost, true);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.evicted_bytes, 8u);
  EXPECT_EQ(row.to_disk_bytes, 8u);
  EXPECT_EQ(row.from_disk_bytes, 8u);
  EXPECT_EQ(row.restored_bytes, 0u);
}

TEST_F(LedgerTest, FreeOfEvictedBytesIsNoTraffic) {
  ledger_.Of(kGpu, kWeights).Allocate(100);
  ledger_.Of(kGpu, kWeights).Move(100, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kWeights).FreeBytes(100, TierId::kHost);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(row.live, 0u);
  EXPECT_EQ(row.evicted_bytes, 100u);
  EXPECT_EQ(row.restored_bytes, 0u);
  for (const Bytes bytes : row.tier_bytes) EXPECT_EQ(bytes, 0u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelMovesTheChargeAndRaisesTheNewPeak) {
  ledger_.Of(kGpu, kNobody).Allocate(100);
  ledger_.Of(kGpu, kWeights).Allocate(10);
  Give(kNobody, kWeights, 100);
  EXPECT_EQ(Row(kNobody).live, 0u);
  EXPECT_EQ(Row(kNobody).peak, 100u);
  EXPECT_EQ(Row(kNobody).relabelled, -100);
  EXPECT_EQ(Row(kWeights).live, 110u);
  EXPECT_EQ(Row(kWeights).peak, 110u);
  EXPECT_EQ(Row(kWeights).relabelled, 100);
  EXPECT_EQ(Row(kWeights).allocated, 10u);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 110u);
  ExpectSound();
  ledger_.Of(kGpu, kWeights).Free(110);
  EXPECT_EQ(ledger_.Totals(kGpu).live, 0u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelToTheSameChargeChangesNothing) {
  ledger_.Of(kGpu, kWeights).Allocate(10);
  Give(kWeights, kWeights, 10);
  EXPECT_EQ(Row(kWeights).relabelled, 0);
  EXPECT_EQ(Row(kWeights).live, 10u);
  ExpectSound();
}

TEST_F(LedgerTest, RelabelOfEvictedBytesKeepsTheirTier) {
  ledger_.Of(kGpu, kNobody).Allocate(64);
  ledger_.Of(kGpu, kNobody).Move(48, TierId::kDevice, TierId::kDisk, true);
  Give(kNobody, kWeights, 48, TierId::kDisk);
  Give(kNobody, kWeights, 16);
  const LedgerRow row = Row(kWeights);
  EXPECT_EQ(On(row, TierId::kDisk), 48u);
  EXPECT_EQ(On(row, TierId::kDevice), 16u);
  EXPECT_EQ(row.to_disk_bytes, 0u);
  EXPECT_EQ(Row(kNobody).to_disk_bytes, 48u);
  ExpectSound();
}

TEST_F(LedgerTest, StallsBelongToTheScopesParameterRow) {
  ledger_.OnStall(kGpu, kWeights.scope, 5);
  ledger_.Of(kGpu, kWeights).Allocate(1);
  ledger_.OnStall(kGpu, kWeights.scope, 7);
  ledger_.OnStall(kGpu, kWeights.scope, 9);
  EXPECT_EQ(Row(kWeights).stalls, 2u);
  EXPECT_EQ(Row(kWeights).stall_ns, 16u);
  const LedgerRow unknown = Row({kWeights.scope, Category::kUnknown});
  EXPECT_EQ(unknown.stalls, 1u);
  EXPECT_EQ(unknown.stall_ns, 5u);
  ExpectSound();
}

TEST_F(LedgerTest, SumsNameThoseWhoOwnedMost) {
  const Charge small{static_cast<ScopeId>(7), Category::kBuffer};
  const Charge gone{static_cast<ScopeId>(8), Category::kActivation};
  ledger_.Of(kGpu, small).Allocate(10);
  ledger_.Of(kGpu, kWeights).Allocate(500);
  ledger_.Of(kGpu, kGradients).Allocate(300);
  ledger_.Of(kGpu, kWeights).Move(200, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kWeights).Move(50, TierId::kHost, TierId::kDisk, true);
  ledger_.Of(kGpu, gone).Allocate(900);
  ledger_.Of(kGpu, gone).Free(900);
  ledger_.Of(kOtherGpu, kWeights).Allocate(4096);
  ledger_.OnStall(kGpu, kWeights.scope, 5);
  const DeviceSums two = ledger_.Sums(kGpu, 2);
  ASSERT_EQ(two.owners.size(), 2u);
  EXPECT_EQ(two.scopes, 3u);
  EXPECT_EQ(two.owners[0].scope, gone.scope) << "it has nothing now";
  EXPECT_EQ(two.owners[0].most, 900u);
  EXPECT_EQ(two.owners[0].bytes, (std::array<Bytes, kTiers>{}));
  EXPECT_EQ(two.owners[1].scope, kWeights.scope);
  EXPECT_EQ(two.owners[1].bytes, (std::array<Bytes, kTiers>{600, 150, 50}));
  EXPECT_EQ(two.owners[1].evicted_bytes, 200u);
  EXPECT_EQ(two.owners[1].stalls, 1u);
  EXPECT_EQ(two.owners[1].stall_ns, 5u);
  EXPECT_EQ(two.others.bytes, (std::array<Bytes, kTiers>{10, 0, 0}));
  const auto of = [&](Category category) {
    return two.categories[static_cast<std::size_t>(Raw(category))];
  };
  EXPECT_EQ(of(Category::kParameter),
            (std::array<Bytes, kTiers>{300, 150, 50}));
  EXPECT_EQ(of(Category::kGradient), (std::array<Bytes, kTiers>{300, 0, 0}));
  EXPECT_EQ(of(Category::kActivation), (std::array<Bytes, kTiers>{}));
  // Nobody is left out, nobody is there twice.
  const DeviceSums all = ledger_.Sums(kGpu, 10);
  EXPECT_EQ(all.owners.size(), 3u);
  EXPECT_EQ(all.others.bytes, (std::array<Bytes, kTiers>{}));
  EXPECT_EQ(all.categories, two.categories);
  EXPECT_EQ(ledger_.Sums(kGpu, 0).owners.size(), 0u);
}

TEST_F(LedgerTest, ADoubleFreeIsFound) {
  const Charge charge{InternScope("Model.twice"), Category::kBuffer};
  ledger_.Of(kGpu, charge).Allocate(64);
  ledger_.Of(kGpu, charge).Free(64);
  ledger_.Of(kGpu, charge).Free(64);
  EXPECT_THAT(Broken(), HasSubstr("Model.twice, buffer"));
}

TEST_F(LedgerTest, AFreeOfEvictedBytesAsIfTheyWereHereIsFound) {
  ledger_.Of(kGpu, kWeights).Allocate(64);
  ledger_.Of(kGpu, kWeights).Move(64, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kWeights).Free(64);
  EXPECT_THAT(Broken(), HasSubstr("sum of tiers"));
}

TEST_F(LedgerTest, AMoveOfBytesThatAreNotThereIsFound) {
  ledger_.Of(kGpu, kWeights).Allocate(64);
  ledger_.Of(kGpu, kWeights).Move(1, TierId::kHost, TierId::kDevice, true);
  EXPECT_NE(Broken(), "");
  // Another tier that has too many does not hide it.
  ledger_.Of(kGpu, kWeights).Move(1, TierId::kDevice, TierId::kDisk, true);
  EXPECT_NE(Broken(), "");
}

// A thousand rows: references to rows survive the growth of both tables.
TEST_F(LedgerTest, ManyScopesStayApart) {
  constexpr std::uint32_t kScopes = 1000;
  for (int round = 0; round < 2; ++round) {
    for (std::uint32_t i = 0; i < kScopes; ++i) {
      ledger_.Of(kGpu, {static_cast<ScopeId>(i), Category::kActivation})
          .Allocate(i + 1);
    }
  }
  const std::vector<LedgerRow> rows = ledger_.Rows();
  ASSERT_EQ(rows.size(), kScopes);
  for (std::uint32_t i = 0; i < kScopes; ++i) {
    EXPECT_EQ(rows[i].live, 2u * (i + 1));
  }
  EXPECT_EQ(ledger_.Totals(kGpu).live, Bytes{kScopes} * (kScopes + 1));
  ExpectSound();
}

// Each thread plays a seeded life of blocks on shared rows, under a lock as the
// device's; whatever the interleaving, everything freed leaves zero and the
// identities hold.
TEST_F(LedgerTest, ThreadsOnSharedRowsAddUp) {
  std::mutex device;
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    threads.emplace_back([this, seed, &device] {
      struct Block {
        Charge charge;
        Bytes bytes;
        TierId tier;
      };
      std::mt19937 random(seed);
      std::vector<Block> blocks;
      const auto any_charge = [&random] {
        return Charge{static_cast<ScopeId>(random() % 5),
                      static_cast<Category>(random() % kCategories)};
      };
      const auto free_one = [&](std::size_t i) {
        const Block block = blocks[i];
        ledger_.Of(kGpu, block.charge).FreeBytes(block.bytes, block.tier);
        ledger_.Of(kGpu, block.charge).CountFreed();
        blocks[i] = blocks.back();
        blocks.pop_back();
      };
      for (int step = 0; step < 2000; ++step) {
        const std::lock_guard<std::mutex> lock(device);
        const unsigned what = random() % 4;
        if (what == 0 || blocks.empty()) {
          blocks.push_back(
              {any_charge(), 512 * (1 + random() % 64), TierId::kDevice});
          ledger_.Of(kGpu, blocks.back().charge).Allocate(blocks.back().bytes);
          continue;
        }
        const std::size_t i = random() % blocks.size();
        if (what == 1) {
          free_one(i);
        } else if (what == 2) {
          const auto to = static_cast<TierId>(random() % kTiers);
          ledger_.Of(kGpu, blocks[i].charge)
              .Move(blocks[i].bytes, blocks[i].tier, to, true);
          blocks[i].tier = to;
        } else {
          const Charge to = any_charge();
          Give(blocks[i].charge, to, blocks[i].bytes, blocks[i].tier);
          ledger_.Of(kGpu, blocks[i].charge)
              .GiveBlocks(1, ledger_.Of(kGpu, to));
          blocks[i].charge = to;
        }
      }
      const std::lock_guard<std::mutex> lock(device);
      while (!blocks.empty()) free_one(0);
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectSound();
  EXPECT_EQ(ledger_.Totals(kGpu).live, 0u);
  for (const LedgerRow& row : ledger_.Rows()) {
    EXPECT_EQ(row.live, 0u);
    EXPECT_EQ(row.blocks, 0u);
  }
}

TEST_F(LedgerTest, BlocksAreCountedWhereTheyWereMadeAndFreed) {
  ledger_.Of(kGpu, kNobody).Allocate(100);
  ledger_.Of(kGpu, kNobody).Allocate(100);
  Give(kNobody, kWeights, 100);
  ledger_.Of(kGpu, kNobody).GiveBlocks(1, ledger_.Of(kGpu, kWeights));
  ledger_.Of(kGpu, kWeights).Free(100);
  const LedgerRow nobody = Row(kNobody);
  const LedgerRow weights = Row(kWeights);
  EXPECT_EQ(nobody.blocks, 1u);
  EXPECT_EQ(nobody.blocks_allocated, 2u);
  EXPECT_EQ(nobody.blocks_freed, 0u);
  EXPECT_EQ(weights.blocks, 0u);
  EXPECT_EQ(weights.blocks_allocated, 0u);
  EXPECT_EQ(weights.blocks_freed, 1u);
}

TEST_F(LedgerTest, WhatEverybodyHadWhileAScopeAllocated) {
  constexpr Charge kOther{static_cast<ScopeId>(2), Category::kActivation};
  const auto peak_of = [&](ScopeId scope) {
    for (const ScopeRow& row : ledger_.Scopes()) {
      if (row.scope == scope) return row.peak_allocated;
    }
    return Bytes{0};
  };
  ledger_.Of(kGpu, kWeights).Allocate(100);
  ledger_.Of(kGpu, kOther).Allocate(50);
  ledger_.Of(kGpu, kOther).Free(50);
  ledger_.Of(kGpu, kWeights).Allocate(10);
  EXPECT_EQ(peak_of(kWeights.scope), 110u) << "not the other's 150";
  EXPECT_EQ(peak_of(kOther.scope), 150u);
  ledger_.Of(kGpu, kWeights).Move(110, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kGradients).Allocate(20);
  EXPECT_EQ(peak_of(kWeights.scope), 110u) << "only 20 are on the device";
  ledger_.ResetPeaks(kGpu);
  EXPECT_EQ(peak_of(kWeights.scope), 0u);
  ledger_.Of(kGpu, kGradients).Allocate(5);
  EXPECT_EQ(peak_of(kWeights.scope), 25u);
  ExpectSound();
}

// Its categories' peaks are of different moments and say nothing of it.
TEST_F(LedgerTest, AScopesPeakIsOfAllItsCategoriesAtOnce) {
  ledger_.Of(kGpu, kWeights).Allocate(100);
  ledger_.Of(kGpu, kWeights).Move(100, TierId::kDevice, TierId::kHost, true);
  ledger_.Of(kGpu, kGradients).Allocate(30);
  Give(kGradients, kWeights, 30);
  ledger_.Of(kGpu, kWeights).Free(30);
  ledger_.Of(kGpu, kGradients).Allocate(20);
  std::vector<ScopeRow> scopes = ledger_.Scopes();
  ASSERT_EQ(scopes.size(), 1u);
  EXPECT_EQ(scopes[0].scope, kWeights.scope);
  EXPECT_EQ(scopes[0].live, 120u);
  EXPECT_EQ(scopes[0].peak_owned, 130u);
  ledger_.ResetPeaks(kGpu);
  EXPECT_EQ(ledger_.Scopes()[0].peak_owned, 120u);
  ExpectSound();
}

// Beside a ledger that copies the world at every new peak.
TEST_F(LedgerTest, WhatTheDeviceHeldAtItsPeakIsExact) {
  constexpr int kCharges = 6;
  const auto charge = [](unsigned i) {
    return Charge{static_cast<ScopeId>(i / 2),
                  i % 2 ? Category::kActivation : Category::kParameter};
  };
  for (unsigned seed = 1; seed <= 40; ++seed) {
    Ledger ledger;
    std::mt19937 random(seed);
    std::array<std::array<Bytes, kTiers>, kCharges> now{};
    std::array<Bytes, kCharges> at_peak{};
    Bytes peak = 0;
    const auto on_device = [&] {
      Bytes sum = 0;
      for (const auto& tiers : now) sum += tiers[0];
      return sum;
    };
    const auto copy = [&] {
      peak = on_device();
      for (int i = 0; i < kCharges; ++i) at_peak[i] = now[i][0];
    };
    for (int step = 0; step < 400; ++step) {
      const unsigned i = random() % kCharges, j = random() % kCharges;
      const Bytes bytes = 1 + random() % 50;
      const auto from = static_cast<TierId>(random() % kTiers);
      const auto to = static_cast<TierId>(random() % kTiers);
      Bytes& there = now[i][static_cast<std::size_t>(from)];
      ChargeAccount& account = ledger.Of(kGpu, charge(i));
      const unsigned what = random() % 20;
      if (what < 8) {
        account.Allocate(bytes);
        now[i][0] += bytes;
      } else if (what == 19) {
        ledger.ResetPeaks(kGpu);
        copy();
      } else if (there < bytes) {
        continue;
      } else if (what < 12) {
        account.FreeBytes(bytes, from);
        there -= bytes;
      } else if (what < 15 && i != j) {
        account.Give(bytes, from, ledger.Of(kGpu, charge(j)));
        there -= bytes;
        now[j][static_cast<std::size_t>(from)] += bytes;
      } else {
        account.Move(bytes, from, to, true);
        there -= bytes;
        now[i][static_cast<std::size_t>(to)] += bytes;
      }
      if (on_device() > peak) copy();
      for (const LedgerRow& row : ledger.Rows()) {
        const unsigned n =
            2 * Raw(row.charge.scope) +
            (row.charge.category == Category::kActivation ? 1 : 0);
        ASSERT_EQ(row.at_peak, at_peak[n]) << "seed " << seed;
      }
      ASSERT_EQ(ledger.Totals(kGpu).peak, peak) << "seed " << seed;
      const Status status = ledger.CheckInvariants();
      ASSERT_TRUE(status.has_value()) << status.error().message;
    }
  }
}

}  // namespace
}  // namespace stratalloc
